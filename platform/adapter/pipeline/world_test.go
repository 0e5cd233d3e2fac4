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
	// fleet is the API that all tests share; each has a gate of its own before it.
	fleet *fleetapi.API
	names atomic.Int64
)

func TestMain(m *testing.M) {
	os.Exit(fleetapi.RunWith(func(a *fleetapi.API) { fleet = a }, m.Run,
		platform.Entity{Kind: "Cluster", Plural: "clusters", RequiredAdapters: []string{"landing"}, NameMinLen: 3, NameMaxLen: 53}))
}

// instant is a clock whose timers are over at once: tries follow each other.
type instant struct{ clock.RealClock }

func (c instant) NewTimer(time.Duration) clock.Timer { return c.RealClock.NewTimer(0) }

// world is a fleet API over real Postgres, behind a gate that tests can close.
type world struct {
	t   *testing.T
	url string
	log *capture.Buffer

	mu sync.Mutex
	// fault answers in the API's place, if it says so.
	fault func(w http.ResponseWriter, r *http.Request) bool
	// asked are the requests that came, method and path.
	asked []string
}

func newWorld(t *testing.T) *world {
	t.Helper()

	w := &world{t: t, log: &capture.Buffer{}}
	listening := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		w.asked = append(w.asked, r.Method+" "+r.URL.Path)
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

// down closes the gate for requests that match.
func (w *world) down(match func(*http.Request) bool, status int, media, body string) {
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

func everything(*http.Request) bool { return true }

func reads(r *http.Request) bool { return r.Method == http.MethodGet }

func reports(r *http.Request) bool { return r.Method == http.MethodPut }

// cluster makes one in the API.
func (w *world) cluster(name string) (out openapi.Resource) {
	w.t.Helper()

	body := fmt.Sprintf(`{"name":"%s-%d","spec":{"tier":"gold"}}`, name, names.Add(1))
	fleetapi.Call(w.t, http.MethodPost, w.url, "/clusters", body, &out)

	return out
}

// status is the adapter's report that the API has; nil if none.
func (w *world) status(id string) *openapi.AdapterStatus {
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

// available is "STATUS REASON" of the report's Available.
func (w *world) available(id string) string {
	w.t.Helper()

	return w.condition(id, "Available")
}

func (w *world) condition(id, kind string) string {
	w.t.Helper()

	status := w.status(id)
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

func deployment(url string) *adapter.Deployment {
	out := task.NewDeploymentSpec(false).Default
	out.Adapter, out.Environment = adapter.Identity{Name: "landing", Version: "7"}, []string{"REGION"}
	out.Clients.HyperFleetAPI.BaseURL = url
	out.Clients.Broker = adapter.Broker{SubscriptionID: "landing", Topic: "clusters"}

	return &out
}

// phase is a resources phase; nil stands for one that has nothing to do.
type phase func(context.Context, resources.Input) (resources.Result, error)

func (w *world) pipeline(text string, objects phase) *pipeline.Pipeline {
	w.t.Helper()

	config := deployment(w.url)

	loaded, err := task.Load(fstest.MapFS{"task.yaml": {Data: []byte(text)}}, "task.yaml", config)
	if err != nil {
		w.t.Fatalf("load task file:\n%v", err)
	}

	if objects == nil {
		objects = func(context.Context, resources.Input) (resources.Result, error) { return resources.Result{}, nil }
	}

	out, err := pipeline.New(pipeline.Options{
		Task: loaded, Deployment: config, FrameworkVersion: "1.2.3", Env: map[string]string{"REGION": "north"}, Clock: instant{},
		Log: slog.New(slog.NewJSONHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		w.t.Fatal(err)
	}

	return out.WithResources(objects)
}

// event is what Sentinel sends of a cluster.
func event(id string, generation int) cloudevents.Event {
	return eventOf("io.hyperfleet.cluster.reconcile", fmt.Sprintf(`{"id":%q,"kind":"Cluster","href":"/clusters/%s","generation":%d}`, id, id, generation))
}

func eventOf(kind, data string) cloudevents.Event {
	out := cloudevents.NewEvent()
	out.SetID("event-1")
	out.SetSource("hyperfleet-sentinel")
	out.SetType(kind)

	if err := out.SetData("application/json", json.RawMessage(data)); err != nil {
		panic(err)
	}

	return out
}

func must(t testing.TB, err error) {
	t.Helper()

	if err != nil {
		t.Fatal(err)
	}
}
