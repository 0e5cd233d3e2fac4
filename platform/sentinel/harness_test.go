// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sentinel_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/platform/sentinel"
	"github.com/hyperfleet/hyperfleet/platform/store"
	"github.com/hyperfleet/hyperfleet/test/capture"
	"github.com/hyperfleet/hyperfleet/test/fleetapi"
	"github.com/hyperfleet/hyperfleet/test/postgres"
	"github.com/hyperfleet/hyperfleet/test/scrape"
)

const patience = time.Minute

var database *postgres.Server

func TestMain(m *testing.M) {
	if os.Getenv(envResting) != "" {
		os.Exit(rest())
	}

	// The tests wait for intervals more than for a processor. The caller can set another number.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}

	postgres.Main(m, func(s *postgres.Server) { database = s })
}

// api is a fleet API with its own database.
type api struct {
	t     *testing.T
	url   string
	store *store.Store
}

func serve(t *testing.T) *api {
	t.Helper()

	served, url := fleetapi.Serve(t, database,
		platform.Entity{Kind: "Cluster", Plural: "clusters", RequiredAdapters: []string{"dns"}},
		platform.Entity{
			Kind: "NodePool", Plural: "nodepools", ParentKind: "Cluster", OnParentDelete: "cascade", RequiredAdapters: []string{"dns"},
		})

	return &api{t: t, url: url, store: served.Store}
}

// do sends a request that has to succeed.
func (a *api) do(method, path string, body, answer any) {
	a.t.Helper()
	fleetapi.Call(a.t, method, a.url, path, body, answer)
}

func (a *api) create(path, name string, labels map[string]string) openapi.Resource {
	a.t.Helper()

	var out openapi.Resource

	body := map[string]any{"name": name, "spec": map[string]any{"size": 3}}
	if labels != nil {
		body["labels"] = labels
	}

	a.do(http.MethodPost, path, body, &out)

	return out
}

// report sends a report of the adapter dns.
func (a *api) report(id string, generation int32, available string) {
	a.t.Helper()
	a.do(http.MethodPut, "/resources/"+id+"/statuses", openapi.StatusReport{
		Adapter: "dns", ObservedGeneration: generation, ObservedTime: time.Now(),
		Conditions: []openapi.AdapterCondition{
			{Type: "Available", Status: available}, {Type: "Applied", Status: "True"}, {Type: "Health", Status: "True"},
		},
	}, nil)
}

// conf returns a configuration with intervals that are short enough for tests.
func conf(url string) platform.Sentinel {
	c := sentinel.Defaults()
	c.ResourceType = "clusters"
	c.Clients.HyperFleetAPI.BaseURL = url
	c.PollInterval = 100 * time.Millisecond
	c.MaxAgeNotReconciled, c.MaxAgeReconciled = time.Hour, 2*time.Hour

	return c
}

// adapter is a broker that records what a Sentinel sends.
type adapter struct {
	t *testing.T
	// refuse makes Publish fail for events of one resource.
	mu     sync.Mutex
	refuse map[string]bool
	tries  map[string]int
	// got has the events by resource.
	got map[string][]cloudevents.Event
}

var errRefused = errors.New("the broker is full")

func newAdapter(t *testing.T) *adapter {
	t.Helper()

	return &adapter{t: t, refuse: map[string]bool{}, tries: map[string]int{}, got: map[string][]cloudevents.Event{}}
}

// Publish records the encoded events of clusters, and rejects some of them.
func (a *adapter) Publish(_ context.Context, topic string, e cloudevents.Event) error {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.tries[e.Subject()]++

	if a.refuse[e.Subject()] {
		return errRefused
	}

	body, err := json.Marshal(e)
	if err == nil {
		err = json.Unmarshal(body, &e)
	}

	if err := errors.Join(err, e.Validate()); err != nil {
		a.t.Errorf("event %s: %v", body, err)

		return err
	}

	if topic == "clusters" {
		a.got[e.Subject()] = append(a.got[e.Subject()], e)
	}

	return nil
}

// Health always succeeds.
func (a *adapter) Health(context.Context) error { return nil }

func (a *adapter) set(id string, refused bool) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.refuse[id] = refused
}

// of returns the events of a resource.
func (a *adapter) of(id string) []cloudevents.Event {
	a.mu.Lock()
	defer a.mu.Unlock()

	return slices.Clone(a.got[id])
}

// await waits for a number of events of a resource, and returns the last one.
func (a *adapter) await(id string, count int) map[string]any {
	a.t.Helper()

	var list []cloudevents.Event

	eventually(a.t, "events of "+id, func() bool {
		list = a.of(id)

		return len(list) >= count
	})

	var said map[string]any
	if err := list[len(list)-1].DataAs(&said); err != nil {
		a.t.Fatal(err)
	}

	return said
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()

	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}

		time.Sleep(20 * time.Millisecond)
	}
}

// replica is a running Sentinel.
type replica struct {
	*sentinel.Sentinel

	metrics *prometheus.Registry
	log     *capture.Buffer
	end     func()
	// meddle, if it is set, responds to requests in place of the API. If it returns nil, the
	// request is passed on.
	mu     sync.Mutex
	meddle func(*http.Request) (*http.Response, error)
}

func (r *replica) set(meddle func(*http.Request) (*http.Response, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.meddle = meddle
}

func run(t *testing.T, c platform.Sentinel, to sentinel.Publisher) *replica {
	t.Helper()

	return runAt(t, c, to, nil)
}

// runAt runs a replica with its own clock.
func runAt(t *testing.T, c platform.Sentinel, to sentinel.Publisher, at clock.WithTickerAndDelayedExecution) *replica {
	t.Helper()

	r := &replica{metrics: prometheus.NewRegistry(), log: &capture.Buffer{}}

	calls, err := client.New(c.Clients.HyperFleetAPI, client.Options{Transport: retry.RoundTripperFunc(
		func(request *http.Request) (*http.Response, error) {
			r.mu.Lock()
			meddle := r.meddle
			r.mu.Unlock()

			if meddle != nil {
				if resp, err := meddle(request); resp != nil || err != nil {
					return resp, err
				}
			}

			return http.DefaultTransport.RoundTrip(request)
		})})
	if err != nil {
		t.Fatal(err)
	}

	r.Sentinel, err = sentinel.New(sentinel.Options{
		Conf: c, API: calls, Broker: to, Metrics: r.metrics, Clock: at,
		Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})

	go func() {
		defer close(done)

		_ = r.Run(ctx)
	}()

	r.end = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	t.Cleanup(func() {
		r.end()

		if t.Failed() {
			t.Log(r.log.String())
		}
	})

	return r
}

// ready waits until all resources have been listed.
func (r *replica) ready(t *testing.T) *replica {
	t.Helper()
	eventually(t, "sentinel is ready", func() bool { return r.CheckReady(t.Context()) == nil })

	return r
}

// metric returns the sum of a metric's values whose labels contain the text.
func (r *replica) metric(t *testing.T, name, text string) float64 {
	t.Helper()

	return scrape.SumOf(t, r.metrics, "hyperfleet_sentinel_"+name, text)
}
