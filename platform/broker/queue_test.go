// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker_test

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/events"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// TestQueue checks that a queue gives the same guarantees as a broker for one subscription.
func TestQueue(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]func(*testing.T, bus){
		"a failing event does not block others": testRetry,
		"dead letters":                          testDeadLetters,
		"malformed messages":                    testMalformed,
		"panics":                                testPanic,
		"a shutdown waits": func(t *testing.T, b bus) {
			t.Helper()
			testShutdownWaits(t, b, newTopic(t), func(end func()) { end() })
		},
		"equal events are folded": testFold,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newLocalBus(t, newConfig()))
		})
	}
}

func testRetry(t *testing.T, b bus) {
	t.Helper()

	topic := newTopic(t)

	var (
		others atomic.Int32
		tries  atomic.Int32
		open   atomic.Bool
	)

	order := newRecorder(t)
	subscribe(t, b, topic, "adapter", func(ctx context.Context, e cloudevents.Event) error {
		key, number := parseEvent(t, e)
		if key != "bad" {
			others.Add(1)

			return nil
		}

		if number == 0 {
			if tries.Add(1) == 1 || !open.Load() && tries.Load() < 3 {
				return errHandler
			}
		}

		return order.handle(ctx, e)
	})

	publish(t, b, topic, newEvent(t, "bad", 0))
	publish(t, b, topic, newEvent(t, "bad", 1))

	const many = 40
	for i := range many {
		publish(t, b, topic, newEvent(t, "good-"+strconv.Itoa(i), 0))
	}

	timing.WaitUntil(t, "events of other keys are handled", func() bool { return others.Load() == many })
	open.Store(true)
	timing.WaitUntil(t, "both events of the key are handled", func() bool { return countEvents(order.snapshot()) == 2 })

	if diff := cmp.Diff([]int{0, 1}, order.snapshot()["bad"]); diff != "" || tries.Load() < 2 {
		t.Errorf("%d attempts, -want +got:\n%s", tries.Load(), diff)
	}
}

func testDeadLetters(t *testing.T, b bus) {
	t.Helper()

	topic := newTopic(t)

	var tries sync.Map

	dead := make(chan cloudevents.Event, 10)
	after := newRecorder(t)

	subscribe(t, b, topic+broker.DeadLetterSuffix, "watch", sendTo(dead))
	subscribe(t, b, topic, "adapter", func(ctx context.Context, e cloudevents.Event) error {
		key, number := parseEvent(t, e)
		count, _ := tries.LoadOrStore(key, &atomic.Int32{})

		if number == 0 {
			count.(*atomic.Int32).Add(1)
		}

		switch {
		case number == 1:
			return after.handle(ctx, e)
		case key == "poisoned":
			return fmt.Errorf("task: %w", broker.Poison(errHandler))
		default:
			return errHandler
		}
	})

	for _, key := range []string{"poisoned", "hopeless"} {
		publish(t, b, topic, newEvent(t, key, 0))
		publish(t, b, topic, newEvent(t, key, 1))
	}

	got := map[string]map[string]any{}

	for range 2 {
		select {
		case e := <-dead:
			key, _ := parseEvent(t, e)
			got[key] = e.Extensions()
		case <-time.After(waitTimeout):
			t.Fatalf("dead letters: %v", got)
		}
	}

	for key, want := range map[string]map[string]any{
		"poisoned": {
			broker.ExtensionReason: "poison", broker.ExtensionDeliveries: "1", broker.ExtensionError: "task: not today",
			broker.ExtensionSubscription: "adapter", events.PartitionKey: "poisoned",
		},
		"hopeless": {
			broker.ExtensionReason: "exhausted", broker.ExtensionDeliveries: "3", broker.ExtensionError: "not today",
			broker.ExtensionSubscription: "adapter", events.PartitionKey: "hopeless",
		},
	} {
		if diff := cmp.Diff(want, got[key]); diff != "" {
			t.Errorf("%s: -want +got:\n%s", key, diff)
		}
	}

	timing.WaitUntil(t, "later events of the keys are handled", func() bool { return countEvents(after.snapshot()) == 2 })
}

