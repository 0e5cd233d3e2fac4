// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
)

func testPanic(t *testing.T, where *site) {
	t.Helper()

	b, topic := where.bus(t), topicOf(t)
	r := newRecord(t)

	var tries atomic.Int32

	subscribe(t, b, topic, "adapter", func(ctx context.Context, e cloudevents.Event) error {
		if tries.Add(1) == 1 {
			panic("oh")
		}

		return r.handle(ctx, e)
	})
	publish(t, b, topic, event(t, "a", 1))
	eventually(t, "the event is handled", func() bool { return total(r.copy()) == 1 })
}

func testSlow(t *testing.T, where *site) {
	t.Helper()

	b, topic := where.bus(t), topicOf(t)

	var handled atomic.Int32

	subscribe(t, b, topic, "adapter", func(context.Context, cloudevents.Event) error {
		time.Sleep(where.silence)
		handled.Add(1)

		return nil
	})
	publish(t, b, topic, event(t, "slow", 0))
	publish(t, b, topic, event(t, "slow", 1))
	eventually(t, "both are handled", func() bool { return handled.Load() >= 2 })

	end := event(t, "slow", 2)
	publish(t, b, topic, end)
	eventually(t, "the third is handled", func() bool { return handled.Load() >= 3 })

	if handled.Load() != 3 {
		t.Errorf("%d events handled, want 3", handled.Load())
	}
}

// testEnd: a subscription that is ended waits for what is in work, which may go on.
func testEnd(t *testing.T, where *site) {
	t.Helper()

	b, topic := where.bus(t), topicOf(t)
	testWaits(t, b, topic, func(end func()) { end() })
}

