// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package feed_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/adapter/feed"
	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/test/capture"
	"github.com/hyperfleet/hyperfleet/test/fleetapi"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/postgres"
	"github.com/hyperfleet/hyperfleet/test/scrape"
)

const waitTimeout = time.Minute

var database *postgres.Server

func TestMain(m *testing.M) {
	postgres.Main(m, func(s *postgres.Server) { database = s })
}

// fixture is a fleet API.
type fixture struct {
	t   *testing.T
	url string
	api *client.Client
}

func newFixture(t *testing.T) *fixture {
	t.Helper()

	_, url := fleetapi.Serve(t, database, platform.Entity{Kind: "Cluster", Plural: "clusters", RequiredAdapters: []string{"dns", "space"}})

	api, err := client.New(platform.APIClient{BaseURL: url}, client.Options{})
	if err != nil {
		t.Fatal(err)
	}

	return &fixture{t: t, url: url, api: api}
}

func (f *fixture) callAPI(method, path string, body any) (out openapi.Resource) {
	f.t.Helper()
	fleetapi.Call(f.t, method, f.url, path, body, &out)

	return out
}

func (f *fixture) createCluster(name string) string {
	f.t.Helper()

	return f.callAPI(http.MethodPost, "/clusters", map[string]any{"name": name, "spec": map[string]any{}}).Id
}

func (f *fixture) resizeCluster(id string, size int) {
	f.t.Helper()
	f.callAPI(http.MethodPatch, "/clusters/"+id, map[string]any{"spec": map[string]any{"size": size}})
}

// adapterProcess is one process of an adapter.
type adapterProcess struct {
	fixture *fixture
	name    string
	source  *feed.Source
	log     capture.Buffer
	metrics *prometheus.Registry
	stop    func()

	// handle, if it is set, runs before the status is reported. Its error is the result of the event.
	handle atomic.Pointer[func(id string, generation int32) error]

	mu          sync.Mutex
	generations map[string][]int32
	// inProgress has the resources whose events are being handled.
	inProgress map[string]bool
}

func (f *fixture) startAdapter(name string, change func(*adapter.Deployment)) *adapterProcess {
	f.t.Helper()

	d := &adapter.Deployment{
		Adapter: adapter.Identity{Name: name},
		Clients: adapter.Clients{HyperFleetAPI: adapter.HyperFleetAPI{BaseURL: f.url}},
		Events: adapter.Events{
			ResourceType: "clusters", MaxAgeNotReconciled: time.Hour, MaxAgeReconciled: 2 * time.Hour, Parallelism: 4, MaxTries: 3,
		},
	}
	if change != nil {
		change(d)
	}

	one := &adapterProcess{fixture: f, name: name, generations: map[string][]int32{}, inProgress: map[string]bool{}, metrics: prometheus.NewRegistry()}

	source, err := feed.New(feed.Options{
		Metrics:    one.metrics,
		Deployment: d, API: f.api, TaskDigest: d.Adapter.Version, PollInterval: 100 * time.Millisecond, MinBackoff: 10 * time.Millisecond,
		MaxBackoff: 20 * time.Millisecond, Log: slog.New(slog.NewTextHandler(&one.log, nil)),
	})
	if err != nil {
		f.t.Fatal(err)
	}

	one.source = source
	ctx, end := context.WithCancel(context.WithoutCancel(f.t.Context()))
	ended := make(chan error, 1)

	go func() { ended <- source.Subscribe(ctx, "", "", one.handleEvent) }()

	one.stop = sync.OnceFunc(func() {
		end()

		if err := <-ended; err != nil {
			f.t.Error(err)
		}
	})
	f.t.Cleanup(one.stop)

	return one
}

func (o *adapterProcess) handleEvent(ctx context.Context, event cloudevents.Event) error {
	var data struct {
		ID         string
		Generation int32
	}
	if err := json.Unmarshal(event.Data(), &data); err != nil {
		return broker.Poison(err)
	}

	o.mu.Lock()
	if o.inProgress[data.ID] {
		o.fixture.t.Errorf("two events of %s are handled at the same time", data.ID)
	}

	o.inProgress[data.ID] = true
	o.generations[data.ID] = append(o.generations[data.ID], data.Generation)
	o.mu.Unlock()

	defer func() {
		o.mu.Lock()
		defer o.mu.Unlock()

		delete(o.inProgress, data.ID)
	}()

	if handle := o.handle.Load(); handle != nil {
		if err := (*handle)(data.ID, data.Generation); err != nil {
			return err
		}
	}

	_, err := o.fixture.api.PutStatus(ctx, data.ID, openapi.StatusReport{
		Adapter: o.name, ObservedGeneration: data.Generation, ObservedTime: time.Now(),
		Conditions: []openapi.AdapterCondition{
			{Type: "Available", Status: "True"}, {Type: "Applied", Status: "True"}, {Type: "Health", Status: "True"},
			{Type: "Finalized", Status: "True"},
		},
	})

	return err
}