func testMalformed(t *testing.T, b bus) {
	t.Helper()

	topic := newTopic(t)
	dead := make(chan cloudevents.Event, 10)
	r := newRecorder(t)

	subscribe(t, b, topic+broker.DeadLetterSuffix, "watch", sendTo(dead))
	subscribe(t, b, topic, "adapter", r.handle)

	const attributes = `"specversion":"1.0","id":"e1","source":"/test","type":"test","partitionkey":"a"`

	seen := map[string]bool{}

	// An event that could be read in two ways is malformed, and the error names the place.
	for body, place := range map[string]string{
		"": "", "no json": "", `{"specversion":"1.0"}`: "",
		`{` + attributes + `,"data":{"id":"a","id":"b"}}`:     "/data/id",
		`{` + attributes + `,"id":"e2"}`:                      "/id",
		`{` + attributes + `,"data":{"id":"` + "\xff" + `"}}`: "/data/id",
		`{` + attributes + `,"data":{"id":"a"}} {}`:           "the JSON document",
	} {
		must.Do(t, b.PublishRaw(t.Context(), topic, []byte(body)))

		e := receiveOther(t, dead, seen)
		if e.Type() != broker.TypeMalformed || string(e.Data()) != body || e.Extensions()[broker.ExtensionReason] != "malformed" {
			t.Errorf("body %q: dead letter %v", body, e)
		}

		if text, _ := e.Extensions()[broker.ExtensionError].(string); !strings.Contains(text, place) {
			t.Errorf("body %q: error %q, want %q", body, text, place)
		}
	}

	publish(t, b, topic, newEvent(t, "a", 1))
	timing.WaitUntil(t, "events are handled after it", func() bool { return countEvents(r.snapshot()) == 1 })
}

// receiveOther returns the next event whose ID is not in seen, and adds it there. A broker may deliver an event more than
// once.
func receiveOther(t *testing.T, from <-chan cloudevents.Event, seen map[string]bool) cloudevents.Event {
	t.Helper()

	timeout := time.After(waitTimeout)

	for {
		select {
		case e := <-from:
			if !seen[e.ID()] {
				seen[e.ID()] = true

				return e
			}
		case <-timeout:
			t.Fatal("no event arrives")
		}
	}
}

func testPanic(t *testing.T, b bus) {
	t.Helper()

	topic := newTopic(t)
	r := newRecorder(t)

	var tries atomic.Int32

	subscribe(t, b, topic, "adapter", func(ctx context.Context, e cloudevents.Event) error {
		if tries.Add(1) == 1 {
			panic("oh")
		}

		return r.handle(ctx, e)
	})
	publish(t, b, topic, newEvent(t, "a", 1))
	timing.WaitUntil(t, "the event is handled", func() bool { return countEvents(r.snapshot()) == 1 })
}

func testFold(t *testing.T, b bus) {
	t.Helper()

	topic := newTopic(t)

	var handled atomic.Int32

	begun, free := make(chan struct{}, 100), make(chan struct{})
	last := newRecorder(t)
	subscribe(t, b, topic, "adapter", func(ctx context.Context, e cloudevents.Event) error {
		if _, number := parseEvent(t, e); number == 2 {
			return last.handle(ctx, e)
		}

		handled.Add(1)
		begun <- struct{}{}
		<-free

		return nil
	})
	publish(t, b, topic, newEvent(t, "a", 1))
	<-begun

	const same = 30
	for range same {
		publish(t, b, topic, newEvent(t, "a", 1))
	}

	publish(t, b, topic, newEvent(t, "a", 2))

	// The broker delivers the events while the first one is being handled. After that, one event
	// remains.
	timing.WaitUntil(t, "all but one are folded", func() bool { return b.Folded(topic, "adapter") >= same-1 })
	close(free)
	timing.WaitUntil(t, "the last event is handled", func() bool { return countEvents(last.snapshot()) == 1 })

	if got := handled.Load(); got != 2 {
		t.Errorf("%d of %d equal events were handled, want the one in progress and one after it", got, same+1)
	}
}

// testShutdownWaits ends a subscription while an event is being handled.
func testShutdownWaits(t *testing.T, b bus, topic string, ends func(end func())) {
	t.Helper()

	var done atomic.Bool

	begun, free := make(chan struct{}), make(chan struct{})
	end := subscribe(t, b, topic, "adapter", func(ctx context.Context, _ cloudevents.Event) error {
		close(begun)
		<-free

		done.Store(ctx.Err() == nil)

		return nil
	})
	publish(t, b, topic, newEvent(t, "a", 1))
	<-begun

	ended := make(chan struct{})

	go func() {
		defer close(ended)

		ends(end)
	}()

	select {
	case <-ended:
		t.Error("the subscription ended while an event was in progress")
	case <-time.After(quietPeriod):
	}

	close(free)
	<-ended

	if !done.Load() {
		t.Error("the handler's context was canceled")
	}
}

