// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker_test

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/google/uuid"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/events"
	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/test/brokers"
)

func TestMain(m *testing.M) {
	// They wait for brokers, more than for a processor. Who runs them may say otherwise.
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}

	os.Exit(m.Run())
}

const (
	patience = 2 * time.Minute
	warmUp   = "test.warmup"
	// lookAt is how often tests look for what is to come.
	lookAt = 50 * time.Millisecond
	// quiet is for how long nothing is to happen.
	quiet = 300 * time.Millisecond
)

var errHandler = errors.New("not today")

// site is a kind of broker that tests connect to.
type site struct {
	conf   platform.Broker
	server *brokers.Server
	// local has no broker, but queues of this process.
	local bool
	// silence is longer than the broker waits for a process that says nothing.
	silence time.Duration
}

func (s *site) bus(t *testing.T) bus {
	t.Helper()

	if s.local {
		return newLocal(t, s.conf)
	}

	return s.open(t, nil)
}

func (s *site) open(t *testing.T, change func(*platform.Broker)) *broker.Broker {
	t.Helper()

	conf := s.conf
	if change != nil {
		change(&conf)
	}

	b, err := broker.Open(t.Context(), conf, slog.New(slog.NewTextHandler(t.Output(), nil)), nil)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(b.Close)

	return b
}

func common() platform.Broker {
	return platform.Broker{Parallelism: 8, MaxDeliveries: 3, MinBackoff: 20 * time.Millisecond, MaxBackoff: 100 * time.Millisecond}
}

// event is one of a test: what it says orders it among those of its key.
func event(t *testing.T, key string, number int) cloudevents.Event {
	t.Helper()

	e := cloudevents.NewEvent()
	e.SetID(uuid.NewString())
	e.SetSource(events.Source)
	e.SetType("io.hyperfleet.cluster.reconcile")
	e.SetExtension(events.PartitionKey, key)

	if err := e.SetData(events.ContentType, map[string]any{"id": key, "generation": number}); err != nil {
		t.Fatal(err)
	}

	return e
}

func saying(t *testing.T, e cloudevents.Event) (string, int) {
	t.Helper()

	var data events.Data
	if err := e.DataAs(&data); err != nil {
		t.Error(err)
	}

	return data.ID, int(data.Generation)
}

func publish(t *testing.T, b bus, topic string, e cloudevents.Event) {
	t.Helper()

	if err := b.Publish(t.Context(), topic, e); err != nil {
		t.Fatal(err)
	}
}

// subscribe starts a subscription and waits until it is there; end ends it.
func subscribe(t *testing.T, b bus, topic, id string, handle broker.Handler) (end func()) {
	t.Helper()

	var once sync.Once

	warm := make(chan struct{})
	end = start(t, b, topic, id, func(ctx context.Context, e cloudevents.Event) error {
		if e.Type() == warmUp {
			once.Do(func() { close(warm) })

			return nil
		}

		return handle(ctx, e)
	})

	deadline := time.After(patience)

	for i := 0; ; i++ {
		e := event(t, "warm-up", i)
		e.SetType(warmUp)
		publish(t, b, topic, e)

		select {
		case <-warm:
			return end
		case <-time.After(100 * time.Millisecond):
		case <-deadline:
			t.Fatalf("subscription %s to %s does not begin", id, topic)
		}
	}
}

func start(t *testing.T, b bus, topic, id string, handle broker.Handler) (end func()) {
	t.Helper()

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)

	go func() {
		done <- b.Subscribe(ctx, topic, id, func(ctx context.Context, e cloudevents.Event) error {
			if e.Type() == warmUp && !strings.HasSuffix(topic, broker.DeadLetterSuffix) {
				// The wrapper of subscribe has seen it, if there is one.
				_ = handle(ctx, e)

				return nil
			}

			return handle(ctx, e)
		})
	}()

	var once sync.Once

	end = func() {
		once.Do(func() {
			cancel()

			if err := <-done; err != nil {
				t.Errorf("Subscribe() = %v", err)
			}
		})
	}
	t.Cleanup(end)

	return end
}

// record keeps what was handled.
type record struct {
	t  *testing.T
	mu sync.Mutex
	// got by key, in the order of handling.
	got map[string][]int
	// busy keys, to see two at once.
	busy map[string]bool
	most int
}

func newRecord(t *testing.T) *record {
	t.Helper()

	return &record{t: t, got: map[string][]int{}, busy: map[string]bool{}}
}

func (r *record) handle(_ context.Context, e cloudevents.Event) error {
	if e.Type() == warmUp {
		return nil
	}

	key, number := saying(r.t, e)

	r.mu.Lock()
	if r.busy[key] {
		r.t.Errorf("two events of %s at once", key)
	}

	r.busy[key] = true
	r.most = max(r.most, len(r.busy))
	r.mu.Unlock()

	time.Sleep(time.Millisecond)

	r.mu.Lock()
	defer r.mu.Unlock()

	delete(r.busy, key)
	r.got[key] = append(r.got[key], number)

	return nil
}

func (r *record) copy() map[string][]int {
	r.mu.Lock()
	defer r.mu.Unlock()

	out := map[string][]int{}
	for key, list := range r.got {
		out[key] = append([]int(nil), list...)
	}

	return out
}

// eventually waits for what has to come.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()

	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}

		time.Sleep(10 * time.Millisecond)
	}
}

func total(list map[string][]int) int {
	sum := 0
	for _, one := range list {
		sum += len(one)
	}

	return sum
}

func topicOf(t *testing.T) string {
	t.Helper()

	return "t" + strings.ReplaceAll(uuid.NewString(), "-", "")
}