func (o *adapterProcess) listGenerations(id string) []int32 {
	o.mu.Lock()
	defer o.mu.Unlock()

	return slices.Clone(o.generations[id])
}

func (f *fixture) eventually(what string, condition func() bool) {
	f.t.Helper()

	for end := time.Now().Add(waitTimeout); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if condition() {
			return
		}
	}

	f.t.Fatalf("timed out waiting until %s", what)
}

func (f *fixture) isReconciled(id string, generation int32) func() bool {
	return func() bool {
		r, err := f.api.Get(f.t.Context(), id)

		return err == nil && r.Generation == generation && slices.ContainsFunc(r.Status.Conditions,
			func(c openapi.ResourceCondition) bool {
				return c.Type == "Reconciled" && c.Status == "True" && c.ObservedGeneration == generation
			})
	}
}

// TestTwoAdapters runs two adapters that follow the API independently, from the first resource to its
// removal.
func TestTwoAdapters(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	early := f.createCluster("early")
	dns, space := f.startAdapter("dns", nil), f.startAdapter("space", nil)
	late := f.createCluster("late")

	f.eventually("both clusters are reconciled", func() bool { return f.isReconciled(early, 1)() && f.isReconciled(late, 1)() })
	f.resizeCluster(late, 2)
	f.eventually("the change is reconciled", f.isReconciled(late, 2))
	f.callAPI(http.MethodDelete, "/clusters/"+late, nil)
	f.eventually("the resource is gone", func() bool {
		_, err := f.api.Get(t.Context(), late)

		return errors.Is(err, client.ErrNotFound)
	})

	for _, one := range []*adapterProcess{dns, space} {
		if got := one.listGenerations(late); !slices.IsSorted(got) || !slices.Contains(got, 3) {
			t.Errorf("%s got generations %v, want them in order up to 3", one.name, got)
		}
	}
}

// TestRestart checks that a new process gets changes that happened while no process ran, and events that
// the earlier process was handling, independent of the resync interval.
func TestRestart(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	id := f.createCluster("home")
	f.startAdapter("space", nil)
	first := f.startAdapter("dns", nil)

	f.eventually("the cluster is reconciled", f.isReconciled(id, 1))
	first.stop()
	f.resizeCluster(id, 2)

	other := f.createCluster("other")
	second := f.startAdapter("dns", nil)

	f.eventually("both clusters are reconciled", func() bool { return f.isReconciled(id, 2)() && f.isReconciled(other, 1)() })

	if got := second.listGenerations(id); len(got) == 0 {
		t.Error("the second process got no event")
	}
}

// TestReplicas checks that one replica handles events, and that another one continues when it stops, after
// the first has completed its events.
func TestReplicas(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	f.startAdapter("space", nil)

	replicas := []*adapterProcess{f.startAdapter("dns", nil), f.startAdapter("dns", nil)}
	id := f.createCluster("home")

	f.eventually("the cluster is reconciled", f.isReconciled(id, 1))

	if len(replicas[0].listGenerations(id)) > 0 && len(replicas[1].listGenerations(id)) > 0 {
		t.Log("the lease moved to the other replica meanwhile")
	}

	// The replica that gets the change has the lease.
	var first atomic.Bool

	entered, leave := make(chan int, 1), make(chan struct{})

	for i, one := range replicas {
		slow := func(string, int32) error {
			if first.CompareAndSwap(false, true) {
				entered <- i
				<-leave
			}

			return nil
		}
		one.handle.Store(&slow)
	}

	f.resizeCluster(id, 2)

	at := <-entered
	works, waits := replicas[at], replicas[1-at]
	stopped := make(chan struct{})

	go func() {
		defer close(stopped)
		works.stop()
	}()

	// A replica that gets the lease handles all resources at once, so it does not have the lease yet.
	if got := waits.listGenerations(id); slices.Contains(got, 2) {
		t.Errorf("the other replica handled events before the first had stopped: %v", got)
	}

	close(leave)
	<-stopped
	f.resizeCluster(id, 3)
	f.eventually("the other replica continues", f.isReconciled(id, 3))
}