// sendTo returns a handler that sends events to a channel.
func sendTo(to chan<- cloudevents.Event) broker.Handler {
	return func(_ context.Context, e cloudevents.Event) error {
		to <- e

		return nil
	}
}

// TestPropertyOrder publishes events with a few keys. Each event fails a random number of times, up
// to more than the number of attempts.
//
// Feature: hyperfleet-operator, Property: events of a key are handled in their order and one at a time, however often they fail
func TestPropertyOrder(t *testing.T) {
	t.Parallel()

	const (
		tries    = 3
		keyCount = 4
	)

	property.Check(t, "order", property.Options{Brief: 10}, prop.ForAll(func(draws []int) bool {
		b := newLocalBus(t, platform.Broker{
			Parallelism: 3, MaxDeliveries: tries, MinBackoff: time.Millisecond, MaxBackoff: 2 * time.Millisecond,
		})

		want, got, dead := map[string][]int{}, newRecorder(t), newRecorder(t)

		var (
			mu    sync.Mutex
			tried = map[int]int{}
		)

		wantDead := 0
		topic := newTopic(t)
		defer subscribe(t, b, topic+broker.DeadLetterSuffix, "dead", dead.handle)()
		defer subscribe(t, b, topic, "adapter", func(ctx context.Context, e cloudevents.Event) error {
			_, number := parseEvent(t, e)

			mu.Lock()
			tried[number]++
			fails := tried[number] <= draws[number]/keyCount
			mu.Unlock()

			if fails {
				return errHandler
			}

			return got.handle(ctx, e)
		})()

		for number, draw := range draws {
			key := "key-" + strconv.Itoa(draw%keyCount)
			publish(t, b, topic, newEvent(t, key, number))

			if draw/keyCount < tries {
				want[key] = append(want[key], number)
			} else {
				wantDead++
			}
		}

		timing.WaitUntil(t, "all events are done", func() bool {
			return countEvents(got.snapshot()) >= countEvents(want) && countEvents(dead.snapshot()) >= wantDead
		})

		if diff := cmp.Diff(want, got.snapshot()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)

			return false
		}

		return countEvents(dead.snapshot()) == wantDead
	}, gen.SliceOfN(20, gen.IntRange(0, keyCount*(tries+1)-1))))
}

// FuzzDelivery checks that any message is either handled as an event or becomes a dead letter with
// the message as its data, and that the next event is handled.
func FuzzDelivery(f *testing.F) {
	for _, body := range []string{
		"", "null", "{}", "[1]", "\x00\xff", `{"specversion":"1.0"}`, `{"specversion":"2.0","id":"a","source":"b","type":"c"}`,
		`{"specversion":"1.0","id":"a","source":"b","type":"c","partitionkey":7,"traceparent":"x"}`,
		`{"specversion":"1.0","id":"a","source":"b","type":"c","data_base64":"?"}`,
		`{"specversion":"1.0","id":"a","source":"b","type":"c","DATA":1,"x y":2}`,
	} {
		f.Add([]byte(body))
	}

	f.Fuzz(func(t *testing.T, body []byte) {
		b := newLocalBus(t, platform.Broker{Parallelism: 1})
		came, dead := make(chan cloudevents.Event, 2), make(chan cloudevents.Event, 2)

		subscribe(t, b, "fuzz"+broker.DeadLetterSuffix, "dead", sendTo(dead))
		subscribe(t, b, "fuzz", "adapter", sendTo(came))

		must.Do(t, b.PublishRaw(t.Context(), "fuzz", body))

		select {
		case <-t.Context().Done():
			t.Fatal("the message was neither handled nor became a dead letter")
		case e := <-came:
			if err := e.Validate(); err != nil {
				t.Errorf("handled: %v", err)
			}
		case e := <-dead:
			if e.Type() != broker.TypeMalformed || !bytes.Equal(e.Data(), body) {
				t.Errorf("dead letter %v of %q", e, body)
			}
		}
	})
}
