// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package serve_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/platform/adapter/pipeline"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/platform/adapter/serve"
)

// TestALifeOfAResource goes through the real parts: an event makes an object, a change
// changes it, deletion removes it and is reported, so that the resource goes.
func TestALifeOfAResource(t *testing.T) {
	w := newWorld(t, env.Namespace(t))
	w.start()

	cluster := w.cluster(`{"tier":"gold","refuse":"no"}`)
	w.send(cluster.Id, 1)
	w.eventually("the report", func() bool { return w.available(cluster.Id) == "True" })

	made := w.object(cluster.Id)
	if made == nil || made.Data["tier"] != "gold" || made.Labels[adapter.LabelResourceID] != cluster.Id ||
		made.Annotations[adapter.AnnotationIdentity] == "" {
		t.Fatalf("made %+v", made)
	}

	w.call(http.MethodPatch, "/clusters/"+cluster.Id, `{"spec":{"tier":"silver","refuse":"no"}}`)
	w.send(cluster.Id, 2)
	w.eventually("the change", func() bool { now := w.object(cluster.Id); return now != nil && now.Data["tier"] == "silver" })

	w.call(http.MethodDelete, "/clusters/"+cluster.Id, "")
	w.send(cluster.Id, 3)
	w.eventually("the end", func() bool {
		_, err := w.api.Get(t.Context(), cluster.Id)

		return err != nil && w.object(cluster.Id) == nil
	})

	// What comes late makes nothing again.
	w.send(cluster.Id, 1)
	w.eventually("the late event", func() bool {
		return strings.Contains(metricsText(t, w), `events_processed_total{adapter_name="landing",status="skipped"} 1`)
	})

	if w.object(cluster.Id) != nil {
		t.Error("a late event has made the object again")
	}
}

func metricsText(t *testing.T, w *world) string {
	t.Helper()

	_, text := w.get("/metrics")

	return text
}

func TestWhatAdmissionRefusesIsReportedAndDone(t *testing.T) {
	w := newWorld(t, env.Namespace(t))
	w.eventually("the policy", func() bool {
		return env.Client.Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, GenerateName: "probe-"}, Data: map[string]string{"refuse": "yes"},
		}) != nil
	})
	w.start()

	cluster := w.cluster(`{"tier":"gold","refuse":"yes"}`)
	w.send(cluster.Id, 1)
	w.eventually("the report", func() bool { return w.available(cluster.Id) == "False ResourcesFailed" })

	list, err := fleet.Store.Statuses(t.Context(), cluster.Id)
	if err != nil || !strings.Contains(list[0].Conditions[0].Message, "refused by the house") {
		t.Errorf("%v, %+v", err, list)
	}

	// It is done with: the next event of the resource finds its way.
	w.call(http.MethodPatch, "/clusters/"+cluster.Id, `{"spec":{"tier":"gold","refuse":"no"}}`)
	w.send(cluster.Id, 2)
	w.eventually("the next event", func() bool { return w.available(cluster.Id) == "True" })
}

func TestAnEventWaitsForTheAPIAndBlocksNobody(t *testing.T) {
	w := newWorld(t, env.Namespace(t))

	blocked, release := make(chan struct{}), make(chan struct{})

	var once sync.Once

	handle := w.handle
	bad := w.cluster(`{"tier":"gold","refuse":"no"}`)
	w.handle = func(ctx context.Context, event cloudevents.Event) pipeline.Result {
		if strings.Contains(string(event.Data()), bad.Id) {
			once.Do(func() { close(blocked) })
			<-release
		}

		return handle(ctx, event)
	}
	w.start()
	w.send(bad.Id, 1)
	<-blocked

	good := w.cluster(`{"tier":"gold","refuse":"no"}`)
	w.send(good.Id, 1)
	w.eventually("another resource's event", func() bool { return w.available(good.Id) == "True" })

	w.down.Store(true)
	close(release)
	w.eventually("tries while the API is down", func() bool {
		return strings.Contains(metricsText(t, w), `errors_total{adapter_name="landing",error_type="preconditions"}`) &&
			!strings.Contains(metricsText(t, w), `errors_total{adapter_name="landing",error_type="preconditions"} 0`)
	})

	w.down.Store(false)
	w.eventually("the event after the outage", func() bool { return w.available(bad.Id) == "True" })
}

func TestPoisonIsGivenUp(t *testing.T) {
	w := newWorld(t, env.Namespace(t))
	w.start()
	w.send(uuid.NewString(), 0)

	select {
	case got := <-w.source.dead:
		if got.Reason != "poison" || got.Tries != 1 {
			t.Errorf("%+v", got)
		}
	case <-time.After(patience):
		t.Fatal("it is not given up")
	}

	cluster := w.cluster(`{"tier":"gold","refuse":"no"}`)
	w.send(cluster.Id, 1)
	w.eventually("the event behind it", func() bool { return w.available(cluster.Id) == "True" })
}

