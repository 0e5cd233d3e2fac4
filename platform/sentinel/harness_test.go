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
	"github.com/hyperfleet/hyperfleet/test/timing"
)

var database *postgres.Server

func TestMain(m *testing.M) {
	if os.Getenv(envIdle) != "" {
		os.Exit(runIdle())
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

// newConfig returns a configuration with intervals that are short enough for tests.
func newConfig(url string) platform.Sentinel {
	c := sentinel.Defaults()
	c.ResourceType = "clusters"
	c.Clients.HyperFleetAPI.BaseURL = url
	c.PollInterval = 100 * time.Millisecond
	c.MaxAgeNotReconciled, c.MaxAgeReconciled = time.Hour, 2*time.Hour

	return c
}

// recordingBroker is a broker that records what a Sentinel sends.
type recordingBroker struct {
	t *testing.T
	// rejected has the resource for whose events Publish fails.
	mu       sync.Mutex
	rejected map[string]bool
	tries    map[string]int
	// events has the events by resource.
	events map[string][]cloudevents.Event
}

var errRejected = errors.New("the broker rejects the event")

func newRecordingBroker(t *testing.T) *recordingBroker {
	t.Helper()

	return &recordingBroker{t: t, rejected: map[string]bool{}, tries: map[string]int{}, events: map[string][]cloudevents.Event{}}
}

// Publish records the encoded events of clusters, and rejects some of them.
func (a *recordingBroker) Publish(_ context.Context, topic string, e cloudevents.Event) error {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.tries[e.Subject()]++

	if a.rejected[e.Subject()] {
		return errRejected
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
		a.events[e.Subject()] = append(a.events[e.Subject()], e)
	}

	return nil
}

// CheckPublish always succeeds.
func (a *recordingBroker) CheckPublish(context.Context, string) error { return nil }

func (a *recordingBroker) setRejected(id string, refused bool) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.rejected[id] = refused
}

// listEvents returns the events of a resource.
func (a *recordingBroker) listEvents(id string) []cloudevents.Event {
	a.mu.Lock()
	defer a.mu.Unlock()

	return slices.Clone(a.events[id])
}

// waitForEvents waits for a number of events of a resource, and returns the last one.
func (a *recordingBroker) waitForEvents(id string, count int) map[string]any {
	a.t.Helper()

	var list []cloudevents.Event

	timing.WaitUntil(a.t, "events of "+id+" are sent", func() bool {
		list = a.listEvents(id)

		return len(list) >= count
	})

	var data map[string]any
	if err := list[len(list)-1].DataAs(&data); err != nil {
		a.t.Fatal(err)
	}

	return data
}

// replica is a running Sentinel.
type replica struct {
	*sentinel.Sentinel

	metrics *prometheus.Registry
	log     *capture.Buffer
	end     func()
	// interceptor, if it is set, responds to requests in place of the API. If it returns nil, the API
	// responds.
	mu          sync.Mutex
	interceptor func(*http.Request) (*http.Response, error)
}

func (r *replica) intercept(meddle func(*http.Request) (*http.Response, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.interceptor = meddle
}

func startReplica(t *testing.T, c platform.Sentinel, to sentinel.Publisher) *replica {
	t.Helper()

	return startReplicaAt(t, c, to, nil)
}

// startReplicaAt starts a replica with its own clock.
func startReplicaAt(t *testing.T, c platform.Sentinel, to sentinel.Publisher, at clock.WithTickerAndDelayedExecution) *replica {
	t.Helper()

	r := &replica{metrics: prometheus.NewRegistry(), log: &capture.Buffer{}}

	calls, err := client.New(c.Clients.HyperFleetAPI, client.Options{Transport: retry.RoundTripperFunc(
		func(request *http.Request) (*http.Response, error) {
			r.mu.Lock()
			meddle := r.interceptor
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

// waitUntilReady waits until all resources have been listed.
func (r *replica) waitUntilReady(t *testing.T) *replica {
	t.Helper()
	timing.WaitUntil(t, "sentinel is ready", func() bool { return r.CheckReady(t.Context()) == nil })

	return r
}

// sumMetric returns the sum of a metric's values whose labels contain the text.
func (r *replica) sumMetric(t *testing.T, name, text string) float64 {
	t.Helper()

	return scrape.SumOf(t, r.metrics, "hyperfleet_sentinel_"+name, text)
}
