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
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// TestResourceLifecycle runs a resource's lifecycle with the real components. An event creates an object,
// the watch detects that the object was deleted by hand, a change of the resource changes it, and the slow
// deletion is reported, so that the API removes the resource.
func TestResourceLifecycle(t *testing.T) {
	t.Parallel()

	w := newAdapterFixture(t, env.Namespace(t), api)
	s := startAdapter(t, w.handle, w.looks)
	id := w.call(http.MethodPost, "/clusters", `{"name":"home","spec":{"tier":"gold"}}`).Id

	s.sendEvent(id, 1)
	timing.WaitUntil(t, "the status is reported", func() bool { return w.getAvailable(id) == "True" })

	made := w.getConfigMap(id)
	if made == nil || made.Data["tier"] != "gold" || made.Labels[adapter.LabelAdapter] != "landing" || made.Labels[adapter.LabelResourceID] != id ||
		made.Annotations[adapter.AnnotationIdentity] == "" {
		t.Fatalf("made %+v", made)
	}

	// The following changes of the object send no event.
	must.Do(t, env.Client.Delete(t.Context(), made))

	timing.WaitUntil(t, "the object is recreated", func() bool {
		now := w.getConfigMap(id)

		return now != nil && now.UID != made.UID
	})
	timing.WaitUntil(t, "a requeue is counted", func() bool { return !s.hasMetric(`looks_total{adapter_name="landing",status="success"} 0`) })

	w.call(http.MethodPatch, "/clusters/"+id, `{"spec":{"tier":"silver"}}`)
	s.sendEvent(id, 2)
	timing.WaitUntil(t, "the change is applied", func() bool {
		now := w.getConfigMap(id)

		return now != nil && now.Data["tier"] == "silver"
	})

	going := w.getConfigMap(id)
	going.Finalizers = []string{"example.com/slow"}

	must.Do(t, env.Client.Update(t.Context(), going))

	w.call(http.MethodDelete, "/clusters/"+id, "")
	s.sendEvent(id, 3)
	timing.WaitUntil(t, "the object is being deleted", func() bool {
		going = w.getConfigMap(id)

		return going != nil && going.DeletionTimestamp != nil
	})

	hasMetric := func(want string) {
		timing.WaitUntil(t, want, func() bool { return s.hasMetric(want) })
	}
	hasMetric(`resources_deleted_total{adapter_name="landing",resource_type="ConfigMap",status="pending"} 1`)
	hasMetric(`resource_deletions_in_progress{adapter_name="landing",resource_type="ConfigMap"} 1`)

	going.Finalizers = nil
	must.Do(t, env.Client.Update(t.Context(), going))
	hasMetric(`resources_deleted_total{adapter_name="landing",resource_type="ConfigMap",status="success"} 1`)
	hasMetric(`resource_deletion_duration_seconds_count{adapter_name="landing",resource_type="ConfigMap"} 1`)
	hasMetric(`resource_deletions_in_progress{adapter_name="landing",resource_type="ConfigMap"} 0`)

	timing.WaitUntil(t, "the resource is gone", func() bool {
		_, err := api.Store.Get(t.Context(), id)

		return err != nil && w.getConfigMap(id) == nil
	})

	// A late event does not recreate the object.
	s.sendEvent(id, 1)
	timing.WaitUntil(t, "the late event is handled", func() bool { return s.hasMetric(`events_processed_total{adapter_name="landing",status="skipped"} 1`) })

	if w.getConfigMap(id) != nil {
		t.Error("a late event recreated the object")
	}
}

// TestPoisonIsDeadLettered checks that later events of the same resource are handled.
func TestPoisonIsDeadLettered(t *testing.T) {
	t.Parallel()

	w := newAdapterFixture(t, env.Namespace(t), api)
	s := startAdapter(t, w.handle, nil)
	s.sendEvent(uuid.NewString(), 0)

	select {
	case got := <-s.source.dead:
		if got.Reason != "poison" || got.Attempts != 1 {
			t.Errorf("%+v", got)
		}
	case <-time.After(waitTimeout):
		t.Fatal("the event did not become a dead letter")
	}
}

