// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package feed_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/adapter/feed"
	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/test/capture"
	"github.com/hyperfleet/hyperfleet/test/fleetapi"
	"github.com/hyperfleet/hyperfleet/test/postgres"
)

const patience = time.Minute

var database *postgres.Server

func TestMain(m *testing.M) {
	postgres.Main(m, func(s *postgres.Server) { database = s })
}

// fleet is a fleet API.
type fleet struct {
	t   *testing.T
	url string
	api *client.Client
}

func newFleet(t *testing.T) *fleet {
	t.Helper()

	_, url := fleetapi.Serve(t, database, platform.Entity{Kind: "Cluster", Plural: "clusters", RequiredAdapters: []string{"dns", "space"}})

	api, err := client.New(platform.APIClient{BaseURL: url}, client.Options{})
	if err != nil {
		t.Fatal(err)
	}

	return &fleet{t: t, url: url, api: api}
}

func (f *fleet) call(method, path string, body any) (out openapi.Resource) {
	f.t.Helper()
	fleetapi.Call(f.t, method, f.url, path, body, &out)

	return out
}

func (f *fleet) create(name string) string {
	f.t.Helper()

	return f.call(http.MethodPost, "/clusters", map[string]any{"name": name, "spec": map[string]any{}}).Id
}

func (f *fleet) change(id string, size int) {
	f.t.Helper()
	f.call(http.MethodPatch, "/clusters/"+id, map[string]any{"spec": map[string]any{"size": size}})
}

// follower is one process of an adapter.
type follower struct {
	fleet *fleet
	name  string
	log   capture.Buffer
	stop  func()

	// handle may be told to do something else than report.
	handle atomic.Pointer[func(id string, generation int32) error]

	mu  sync.Mutex
	got map[string][]int32
	// working are the resources that are in work.
	working map[string]bool
}

func (f *fleet) follow(name string, change func(*adapter.Deployment)) *follower {
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

	one := &follower{fleet: f, name: name, got: map[string][]int32{}, working: map[string]bool{}}

	source, err := feed.New(feed.Options{
		Deployment: d, API: f.api, PollInterval: 100 * time.Millisecond, MinBackoff: 10 * time.Millisecond,
		MaxBackoff: 20 * time.Millisecond, Log: slog.New(slog.NewTextHandler(&one.log, nil)),
	})
	if err != nil {
		f.t.Fatal(err)
	}

	ctx, end := context.WithCancel(context.WithoutCancel(f.t.Context()))
	ended := make(chan error, 1)

	go func() { ended <- source.Subscribe(ctx, "", "", one.take) }()

	one.stop = sync.OnceFunc(func() {
		end()

		if err := <-ended; err != nil {
			f.t.Error(err)
		}
	})
	f.t.Cleanup(one.stop)

	return one
}

func (o *follower) take(ctx context.Context, event cloudevents.Event) error {
	var said struct {
		ID         string
		Generation int32
	}
	if err := json.Unmarshal(event.Data(), &said); err != nil {
		return broker.Poison(err)
	}

	o.mu.Lock()
	if o.working[said.ID] {
		o.fleet.t.Errorf("%s is in work twice", said.ID)
	}

	o.working[said.ID] = true
	o.got[said.ID] = append(o.got[said.ID], said.Generation)
	o.mu.Unlock()

	defer func() {
		o.mu.Lock()
		defer o.mu.Unlock()

		delete(o.working, said.ID)
	}()

	if handle := o.handle.Load(); handle != nil {
		if err := (*handle)(said.ID, said.Generation); err != nil {
			return err
		}
	}

	_, err := o.fleet.api.PutStatus(ctx, said.ID, openapi.StatusReport{
		Adapter: o.name, ObservedGeneration: said.Generation, ObservedTime: time.Now(),
		Conditions: []openapi.AdapterCondition{
			{Type: "Available", Status: "True"}, {Type: "Applied", Status: "True"}, {Type: "Health", Status: "True"},
			{Type: "Finalized", Status: "True"},
		},
	})

	return err
}

func (o *follower) seen(id string) []int32 {
	o.mu.Lock()
	defer o.mu.Unlock()

	return slices.Clone(o.got[id])
}

func (f *fleet) eventually(what string, is func() bool) {
	f.t.Helper()

	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if is() {
			return
		}
	}

	f.t.Fatalf("not in time: %s", what)
}

func (f *fleet) reconciled(id string, generation int32) func() bool {
	return func() bool {
		r, err := f.api.Get(f.t.Context(), id)

		return err == nil && r.Generation == generation && slices.ContainsFunc(r.Status.Conditions,
			func(c openapi.ResourceCondition) bool {
				return c.Type == "Reconciled" && c.Status == "True" && c.ObservedGeneration == generation
			})
	}
}