// TestAnotherTaskFileStandsBy checks that a process says so if another one with another task file has its lease, and
// stops saying so when it gets the lease.
func TestAnotherTaskFileStandsBy(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	setTask := func(digest string) func(*adapter.Deployment) {
		return func(d *adapter.Deployment) { d.Adapter.Version = digest }
	}
	first := f.startAdapter("dns", setTask("one"))
	id := f.createCluster("home")
	f.eventually("the first process handles events", func() bool { return len(first.listGenerations(id)) > 0 })

	replica, second := f.startAdapter("dns", setTask("one")), f.startAdapter("dns", setTask("two"))

	f.eventually("the other process says that it stands by", func() bool { return second.source.Standby() != "" })

	hasConflict := func(want float64) func() bool {
		return func() bool { return scrape.SumOf(t, second.metrics, "hyperfleet_sentinel_lease_conflict", "") == want }
	}
	f.eventually("the metric says that it stands by", hasConflict(1))

	if got := second.log.String(); strings.Count(got, "level=WARN") != 1 || !strings.Contains(got, "with another configuration") {
		t.Errorf("log: %s", got)
	}

	if got := replica.source.Standby() + first.source.Standby(); got != "" {
		t.Errorf("a replica says %s", got)
	}

	replica.stop()
	first.stop()
	f.eventually("the other process has the lease", func() bool {
		return len(second.listGenerations(id)) > 0 && second.source.Standby() == ""
	})

	f.eventually("the metric says that it has the lease", hasConflict(0))
}

// TestPoisonEventsAreExcluded checks that an event that cannot be handled is not retried at the interval
// for resources that are not reconciled, until the resource changes.
func TestPoisonEventsAreExcluded(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	f.startAdapter("space", nil)

	dns := f.startAdapter("dns", func(d *adapter.Deployment) { d.Events.MaxAgeNotReconciled = 100 * time.Millisecond })

	var failures atomic.Int32

	poison := func(_ string, generation int32) error {
		switch {
		case generation == 1:
			return broker.Poison(errors.New("invalid event"))
		case failures.Add(1) < 3:
			return errors.New("not yet")
		default:
			return nil
		}
	}
	dns.handle.Store(&poison)

	id := f.createCluster("home")
	f.eventually("the resource is excluded", func() bool { return strings.Contains(dns.log.String(), "excluded") })

	tries := len(dns.listGenerations(id))

	// Other resources are still handled at the interval. The second one shows that the interval has passed.
	marker := f.createCluster("marker")
	f.eventually("the marker is handled", func() bool { return len(dns.listGenerations(marker)) > 0 })

	if got := len(dns.listGenerations(id)); got > tries+1 {
		t.Errorf("the excluded event was retried %d times", got-tries)
	}

	// An event that fails temporarily is retried.
	f.resizeCluster(id, 2)
	f.eventually("the change is reconciled", f.isReconciled(id, 2))
}

// TestResync checks that a resource that is not reconciled is handled again without a change, and more often than a
// resource that is reconciled.
func TestResync(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	dns := f.startAdapter("dns", func(d *adapter.Deployment) { d.Events.MaxAgeNotReconciled = 200 * time.Millisecond })
	id, reconciled := f.createCluster("home"), f.createCluster("reconciled")

	_, err := f.api.PutStatus(t.Context(), reconciled, openapi.StatusReport{
		Adapter: "space", ObservedGeneration: 1, ObservedTime: time.Now(),
		Conditions: []openapi.AdapterCondition{
			{Type: "Available", Status: "True"}, {Type: "Applied", Status: "True"}, {Type: "Health", Status: "True"},
		},
	})
	must.Do(t, err)
	f.eventually("the other resource is reconciled", f.isReconciled(reconciled, 1))

	const times = 8

	before := len(dns.listGenerations(reconciled))
	wanted := len(dns.listGenerations(id)) + times
	f.eventually("the resource is handled repeatedly", func() bool { return len(dns.listGenerations(id)) >= wanted })

	// Events from before it was reconciled may arrive late.
	if got := len(dns.listGenerations(reconciled)) - before; got > times/2 {
		t.Errorf("the reconciled resource was handled %d times, and the other one %d times", got, times)
	}
}

// TestVariants checks that two versions of an adapter run at the same time, and that a resource moves from one to the
// other with its label.
func TestVariants(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	setVariant := func(name, track string) func(*adapter.Deployment) {
		return func(d *adapter.Deployment) {
			d.Adapter.Version, d.Events.Variant = name, name
			d.Events.ResourceSelector = map[string]string{"track": track}
		}
	}
	setTrack := func(method, path, track string) string {
		body := map[string]any{"labels": map[string]string{"track": track}}
		if method == http.MethodPost {
			body["name"], body["spec"] = "moving", map[string]any{}
		}

		return f.callAPI(method, path, body).Id
	}

	stable, canary := f.startAdapter("dns", setVariant("", "stable")), f.startAdapter("dns", setVariant("canary", "canary"))
	id := setTrack(http.MethodPost, "/clusters", "stable")
	f.eventually("the first version handles the resource", func() bool { return len(stable.listGenerations(id)) > 0 })

	setTrack(http.MethodPatch, "/clusters/"+id, "canary")
	f.eventually("the other version handles the resource", func() bool { return slices.Contains(canary.listGenerations(id), 2) })

	if got := stable.listGenerations(id); slices.Contains(got, 2) || len(canary.listGenerations(id)) != 1 {
		t.Errorf("the first version handled %v, the other one %v", got, canary.listGenerations(id))
	}
}
