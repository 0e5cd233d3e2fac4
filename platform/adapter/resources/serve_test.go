// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/platform/adapter/pipeline"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/platform/adapter/serve"
	"github.com/hyperfleet/hyperfleet/platform/probes"
)

// TestALifeOfAResource goes through the real parts: an event makes an object, the watch sees that
// somebody has removed it, a change changes it, and its deletion, which takes its time, is reported,
// so that the resource goes.
func TestALifeOfAResource(t *testing.T) {
	t.Parallel()

	w := newWhole(t, env.Namespace(t), api)
	s := serveWith(t, w.handle, w.looks)
	id := w.call(http.MethodPost, "/clusters", `{"name":"home","spec":{"tier":"gold"}}`).Id

	s.send(id, 1)
	eventually(t, "the report", func() bool { return w.available(id) == "True" })

	made := w.object(id)
	if made == nil || made.Data["tier"] != "gold" || made.Labels[adapter.LabelResourceID] != id || made.Annotations[adapter.AnnotationIdentity] == "" {
		t.Fatalf("made %+v", made)
	}

	// No event is sent of what comes now.
	must(t, env.Client.Delete(t.Context(), made))

	eventually(t, "it is made again", func() bool {
		now := w.object(id)

		return now != nil && now.UID != made.UID
	})
	eventually(t, "a look is counted", func() bool { return !s.tells(`looks_total{adapter_name="landing",status="success"} 0`) })

	w.call(http.MethodPatch, "/clusters/"+id, `{"spec":{"tier":"silver"}}`)
	s.send(id, 2)
	eventually(t, "the change", func() bool {
		now := w.object(id)

		return now != nil && now.Data["tier"] == "silver"
	})

	going := w.object(id)
	going.Finalizers = []string{"example.com/slow"}

	must(t, env.Client.Update(t.Context(), going))

	w.call(http.MethodDelete, "/clusters/"+id, "")
	s.send(id, 3)
	eventually(t, "the deletion is asked for", func() bool {
		going = w.object(id)

		return going != nil && going.DeletionTimestamp != nil
	})

	going.Finalizers = nil
	must(t, env.Client.Update(t.Context(), going))

	eventually(t, "the end", func() bool {
		_, err := api.Store.Get(t.Context(), id)

		return err != nil && w.object(id) == nil
	})

	// What comes late makes nothing again.
	s.send(id, 1)
	eventually(t, "the late event", func() bool { return s.tells(`events_processed_total{adapter_name="landing",status="skipped"} 1`) })

	if w.object(id) != nil {
		t.Error("a late event has made the object again")
	}
}

// TestPoisonIsGivenUp, and what is behind it is handled.
func TestPoisonIsGivenUp(t *testing.T) {
	t.Parallel()

	w := newWhole(t, env.Namespace(t), api)
	s := serveWith(t, w.handle, nil)
	s.send(uuid.NewString(), 0)

	select {
	case got := <-s.source.dead:
		if got.Reason != "poison" || got.Attempts != 1 {
			t.Errorf("%+v", got)
		}
	case <-time.After(patience):
		t.Fatal("it is not given up")
	}
}

func TestTheEndDrains(t *testing.T) {
	t.Parallel()

	working, release := make(chan struct{}), make(chan struct{})
	s := serveWith(t, func(context.Context, cloudevents.Event) pipeline.Result {
		close(working)
		<-release

		return pipeline.Result{Status: pipeline.Success}
	}, nil)

	if code, body := s.get("/readyz"); code != http.StatusOK {
		t.Errorf("not ready: %d %s", code, body)
	}

	if _, body := s.get("/config"); body != "the configuration" {
		t.Errorf("configuration: %s", body)
	}

	s.send(uuid.NewString(), 1)
	<-working

	ended := make(chan error, 1)

	go func() { ended <- s.stop() }()

	eventually(t, "that it is not ready", func() bool {
		code, _ := s.get("/readyz")

		return code == http.StatusServiceUnavailable
	})

	if code, _ := s.get("/healthz"); code != http.StatusOK {
		t.Errorf("not alive while it drains: %d", code)
	}

	select {
	case err := <-ended:
		t.Errorf("it has ended while an event is in work: %v", err)
	default:
	}

	close(release)

	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// quietly are the options of an adapter whose servers do not listen.
func quietly(events serve.Source, handle handler) serve.Options {
	deployment := landing()
	deployment.HealthAddress, deployment.MetricsAddress, deployment.EventTimeout = "", "", time.Hour

	return serve.Options{Deployment: deployment, Events: events, Handle: handle, Log: slog.New(slog.DiscardHandler)}
}

// TestTheDrainIsBounded: what is in work for longer is told to end, and the adapter says so.
func TestTheDrainIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		events := newSource(t, platform.Broker{})
		events.add(reconcile(uuid.NewString(), 1))

		ctx, end := context.WithCancel(t.Context())
		begun, ended := make(chan struct{}), make(chan error, 1)

		go func() {
			ended <- serve.Run(ctx, quietly(events, func(ctx context.Context, _ cloudevents.Event) pipeline.Result {
				close(begun)
				<-ctx.Done()

				return pipeline.Result{Status: pipeline.Failed, Err: ctx.Err()}
			}))
		}()

		<-begun
		end()

		from := time.Now()
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "still in progress") {
			t.Errorf("%v", err)
		}

		if took := time.Since(from); took != serve.DrainTimeout {
			t.Errorf("it drains for %s", took)
		}
	})
}