func TestTheEndDrains(t *testing.T) {
	w := newWorld(t, env.Namespace(t))

	working, release := make(chan struct{}), make(chan struct{})
	handle := w.handle
	w.handle = func(ctx context.Context, event cloudevents.Event) pipeline.Result {
		close(working)
		<-release

		return handle(ctx, event)
	}
	w.start()

	if code, body := w.get("/readyz"); code != http.StatusOK {
		t.Errorf("not ready: %d %s", code, body)
	}

	if _, body := w.get("/config"); body != "the configuration" {
		t.Errorf("configuration: %s", body)
	}

	cluster := w.cluster(`{"tier":"gold","refuse":"no"}`)
	w.send(cluster.Id, 1)
	<-working

	ended := make(chan error, 1)

	go func() { ended <- w.stop() }()

	w.eventually("that it is not ready", func() bool {
		code, _ := w.get("/readyz")

		return code == http.StatusServiceUnavailable
	})

	if code, _ := w.get("/healthz"); code != http.StatusOK {
		t.Errorf("not alive while it drains: %d", code)
	}

	close(release)

	if err := <-ended; err != nil {
		t.Error(err)
	}

	if got := w.available(cluster.Id); got != "True" {
		t.Errorf("the event in work was not done: %s", got)
	}
}

// TestTheDrainIsBounded: what is in work for longer is told to end, and the adapter says so.
func TestTheDrainIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quiet := slog.New(slog.DiscardHandler)
		events := newSource(t, platform.Broker{}, quiet)
		events.Add(event(uuid.NewString(), 1))

		ctx, end := context.WithCancel(t.Context())
		begun, ended := make(chan struct{}), make(chan error, 1)

		go func() {
			ended <- serve.Run(ctx, serve.Options{
				Deployment: adapter.Deployment{
					Clients:      adapter.Clients{Broker: adapter.Broker{SubscriptionID: "landing", Topic: "clusters"}},
					EventTimeout: time.Hour,
				},
				Events: events, Log: quiet,
				Handle: func(ctx context.Context, _ cloudevents.Event) pipeline.Result {
					close(begun)
					<-ctx.Done()

					return pipeline.Result{Status: pipeline.Failed, Err: ctx.Err()}
				},
			})
		}()

		<-begun
		end()

		from := time.Now()
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "still in work") {
			t.Errorf("%v", err)
		}

		if took := time.Since(from); took != serve.DrainTimeout {
			t.Errorf("it drains for %s", took)
		}
	})
}

func TestABrokerThatIsAway(t *testing.T) {
	w := newWorld(t, env.Namespace(t))

	w.source.away = errors.New("the broker is closed")
	err := serve.Run(t.Context(), serve.Options{
		Deployment: w.deployment, Events: w.source, Handle: w.handle, Log: slog.New(slog.DiscardHandler),
	})
	if err == nil || !strings.Contains(err.Error(), "subscribe to events: the broker is closed") {
		t.Errorf("%v", err)
	}

	if err := serve.Run(t.Context(), serve.Options{}); err == nil {
		t.Error("it runs without anything")
	}
}

// TestMetrics: names and labels are those of upstream's adapter.
func TestMetrics(t *testing.T) {
	w := newWorld(t, env.Namespace(t))
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
	w.handle = func(_ context.Context, event cloudevents.Event) pipeline.Result {
		var about struct {
			Generation int `json:"generation"`
		}

		if err := event.DataAs(&about); err != nil {
			t.Error(err)
		}

		return results[about.Generation-1]
	}
	w.start()

	id := uuid.NewString()

	for i, wants := range [][]string{
		{
			`_events_processed_total{adapter_name="landing",status="failed"} 1`, `_up{adapter_name="landing"} 1`,
			`_build_info{adapter_name="landing",framework_version="1.2.3",version="7"} 1`,
			`_errors_total{adapter_name="landing",error_type="params"} 1`,
			`_event_processing_duration_seconds_count{adapter_name="landing"}`,
		},
		{`_resources_deleted_total{adapter_name="landing",resource_type="Namespace",status="error"} 1`},
		{
			`_resources_deleted_total{adapter_name="landing",resource_type="Namespace",status="pending"} 1`,
			`_resource_deletions_in_progress{adapter_name="landing",resource_type="Namespace"} 1`,
		},
		{
			`_resources_deleted_total{adapter_name="landing",resource_type="Namespace",status="success"} 1`,
			`_resource_deletions_in_progress{adapter_name="landing",resource_type="Namespace"} 0`,
			`_resource_deletion_duration_seconds_count{adapter_name="landing",resource_type="Namespace"} 1`,
		},
	} {
		w.send(id, int32(i+1))

		for _, want := range wants {
			w.eventually(want, func() bool { return strings.Contains(metricsText(t, w), "hyperfleet_adapter"+want) })
		}
	}

	if problems, err := testutil.GatherAndLint(w.registry); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", err, problems)
	}
}
