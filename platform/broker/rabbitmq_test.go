// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/test/brokers"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/silence"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// TestRabbitMQ checks the guarantees that only RabbitMQ gives. The server needs seconds of
// processor time to start, so all tests share one. Tests that kill it run first, while it has
// little to recover. The other tests run in parallel.
func TestRabbitMQ(t *testing.T) {
	t.Parallel()

	where := &testServer{server: brokers.StartRabbitMQ(t, newUsers()...)}
	where.conf = newConfig()
	where.conf.Type = platform.BrokerRabbitMQ
	where.conf = where.newFileConfig(t, where.newURL(user))

	t.Run("the server is killed", func(t *testing.T) { testKill(t, where) })

	t.Run("an alarm", func(t *testing.T) { testAlarm(t, where) })

	// More tests at a time than this take so much of two cores that the server does not respond in time.
	const atOnce = 3

	running := make(chan struct{}, atOnce)

	for name, test := range map[string]func(*testing.T, *testServer){
		"beside upstream's programs":                        testUpstream,
		"dead letters":                                      func(t *testing.T, where *testServer) { t.Helper(); testDeadLetters(t, where.openBroker(t)) },
		"malformed messages":                                func(t *testing.T, where *testServer) { t.Helper(); testMalformed(t, where.openBroker(t)) },
		"a handover waits for events in progress":           testHandOver,
		"events of a lost process are delivered to another": testLostHolder,
		"a closed broker waits for events in progress":      testClose,
		"a closed broker and invalid names return errors":   testRejections,
		"minimal permissions":                               testMinimalPermissions,
		"another host":                                      testAnotherHost,
		"passwords change":                                  testRotation,
		"permissions are removed":                           testPermissions,
		"TLS":                                               testTLS,
		"client certificates":                               testClientCertificate,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			running <- struct{}{}
			defer func() { <-running }()

			test(t, where)
		})
	}
}

// upstreamEvent returns an event as upstream's Sentinel sends it, without partitionkey and subject.
const upstreamEvent = `{"specversion":"1.0","id":"u1","source":"hyperfleet-sentinel",
"type":"com.redhat.hyperfleet.cluster.reconcile","datacontenttype":"application/json","data":{"id":"c1","generation":4}}`

// testUpstream checks that exchanges, queues and keys are the same as those of upstream's programs,
// which may have created them before. Each program can then replace the other. The queue may also be one of another type
// that somebody has created.
func testUpstream(t *testing.T, where *testServer) {
	t.Helper()

	for _, arguments := range []amqp.Table{nil, {"x-queue-type": "quorum"}} {
		b, topic, r := mustOpen(t, where.conf), newTopic(t), newRecorder(t)

		// This is what upstream's subscriber does, with another type of exchange than ours.
		onChannel(t, where, func(channel *amqp.Channel) error {
			_, err := channel.QueueDeclare(topic+"-adapter", true, false, false, false, arguments)

			return errors.Join(err, channel.ExchangeDeclare(topic, amqp.ExchangeFanout, true, false, false, false, nil),
				channel.QueueBind(topic+"-adapter", "", topic, false, nil))
		})

		end := subscribe(t, b, topic, "adapter", r.handle)

		onChannel(t, where, func(channel *amqp.Channel) error {
			return channel.PublishWithContext(t.Context(), topic, "", false, false,
				amqp.Publishing{Body: []byte(upstreamEvent), Headers: amqp.Table{"_watermill_message_uuid": "u1"}})
		})
		timing.WaitUntil(t, "upstream's event is handled", func() bool { return slices.Contains(r.snapshot()["c1"], 4) })
		end()

		// Upstream's subscriber receives our events.
		publish(t, b, topic, newEvent(t, "ours", 7))
		onChannel(t, where, func(channel *amqp.Channel) error {
			from, err := channel.Consume(topic+"-adapter", "", false, false, false, false, nil)
			if err != nil {
				return err
			}

			for got := range from {
				for name, value := range got.Headers {
					// Upstream's library rejects messages with other headers.
					if _, text := value.(string); !text {
						t.Errorf("header %s is %v", name, value)
					}
				}

				if strings.Contains(string(got.Body), `"ours"`) {
					return got.Ack(false)
				}
			}

			return errors.New("the event was not delivered")
		})
	}
}

const (
	keys   = 12
	perKey = 15
)

func publishAll(t *testing.T, b bus, topic string) map[string][]int {
	t.Helper()

	want := map[string][]int{}

	for number := range perKey {
		for k := range keys {
			key := "key-" + strconv.Itoa(k)
			publish(t, b, topic, newEvent(t, key, number))
			want[key] = append(want[key], number)
		}
	}

	return want
}