func TestABrokerThatIsAway(t *testing.T) {
	t.Parallel()

	events := newSource(t, platform.Broker{})
	events.away = errors.New("the broker is closed")

	err := serve.Run(t.Context(), quietly(events, func(context.Context, cloudevents.Event) (out pipeline.Result) { return out }))
	if err == nil || !strings.Contains(err.Error(), "subscribe to events: the broker is closed") {
		t.Errorf("%v", err)
	}

	if err := serve.Run(t.Context(), serve.Options{}); err == nil {
		t.Error("it runs without anything")
	}
}

// TestMetrics: names and labels are those of upstream's adapter.
func TestMetrics(t *testing.T) {
	t.Parallel()

	deleted := func(err error, pending bool) pipeline.Result {
		out := pipeline.Result{Status: pipeline.Success}
		out.Resources.Outcomes = []resources.Outcome{
			{Resource: "space", Object: "Namespace x", Operation: resources.Deleted, Pending: pending, Err: err},
		}

		return out
	}
	results := []pipeline.Result{
		{Status: pipeline.Failed, Phase: pipeline.PhaseParams, Failure: errors.New("no")},
		deleted(errors.New("no"), false), deleted(nil, true), deleted(nil, false),
	}
	s := serveWith(t, func(_ context.Context, event cloudevents.Event) pipeline.Result {
		var about struct {
			Generation int `json:"generation"`
		}

		if err := event.DataAs(&about); err != nil {
			t.Error(err)
		}

		return results[about.Generation-1]
	}, nil)
	id := uuid.NewString()

	for i, wants := range [][]string{
		{
			`events_processed_total{adapter_name="landing",status="failed"} 1`, `up{adapter_name="landing"} 1`,
			`build_info{adapter_name="landing",framework_version="1.2.3",version="7"} 1`,
			`errors_total{adapter_name="landing",error_type="params"} 1`,
			`event_processing_duration_seconds_count{adapter_name="landing"}`,
		},
		{`resources_deleted_total{adapter_name="landing",resource_type="Namespace",status="error"} 1`},
		{
			`resources_deleted_total{adapter_name="landing",resource_type="Namespace",status="pending"} 1`,
			`resource_deletions_in_progress{adapter_name="landing",resource_type="Namespace"} 1`,
		},
		{
			`resources_deleted_total{adapter_name="landing",resource_type="Namespace",status="success"} 1`,
			`resource_deletions_in_progress{adapter_name="landing",resource_type="Namespace"} 0`,
			`resource_deletion_duration_seconds_count{adapter_name="landing",resource_type="Namespace"} 1`,
		},
	} {
		s.send(id, int32(i+1))

		for _, want := range wants {
			eventually(t, want, func() bool { return s.tells(want) })
		}
	}

	if problems, err := testutil.GatherAndLint(s.registry); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", err, problems)
	}
}

func TestProbes(t *testing.T) {
	t.Parallel()

	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "things_total", Help: "Things."}))

	server, err := probes.Listen(t.Context(), probes.Options{
		HealthAddress: "127.0.0.1:0", MetricsAddress: "127.0.0.1:0", Gatherer: registry,
		CheckReady: func(context.Context) error { return errors.New("the broker is away") },
		Extra: map[string]http.Handler{"GET /config": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "config")
		})},
	})
	must(t, err)

	for _, tc := range []struct {
		url    string
		status int
		body   string
	}{
		{server.HealthAddress + "/healthz", 200, "ok"},
		{server.HealthAddress + "/readyz", 503, "the broker is away"},
		{server.HealthAddress + "/config", 200, "config"},
		{server.HealthAddress + "/metrics", 404, ""},
		{server.MetricsAddress + "/metrics", 200, "things_total 0"},
	} {
		response, err := http.Get("http://" + tc.url)
		must(t, err)

		body, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()

		if response.StatusCode != tc.status || !strings.Contains(string(body), tc.body) {
			t.Errorf("%s: %d %s", tc.url, response.StatusCode, body)
		}
	}

	if _, err := probes.Listen(t.Context(), probes.Options{MetricsAddress: server.HealthAddress}); err == nil {
		t.Error("an address was taken twice")
	}

	if err := server.Close(t.Context()); err != nil {
		t.Error(err)
	}

	if off, err := probes.Listen(t.Context(), probes.Options{HealthAddress: "0"}); err != nil || off.HealthAddress != "" || off.Close(t.Context()) != nil {
		t.Errorf("without addresses: %v", err)
	}
}