func TestShutdownDrains(t *testing.T) {
	t.Parallel()

	working, release := make(chan struct{}), make(chan struct{})
	s := startAdapter(t, func(context.Context, cloudevents.Event) pipeline.Result {
		close(working)
		<-release

		return pipeline.Result{Status: pipeline.Success}
	}, nil)

	if code, body := s.get("/readyz"); code != http.StatusOK || !strings.Contains(body, "another task file") {
		t.Errorf("readiness: status %d %s", code, body)
	}

	if _, body := s.get("/config"); body != "the configuration" {
		t.Errorf("configuration: %s", body)
	}

	s.sendEvent(uuid.NewString(), 1)
	<-working

	ended := make(chan error, 1)

	go func() { ended <- s.stop() }()

	timing.WaitUntil(t, "the adapter is not ready", func() bool {
		code, _ := s.get("/readyz")

		return code == http.StatusServiceUnavailable
	})

	if code, _ := s.get("/healthz"); code != http.StatusOK {
		t.Errorf("liveness during the drain: status %d", code)
	}

	select {
	case err := <-ended:
		t.Errorf("the adapter stopped while an event was in progress: %v", err)
	default:
	}

	close(release)

	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// newServeOptions returns options of an adapter whose servers do not listen.
func newServeOptions(events serve.Source, handle handler) serve.Options {
	deployment := newDeployment()
	deployment.HealthAddress, deployment.MetricsAddress, deployment.EventTimeout = "", "", time.Hour

	return serve.Options{Deployment: deployment, Events: events, Handle: handle, Log: slog.New(slog.DiscardHandler)}
}

// TestDrainTimeout checks that events that take too long during a shutdown are canceled, and that the
// adapter returns an error.
func TestDrainTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		events := newSource(t, platform.Broker{})
		events.publishEvent(newReconcileEvent(uuid.NewString(), 1))

		ctx, end := context.WithCancel(t.Context())
		begun, ended := make(chan struct{}), make(chan error, 1)

		go func() {
			ended <- serve.Run(ctx, newServeOptions(events, func(ctx context.Context, _ cloudevents.Event) pipeline.Result {
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
			t.Errorf("the drain took %s", took)
		}
	})
}

func TestUnavailableBroker(t *testing.T) {
	t.Parallel()

	events := newSource(t, platform.Broker{})
	events.subscribeErr = errors.New("the broker is closed")

	err := serve.Run(t.Context(), newServeOptions(events, func(context.Context, cloudevents.Event) (out pipeline.Result) { return out }))
	if err == nil || !strings.Contains(err.Error(), "subscribe to events: the broker is closed") {
		t.Errorf("%v", err)
	}

	if err := serve.Run(t.Context(), serve.Options{}); err == nil {
		t.Error("the adapter runs without a subscription")
	}
}

// TestMetrics checks that names and labels are those of upstream's adapter.
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
	s := startAdapter(t, func(_ context.Context, event cloudevents.Event) pipeline.Result {
		var about struct {
			Generation int `json:"generation"`
		}

		if err := event.DataAs(&about); err != nil {
			t.Error(err)
		}

		return results[about.Generation-1]
	}, nil)
	id := uuid.NewString()

	for i, parts := range [][]string{
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
		s.sendEvent(id, int32(i+1))

		for _, want := range parts {
			timing.WaitUntil(t, want, func() bool { return s.hasMetric(want) })
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
		CheckReady: func(context.Context) error { return errors.New("the broker is unavailable") },
		Extra: map[string]http.Handler{"GET /config": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "config")
		})},
	})
	must.Do(t, err)

	for _, tc := range []struct {
		url    string
		status int
		body   string
	}{
		{server.HealthAddress + "/healthz", 200, "ok"},
		{server.HealthAddress + "/readyz", 503, "the broker is unavailable"},
		{server.HealthAddress + "/config", 200, "config"},
		{server.HealthAddress + "/metrics", 404, ""},
		{server.MetricsAddress + "/metrics", 200, "things_total 0"},
	} {
		response, err := http.Get("http://" + tc.url)
		must.Do(t, err)

		body, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()

		if response.StatusCode != tc.status || !strings.Contains(string(body), tc.body) {
			t.Errorf("%s: %d %s", tc.url, response.StatusCode, body)
		}
	}

	if _, err := probes.Listen(t.Context(), probes.Options{MetricsAddress: server.HealthAddress}); err == nil {
		t.Error("the same address was bound twice")
	}

	if err := server.Close(t.Context()); err != nil {
		t.Error(err)
	}

	if off, err := probes.Listen(t.Context(), probes.Options{HealthAddress: "0"}); err != nil || off.HealthAddress != "" || off.Close(t.Context()) != nil {
		t.Errorf("without addresses: %v", err)
	}
}