// removeDuplicates removes duplicates: a message that RabbitMQ confirms too late is published again before
// any other message.
func removeDuplicates(got map[string][]int) map[string][]int {
	for key, numbers := range got {
		got[key] = slices.Compact(numbers)
	}

	return got
}

// testFanOut checks that every subscription receives all events, in order by key.
func testFanOut(t *testing.T, b *broker.Broker) {
	t.Helper()

	topic := newTopic(t)
	first, second := newRecorder(t), newRecorder(t)
	subscribe(t, b, topic, "first", first.handle)
	subscribe(t, b, topic, "second.b", second.handle)

	want := publishAll(t, b, topic)

	for name, r := range map[string]*recorder{"first": first, "second": second} {
		timing.WaitUntil(t, name+" has all events", func() bool { return countEvents(removeDuplicates(r.snapshot())) >= keys*perKey })

		if diff := cmp.Diff(want, removeDuplicates(r.snapshot())); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}

		if r.most < 2 {
			t.Errorf("%s: events of different keys were never handled at the same time", name)
		}
	}
}

// testClose checks that a subscription ends when its broker is closed, and that events that are
// acknowledged then are not delivered again.
func testClose(t *testing.T, where *testServer) {
	t.Helper()

	b, topic, r := where.openBroker(t), newTopic(t), newRecorder(t)
	testShutdownWaits(t, b, topic, func(end func()) {
		b.Close()
		end()
	})

	if err := b.Health(t.Context()); err == nil {
		t.Error("a closed broker is healthy")
	}

	next := where.openBroker(t)
	startSubscription(t, next, topic, "adapter", r.handle)
	publish(t, next, topic, newEvent(t, "a", 2))
	timing.WaitUntil(t, "the next event is handled", func() bool { return countEvents(r.snapshot()) > 0 })

	if diff := cmp.Diff(map[string][]int{"a": {2}}, r.snapshot()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// testLostHolder has a process that disappears while it handles events.
func testLostHolder(t *testing.T, where *testServer) {
	t.Helper()

	line := silence.NewProxy(t, where.server.Address)
	topic, r := newTopic(t), newRecorder(t)
	gone, stays := mustOpen(t, where.newFileConfig(t, strings.Replace(where.newURL(user), where.server.Address, line.Address, 1))), where.openBroker(t)
	begun, free := make(chan struct{}, 100), make(chan struct{})

	subscribe(t, gone, topic, "adapter", func(context.Context, cloudevents.Event) error {
		begun <- struct{}{}
		<-free

		return errHandler
	})
	t.Cleanup(sync.OnceFunc(func() { close(free) }))
	publish(t, stays, topic, newEvent(t, "a", 1))
	publish(t, stays, topic, newEvent(t, "a", 2))
	publish(t, stays, topic, newEvent(t, "b", 1))
	<-begun
	<-begun

	startSubscription(t, stays, topic, "adapter", r.handle)
	line.Close()
	timing.WaitUntil(t, "another process handles the events", func() bool {
		got := r.snapshot()

		return len(got["a"]) >= 2 && len(got["b"]) >= 1
	})

	if got := r.snapshot()["a"]; got[len(got)-1] != 2 {
		t.Errorf("numbers of the events of a: %v", got)
	}
}

// testHandOver checks that a process that shuts down lets the next one begin only after its
// handlers have returned.
func testHandOver(t *testing.T, where *testServer) {
	t.Helper()

	topic := newTopic(t)
	item, two := where.openBroker(t), where.openBroker(t)
	begun, free := make(chan struct{}, 10), make(chan struct{})
	first, second := newRecorder(t), newRecorder(t)

	end := subscribe(t, item, topic, "adapter", func(ctx context.Context, e cloudevents.Event) error {
		begun <- struct{}{}
		<-free

		return first.handle(ctx, e)
	})
	startSubscription(t, two, topic, "adapter", second.handle)
	publish(t, two, topic, newEvent(t, "a", 1))
	<-begun

	want := []int{}

	for number := 2; number <= 10; number++ {
		want = append(want, number)
		publish(t, two, topic, newEvent(t, "a", number))
	}

	ended := make(chan struct{})

	go func() {
		defer close(ended)

		end()
	}()

	for number := 11; number <= 20; number++ {
		want = append(want, number)
		publish(t, two, topic, newEvent(t, "a", number))
	}

	time.Sleep(quietPeriod)

	if got := second.snapshot(); len(got) != 0 {
		t.Errorf("the next process handled events while the first was working: %v", got)
	}

	close(free)
	<-ended
	timing.WaitUntil(t, "the next process continues", func() bool { return countEvents(second.snapshot()) >= len(want) })

	if diff := cmp.Diff(map[string][]int{"a": {1}}, first.snapshot()); diff != "" {
		t.Errorf("the first process: -want +got:\n%s", diff)
	}

	if diff := cmp.Diff(map[string][]int{"a": want}, second.snapshot()); diff != "" {
		t.Errorf("the next process: -want +got:\n%s", diff)
	}
}

func testRejections(t *testing.T, where *testServer) {
	t.Helper()

	b := where.openBroker(t)
	bare := cloudevents.NewEvent()
	big := newEvent(t, "a", 1)

	must.Do(t, big.SetData("text/plain", strings.Repeat("x", 600<<10)))

	nothing := func(context.Context, cloudevents.Event) error { return nil }

	for name, err := range map[string]error{
		"topic":        b.Publish(t.Context(), "a b", newEvent(t, "a", 1)),
		"wildcard":     b.Publish(t.Context(), "a.*", newEvent(t, "a", 1)),
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

	if err := b.Publish(t.Context(), "topic", newEvent(t, "a", 1)); err == nil {
		t.Error("Publish() on a closed broker succeeded")
	}

	if err := b.Subscribe(t.Context(), "topic", "a", nothing); err == nil {
		t.Error("Subscribe() on a closed broker succeeded")
	}
}

// testKill checks that published events are handled even if the broker is killed.
func testKill(t *testing.T, where *testServer) {
	t.Helper()

	const (
		numbers = 60
		few     = 20
	)

	b, topic, r := where.openBroker(t), newTopic(t), newRecorder(t)
	subscribe(t, b, topic, "adapter", r.handle)

	var sent sync.WaitGroup

	begun, dying := make(chan struct{}), make(chan struct{})

	sent.Go(func() {
		// Some events are sent before the broker is killed, some while it is down, and some after
		// that.
		for number := range numbers {
			if number == few {
				close(begun)
				<-dying
			}

			if number > few {
				time.Sleep(pollInterval)
			}

			for k := range 5 {
				e := newEvent(t, "key-"+strconv.Itoa(k), number)
				for b.Publish(context.Background(), topic, e) != nil {
					time.Sleep(pollInterval)
				}
			}
		}
	})

	<-begun
	close(dying)
	where.server.Kill(t)
	timing.WaitUntil(t, "the broker is unhealthy", func() bool { return b.Health(t.Context()) != nil })
	where.server.Restart(t)
	sent.Wait()

	timing.WaitUntil(t, "all events are handled", func() bool {
		got := r.snapshot()
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
	timing.WaitUntil(t, "the broker is healthy again", func() bool { return b.Health(t.Context()) == nil })
}

// testAlarm has a server that accepts no events because of an alarm. Publishing and closing end in time, checks
// name the cause, also for a process that has published nothing, and events are published after the alarm.
func testAlarm(t *testing.T, where *testServer) {
	t.Helper()

	const cause = "free memory or disk space"

	b, topic, r := where.openBroker(t), newTopic(t), newRecorder(t)
	subscribe(t, b, topic, "adapter", r.handle)
	must.Do(t, b.CheckPublish(t.Context(), topic))

	where.server.SetAlarm(t, true)
	t.Cleanup(func() { where.server.SetAlarm(t, false) })

	// The server tells its connections a moment later.
	timing.WaitUntil(t, "an event is not accepted", func() bool {
		err := b.CheckPublish(t.Context(), topic)

		return err != nil && strings.Contains(err.Error(), cause)
	})

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()

	requireError(t, b.Publish(ctx, topic, newEvent(t, "a", 1)), cause)
	requireError(t, b.Health(t.Context()), cause, "memory")
	requireError(t, b.CheckPublish(t.Context(), topic), cause)

	idle := where.openBroker(t)
	requireError(t, idle.CheckPublish(t.Context(), topic), cause)
	idle.Close()

	where.server.SetAlarm(t, false)
	waitUntilHealthy(t, b)
	timing.WaitUntil(t, "the broker can publish", func() bool { return b.CheckPublish(t.Context(), topic) == nil })
	publish(t, b, topic, newEvent(t, "a", 2))
	timing.WaitUntil(t, "the event is handled", func() bool { return slices.Contains(r.snapshot()["a"], 2) })

	// The checks deliver nothing.
	for _, number := range r.snapshot()["a"] {
		if number > 2 {
			t.Errorf("events %v", r.snapshot())
		}
	}
}

// onChannel runs a call on a channel with a timeout.
func onChannel(t *testing.T, where *testServer, calls func(*amqp.Channel) error) {
	t.Helper()

	conn, err := amqp.Dial(where.newURL(user))
	must.Do(t, err)

	late := time.AfterFunc(time.Minute, func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) })
	defer late.Stop()
	defer conn.CloseDeadline(time.Now().Add(time.Second))

	channel, err := conn.Channel()
	if err == nil {
		err = calls(channel)
	}
	must.Do(t, err)
}
