// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/adapter/pipeline"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/test/capture"
	"github.com/hyperfleet/hyperfleet/test/fleetapi"
)

var (
	// fleet is the API of all tests. Each test has its own proxy in front of it.
	fleet *fleetapi.API
	names atomic.Int64
)

func TestMain(m *testing.M) {
	os.Exit(fleetapi.RunWith(func(a *fleetapi.API) { fleet = a }, m.Run,
		platform.Entity{Kind: "Cluster", Plural: "clusters", RequiredAdapters: []string{"landing"}, NameMinLen: 3, NameMaxLen: 53}))
}

// instantClock is a clock whose timers fire at once, so that retries follow each other without a delay.
type instantClock struct{ clock.RealClock }

func (c instantClock) NewTimer(time.Duration) clock.Timer { return c.RealClock.NewTimer(0) }

// recordingClock is an instantClock that records the durations of its timers.
type recordingClock struct {
	instantClock

	mu     sync.Mutex
	pauses []time.Duration
}

func (c *recordingClock) NewTimer(pause time.Duration) clock.Timer {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.pauses = append(c.pauses, pause)

	return c.instantClock.NewTimer(pause)
}

// fixture is a fleet API with a real PostgreSQL, behind a proxy that tests can make fail.
type fixture struct {
	t   *testing.T
	url string
	log *capture.Buffer
	// clock is the clock of the pipelines.
	clock clock.Clock

	mu sync.Mutex
	// fault responds in place of the API if it returns true.
	fault func(w http.ResponseWriter, r *http.Request) bool
	// requests has the method and path of each request.
	requests []string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()

	w := &fixture{t: t, log: &capture.Buffer{}, clock: instantClock{}}
	listening := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		w.requests = append(w.requests, r.Method+" "+r.URL.Path)
		fault := w.fault
		w.mu.Unlock()

		if fault == nil || !fault(rw, r) {
			fleet.ServeHTTP(rw, r)
		}
	}))
	t.Cleanup(listening.Close)

	w.url = listening.URL

	return w
}

// injectResponse makes matching requests get a response instead of reaching the API.
func (w *fixture) injectResponse(match func(*http.Request) bool, status int, media, body string) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.fault = func(rw http.ResponseWriter, r *http.Request) bool {
		if !match(r) {
			return false
		}

		rw.Header().Set("Content-Type", media)
		rw.WriteHeader(status)
		fmt.Fprint(rw, body)

		return true
	}
}

// breakConnections makes the connection of matching requests end without a response.
func (w *fixture) breakConnections(match func(*http.Request) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.fault = func(_ http.ResponseWriter, r *http.Request) bool {
		if match(r) {
			panic(http.ErrAbortHandler)
		}

		return false
	}
}

func matchAll(*http.Request) bool { return true }

func matchReads(r *http.Request) bool { return r.Method == http.MethodGet }

func matchReports(r *http.Request) bool { return r.Method == http.MethodPut }

// createCluster creates a cluster in the API.
func (w *fixture) createCluster(name string) (out openapi.Resource) {
	w.t.Helper()

	body := fmt.Sprintf(`{"name":"%s-%d","spec":{"tier":"gold"}}`, name, names.Add(1))
	fleetapi.Call(w.t, http.MethodPost, w.url, "/clusters", body, &out)

	return out
}

// getStatus returns the adapter's report, or nil if there is none.
func (w *fixture) getStatus(id string) *openapi.AdapterStatus {
	w.t.Helper()

	list, err := fleet.Store.Statuses(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}

	for i := range list {
		if list[i].Adapter == "landing" {
			return &list[i]
		}
	}

	return nil
}

// getAvailable returns "STATUS REASON" of the condition Available in the report.
func (w *fixture) getAvailable(id string) string {
	w.t.Helper()

	return w.getCondition(id, "Available")
}

func (w *fixture) getCondition(id, kind string) string {
	w.t.Helper()

	status := w.getStatus(id)
	if status == nil {
		return "none"
	}

	for _, condition := range status.Conditions {
		if condition.Type == kind {
			return condition.Status + " " + condition.Reason
		}
	}

	return "no " + kind
}

func newDeployment(url string) *adapter.Deployment {
	out := task.NewDeploymentSpec(task.FileOptional).Default
	out.Adapter, out.Environment = adapter.Identity{Name: "landing", Version: "7"}, []string{"REGION"}
	out.Clients.HyperFleetAPI.BaseURL = url
	out.Clients.Broker = adapter.Broker{SubscriptionID: "landing", Topic: "clusters"}

	return &out
}

// phase is a resources phase. If it is nil, the phase does nothing.
type phase func(context.Context, resources.Input) (resources.Result, error)

func (w *fixture) newPipeline(text string, objects phase) *pipeline.Pipeline {
	w.t.Helper()

	config := newDeployment(w.url)

	loaded, err := task.Load(fstest.MapFS{"task.yaml": {Data: []byte(text)}}, "task.yaml", config)
	if err != nil {
		w.t.Fatalf("load task file:\n%v", err)
	}

	if objects == nil {
		objects = func(context.Context, resources.Input) (resources.Result, error) { return resources.Result{}, nil }
	}

	out, err := pipeline.New(pipeline.Options{
		Task: loaded, Deployment: config, FrameworkVersion: "1.2.3", Env: map[string]string{"REGION": "north"}, Clock: w.clock,
		Log: slog.New(slog.NewJSONHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		w.t.Fatal(err)
	}

	return out.WithResources(objects)
}

// newEvent returns an event as Sentinel sends it for a cluster.
func newEvent(id string, generation int) cloudevents.Event {
	return newEventOfType("io.hyperfleet.cluster.reconcile", fmt.Sprintf(`{"id":%q,"kind":"Cluster","href":"/clusters/%s","generation":%d}`, id, id, generation))
}

func newEventOfType(kind, data string) cloudevents.Event {
	out := cloudevents.NewEvent()
	out.SetID("event-1")
	out.SetSource("hyperfleet-sentinel")
	out.SetType(kind)

	if err := out.SetData("application/json", json.RawMessage(data)); err != nil {
		panic(err)
	}

	return out
}