// TestTwoAdapters follow the API, each by itself, from the first resource to none.
func TestTwoAdapters(t *testing.T) {
	t.Parallel()

	f := newFleet(t)
	early := f.create("early")
	dns, space := f.follow("dns", nil), f.follow("space", nil)
	late := f.create("late")

	f.eventually("both are reconciled", func() bool { return f.reconciled(early, 1)() && f.reconciled(late, 1)() })
	f.change(late, 2)
	f.eventually("the change is reconciled", f.reconciled(late, 2))
	f.call(http.MethodDelete, "/clusters/"+late, nil)
	f.eventually("it is gone", func() bool {
		_, err := f.api.Get(t.Context(), late)

		return errors.Is(err, client.ErrNotFound)
	})

	for _, one := range []*follower{dns, space} {
		if got := one.seen(late); !slices.IsSorted(got) || !slices.Contains(got, 3) {
			t.Errorf("%s was told %v", one.name, got)
		}
	}
}

// TestStartedAnew: what happened while nobody followed is seen, and so is what the process
// before had in work, whatever the cadence.
func TestStartedAnew(t *testing.T) {
	t.Parallel()

	f := newFleet(t)
	id := f.create("home")
	f.follow("space", nil)
	first := f.follow("dns", nil)

	f.eventually("it is reconciled", f.reconciled(id, 1))
	first.stop()
	f.change(id, 2)

	other := f.create("other")
	second := f.follow("dns", nil)

	f.eventually("both are reconciled", func() bool { return f.reconciled(id, 2)() && f.reconciled(other, 1)() })

	if got := second.seen(id); len(got) == 0 {
		t.Error("the second process was told nothing")
	}
}

// TestReplicas: one of them works, and another goes on when it ends; what it had in work is
// done before.
func TestReplicas(t *testing.T) {
	t.Parallel()

	f := newFleet(t)
	f.follow("space", nil)

	replicas := []*follower{f.follow("dns", nil), f.follow("dns", nil)}
	id := f.create("home")

	f.eventually("it is reconciled", f.reconciled(id, 1))

	if len(replicas[0].seen(id)) > 0 && len(replicas[1].seen(id)) > 0 {
		t.Log("the lease went from one to the other meanwhile")
	}

	// Who is handed the change has the lease.
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

	f.change(id, 2)

	at := <-entered
	works, waits := replicas[at], replicas[1-at]
	stopped := make(chan struct{})

	go func() {
		defer close(stopped)
		works.stop()
	}()

	// A replica that has the lease looks at everything at once: it has it not yet.
	if got := waits.seen(id); slices.Contains(got, 2) {
		t.Errorf("the other replica has gone on before: %v", got)
	}

	close(leave)
	<-stopped
	f.change(id, 3)
	f.eventually("the other replica goes on", f.reconciled(id, 3))
}

// TestSetAside: an event that nobody can handle is not tried at the cadence of what is not
// reconciled, until the resource changes.
func TestSetAside(t *testing.T) {
	t.Parallel()

	f := newFleet(t)
	f.follow("space", nil)

	dns := f.follow("dns", func(d *adapter.Deployment) { d.Events.MaxAgeNotReconciled = 100 * time.Millisecond })

	var failures atomic.Int32

	poison := func(_ string, generation int32) error {
		switch {
		case generation == 1:
			return broker.Poison(errors.New("it makes no sense"))
		case failures.Add(1) < 3:
			return errors.New("not yet")
		default:
			return nil
		}
	}
	dns.handle.Store(&poison)

	id := f.create("home")
	f.eventually("the resource is excluded", func() bool { return strings.Contains(dns.log.String(), "excluded") })

	tries := len(dns.seen(id))

	// Others go on at the cadence; a second one shows that it has passed.
	marker := f.create("marker")
	f.eventually("the marker is set aside too", func() bool { return len(dns.seen(marker)) > 0 })

	if got := len(dns.seen(id)); got > tries+1 {
		t.Errorf("it was tried %d times more", got-tries)
	}

	// What fails but for a while is tried again.
	f.change(id, 2)
	f.eventually("the change is reconciled", f.reconciled(id, 2))
}

// TestCadence: what is not reconciled is looked at again, though nothing is heard of it.
func TestCadence(t *testing.T) {
	t.Parallel()

	f := newFleet(t)
	dns := f.follow("dns", func(d *adapter.Deployment) { d.Events.MaxAgeNotReconciled = 200 * time.Millisecond })
	id := f.create("home")

	f.eventually("it is looked at again and again", func() bool { return len(dns.seen(id)) >= 3 })
}

// TestSelector: what the labels don't match is not followed.
func TestSelector(t *testing.T) {
	t.Parallel()

	f := newFleet(t)
	dns := f.follow("dns", func(d *adapter.Deployment) { d.Events.ResourceSelector = map[string]string{"tier": "gold"} })
	silver := f.create("silver")

	gold := f.call(http.MethodPost, "/clusters", map[string]any{
		"name": "gold", "spec": map[string]any{}, "labels": map[string]string{"tier": "gold"},
	}).Id
	f.eventually("gold is looked at", func() bool { return len(dns.seen(gold)) > 0 })

	if got := dns.seen(silver); len(got) > 0 {
		t.Error(fmt.Sprint("silver was looked at: ", got))
	}
}