// testClose: so does one whose broker is closed. What is done then is not delivered again.
func testClose(t *testing.T, where *site) {
	t.Helper()

	b, topic, r := where.open(t, nil), topicOf(t), newRecord(t)
	testWaits(t, b, topic, func(end func()) {
		b.Close()
		end()
	})

	if err := b.Health(t.Context()); err == nil {
		t.Error("a closed broker is healthy")
	}

	next := where.open(t, nil)
	start(t, next, topic, "adapter", r.handle)
	publish(t, next, topic, event(t, "a", 2))
	eventually(t, "the next event is handled", func() bool { return total(r.copy()) > 0 })

	if diff := cmp.Diff(map[string][]int{"a": {2}}, r.copy()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// testWaits ends a subscription, whose end it is given, while an event is in work.
func testWaits(t *testing.T, b bus, topic string, ends func(end func())) {
	t.Helper()

	var done atomic.Bool

	begun, free := make(chan struct{}), make(chan struct{})
	end := subscribe(t, b, topic, "adapter", func(ctx context.Context, _ cloudevents.Event) error {
		close(begun)
		<-free

		done.Store(ctx.Err() == nil)

		return nil
	})
	publish(t, b, topic, event(t, "a", 1))
	<-begun

	ended := make(chan struct{})

	go func() {
		defer close(ended)

		ends(end)
	}()

	select {
	case <-ended:
		t.Error("the subscription has ended while an event is in work")
	case <-time.After(quiet):
	}

	close(free)
	<-ended

	if !done.Load() {
		t.Error("the handler's context had ended")
	}
}

// testLostHolder: a process is gone without a word while it handles events.
func testLostHolder(t *testing.T, where *site) {
	t.Helper()

	address, err := os.ReadFile(where.conf.RabbitMQ.URLFile)
	if err != nil {
		t.Fatal(err)
	}

	line, url := forward(t, where.server.Address), filepath.Join(t.TempDir(), "url")
	writeFile(t, url, strings.Replace(string(address), where.server.Address, line.address, 1))

	topic, r := topicOf(t), newRecord(t)
	gone, stays := where.open(t, func(c *platform.Broker) { c.RabbitMQ.URLFile = url }), where.open(t, nil)
	begun, free := make(chan struct{}, 100), make(chan struct{})

	subscribe(t, gone, topic, "adapter", func(context.Context, cloudevents.Event) error {
		begun <- struct{}{}
		<-free

		return errHandler
	})
	t.Cleanup(sync.OnceFunc(func() { close(free) }))
	publish(t, stays, topic, event(t, "a", 1))
	publish(t, stays, topic, event(t, "a", 2))
	publish(t, stays, topic, event(t, "b", 1))
	<-begun
	<-begun

	start(t, stays, topic, "adapter", r.handle)
	line.end()
	eventually(t, "another handles them", func() bool {
		got := r.copy()

		return len(got["a"]) >= 2 && len(got["b"]) >= 1
	})

	if got := r.copy()["a"]; got[len(got)-1] != 2 {
		t.Errorf("events of a in order %v", got)
	}
}

// testHandOver: a process that ends in order lets the next one begin only when it is done.
func testHandOver(t *testing.T, where *site) {
	t.Helper()

	topic := topicOf(t)
	one, two := where.open(t, nil), where.open(t, nil)
	begun, free := make(chan struct{}, 10), make(chan struct{})
	first, second := newRecord(t), newRecord(t)

	end := subscribe(t, one, topic, "adapter", func(ctx context.Context, e cloudevents.Event) error {
		begun <- struct{}{}
		<-free

		return first.handle(ctx, e)
	})
	start(t, two, topic, "adapter", second.handle)
	publish(t, two, topic, event(t, "a", 1))
	<-begun

	want := []int{}

	for number := 2; number <= 10; number++ {
		want = append(want, number)
		publish(t, two, topic, event(t, "a", number))
	}

	ended := make(chan struct{})

	go func() {
		defer close(ended)

		end()
	}()

	for number := 11; number <= 20; number++ {
		want = append(want, number)
		publish(t, two, topic, event(t, "a", number))
	}

	time.Sleep(where.silence)

	if got := second.copy(); len(got) != 0 {
		t.Errorf("handled by the next one while the first is at work: %v", got)
	}

	close(free)
	<-ended
	eventually(t, "the next one goes on", func() bool { return total(second.copy()) >= len(want) })

	if diff := cmp.Diff(map[string][]int{"a": {1}}, first.copy()); diff != "" {
		t.Errorf("the first: -want +got:\n%s", diff)
	}

	if diff := cmp.Diff(map[string][]int{"a": want}, second.copy()); diff != "" {
		t.Errorf("the next one: -want +got:\n%s", diff)
	}
}

func testRefusals(t *testing.T, where *site) {
	t.Helper()

	b := where.open(t, nil)
	bare := cloudevents.NewEvent()
	big := event(t, "a", 1)

	if err := big.SetData("text/plain", strings.Repeat("x", 600<<10)); err != nil {
		t.Fatal(err)
	}

	nothing := func(context.Context, cloudevents.Event) error { return nil }

	for name, err := range map[string]error{
		"topic":        b.Publish(t.Context(), "a b", event(t, "a", 1)),
		"wildcard":     b.Publish(t.Context(), "a.*", event(t, "a", 1)),
		"event":        b.Publish(t.Context(), "topic", bare),
		"size":         b.Publish(t.Context(), "topic", big),
		"subscription": b.Subscribe(t.Context(), "topic", "", nothing),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}

	if err := b.Health(t.Context()); err != nil {
		t.Errorf("Health() = %v", err)
	}

	b.Close()

	if err := b.Publish(t.Context(), "topic", event(t, "a", 1)); err == nil {
		t.Error("a closed broker publishes")
	}

	if err := b.Subscribe(t.Context(), "topic", "a", nothing); err == nil {
		t.Error("a closed broker subscribes")
	}
}

// testKill: what was published is handled, whatever becomes of the broker. Before runs just
// before it is killed, between when it is gone.
func testKill(t *testing.T, where *site, before, between func(*testing.T)) {
	t.Helper()

	const (
		numbers = 60
		few     = 20
	)

	b, topic, r := where.open(t, nil), topicOf(t), newRecord(t)
	subscribe(t, b, topic, "adapter", r.handle)

	var sent sync.WaitGroup

	begun, dying := make(chan struct{}), make(chan struct{})

	sent.Go(func() {
		// Some are sent before it is killed, some while it is gone, some after.
		for number := range numbers {
			if number == few {
				close(begun)
				<-dying
			}

			if number > few {
				time.Sleep(lookAt)
			}

			for k := range 5 {
				e := event(t, "key-"+strconv.Itoa(k), number)
				for b.Publish(context.Background(), topic, e) != nil {
					time.Sleep(lookAt)
				}
			}
		}
	})

	<-begun
	before(t)
	close(dying)
	where.server.Kill(t)
	between(t)
	eventually(t, "the broker is said to be ill", func() bool { return b.Health(t.Context()) != nil })
	where.server.Restart(t)
	sent.Wait()

	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("handled: %v", r.copy())
		}
	})
	eventually(t, "all are handled", func() bool {
		got := r.copy()
		for k := range 5 {
			seen := map[int]bool{}
			for _, number := range got["key-"+strconv.Itoa(k)] {
				seen[number] = true
			}

			if len(seen) < numbers {
				return false
			}
		}

		return true
	})
	eventually(t, "the broker is well again", func() bool { return b.Health(t.Context()) == nil })
}
