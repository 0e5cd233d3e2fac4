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
)

// TestRabbitMQ checks the guarantees that only RabbitMQ gives. The server needs seconds of
// processor time to start, so all tests share one. Tests that kill it run first, while it has
// little to recover. The other tests run in parallel.
func TestRabbitMQ(t *testing.T) {
	t.Parallel()

	where := &site{server: brokers.StartRabbitMQ(t, users()...)}
	where.conf = common()
	where.conf.Type = platform.BrokerRabbitMQ
	where.conf = where.inFile(t, where.as(user))

	t.Run("it is killed", func(t *testing.T) { testKill(t, where) })

	// More tests at a time than this take so much of two cores that the server does not respond in time.
	const atOnce = 3

	running := make(chan struct{}, atOnce)

	for name, test := range map[string]func(*testing.T, *site){
		"beside upstream's programs":                            testUpstream,
		"dead letters":                                          func(t *testing.T, where *site) { t.Helper(); testDeadLetters(t, where.open(t)) },
		"what is no event":                                      func(t *testing.T, where *site) { t.Helper(); testMalformed(t, where.open(t)) },
		"the next one begins when the last one is done":         testHandOver,
		"events of a holder that is gone are another's":         testLostHolder,
		"a closed broker ends when the last one is done":        testClose,
		"a closed broker takes nothing, and bad names are told": testRefusals,
		"the least permissions":                                 testLeastRights,
		"another host":                                          testAnotherHost,
		"passwords change":                                      testRotation,
		"permissions go":                                        testPermissions,
		"TLS":                                                   testTLS,
		"client certificates":                                   testClientCertificate,
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
// which may have created them before. Each program can then replace the other.
func testUpstream(t *testing.T, where *site) {
	t.Helper()

	for _, quorum := range []bool{false, true} {
		conf := where.conf
		conf.RabbitMQ.Quorum = quorum
		b, topic, r := opened(t, conf), topicOf(t), newRecord(t)

		// This is what upstream's subscriber does, with another type of exchange than ours.
		onChannel(t, where, func(channel *amqp.Channel) error {
			_, err := channel.QueueDeclare(topic+"-adapter", true, false, false, false, nil)

			return errors.Join(err, channel.ExchangeDeclare(topic, amqp.ExchangeFanout, true, false, false, false, nil),
				channel.QueueBind(topic+"-adapter", "", topic, false, nil))
		})

		end := subscribe(t, b, topic, "adapter", r.handle)

		onChannel(t, where, func(channel *amqp.Channel) error {
			return channel.PublishWithContext(t.Context(), topic, "", false, false,
				amqp.Publishing{Body: []byte(upstreamEvent), Headers: amqp.Table{"_watermill_message_uuid": "u1"}})
		})
		eventually(t, "upstream's event is handled", func() bool { return slices.Contains(r.copy()["c1"], 4) })
		end()

		// Upstream's subscriber receives our events.
		publish(t, b, topic, event(t, "ours", 7))
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

			return errors.New("it did not come")
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
			publish(t, b, topic, event(t, key, number))
			want[key] = append(want[key], number)
		}
	}

	return want
}

// once removes duplicates: a message that RabbitMQ confirms too late is published again before any
// other message.
func once(got map[string][]int) map[string][]int {
	for key, numbers := range got {
		got[key] = slices.Compact(numbers)
	}

	return got
}

// testFanOut checks that every subscription receives all events, in order by key.
func testFanOut(t *testing.T, b *broker.Broker) {
	t.Helper()

	topic := topicOf(t)
	first, second := newRecord(t), newRecord(t)
	subscribe(t, b, topic, "first", first.handle)
	subscribe(t, b, topic, "second.b", second.handle)

	want := publishAll(t, b, topic)

	for name, r := range map[string]*record{"first": first, "second": second} {
		eventually(t, name+" has all", func() bool { return total(once(r.copy())) >= keys*perKey })

		if diff := cmp.Diff(want, once(r.copy())); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}

		if r.most < 2 {
			t.Errorf("%s: never two keys at once", name)
		}
	}
}

// testClose checks that a subscription ends when its broker is closed, and that events that are
// acknowledged then are not delivered again.
func testClose(t *testing.T, where *site) {
	t.Helper()

	b, topic, r := where.open(t), topicOf(t), newRecord(t)
	testWaits(t, b, topic, func(end func()) {
		b.Close()
		end()
	})

	if err := b.Health(t.Context()); err == nil {
		t.Error("a closed broker is healthy")
	}

	next := where.open(t)
	start(t, next, topic, "adapter", r.handle)
	publish(t, next, topic, event(t, "a", 2))
	eventually(t, "the next event is handled", func() bool { return total(r.copy()) > 0 })

	if diff := cmp.Diff(map[string][]int{"a": {2}}, r.copy()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// testLostHolder has a process that disappears while it handles events.
func testLostHolder(t *testing.T, where *site) {
	t.Helper()

	line := forward(t, where.server.Address)
	topic, r := topicOf(t), newRecord(t)
	gone, stays := opened(t, where.inFile(t, strings.Replace(where.as(user), where.server.Address, line.address, 1))), where.open(t)
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

// testHandOver checks that a process that shuts down lets the next one begin only after its
// handlers have returned.
func testHandOver(t *testing.T, where *site) {
	t.Helper()

	topic := topicOf(t)
	item, two := where.open(t), where.open(t)
	begun, free := make(chan struct{}, 10), make(chan struct{})
	first, second := newRecord(t), newRecord(t)

	end := subscribe(t, item, topic, "adapter", func(ctx context.Context, e cloudevents.Event) error {
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

	time.Sleep(quiet)

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

	b := where.open(t)
	bare := cloudevents.NewEvent()
	big := event(t, "a", 1)

	must(t, big.SetData("text/plain", strings.Repeat("x", 600<<10)))

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

// testKill checks that published events are handled even if the broker is killed.
func testKill(t *testing.T, where *site) {
	t.Helper()

	const (
		numbers = 60
		few     = 20
	)

	b, topic, r := where.open(t), topicOf(t), newRecord(t)
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
	close(dying)
	where.server.Kill(t)
	eventually(t, "the broker is said to be ill", func() bool { return b.Health(t.Context()) != nil })
	where.server.Restart(t)
	sent.Wait()

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

// onChannel runs a call on a channel with a timeout.
func onChannel(t *testing.T, where *site, calls func(*amqp.Channel) error) {
	t.Helper()

	conn, err := amqp.Dial(where.as(user))
	must(t, err)

	late := time.AfterFunc(time.Minute, func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) })
	defer late.Stop()
	defer conn.CloseDeadline(time.Now().Add(time.Second))

	channel, err := conn.Channel()
	if err == nil {
		err = calls(channel)
	}
	must(t, err)
}
