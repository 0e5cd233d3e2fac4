// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/test/brokers"
)

// TestRabbitMQ holds RabbitMQ to what all brokers promise, and to what it has to do beside
// that. It takes seconds to start, so what kills it comes first, while there is not much for
// it to find again, and what asks nothing of it runs beside each other on what is left.
func TestRabbitMQ(t *testing.T) {
	t.Parallel()

	d := startDoor(t, brokers.Setup{Users: users()})
	where := &site{conf: d.inFile(t, d.as(user+":"+secret)), server: d.server, silence: quiet}

	t.Run("it is killed", func(t *testing.T) { testKill(t, where, func(*testing.T) {}, func(*testing.T) {}) })
	t.Run("beside upstream's programs", func(t *testing.T) { testUpstream(t, where) })
	testPlain(t, d)
	testPromises(t, where, alone())
	testPromises(t, where, shared())
}

// upstreamEvent is one as upstream's Sentinel sends it: without partitionkey and subject.
const upstreamEvent = `{"specversion":"1.0","id":"u1","source":"hyperfleet-sentinel",
"type":"com.redhat.hyperfleet.cluster.reconcile","datacontenttype":"application/json","data":{"id":"c1","generation":4}}`

// testUpstream: exchange, queue and keys are those of upstream's programs, which may have
// made them before, so that each may take the place of the other.
func testUpstream(t *testing.T, where *site) {
	t.Helper()

	for _, quorum := range []bool{false, true} {
		b := where.open(t, func(c *platform.Broker) { c.RabbitMQ.Quorum = quorum })
		topic, r := topicOf(t), newRecord(t)

		// As upstream's subscriber does, with another type of exchange than ours.
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

		// What is ours, upstream's subscriber is given.
		publish(t, b, topic, event(t, "ours", 7))
		onChannel(t, where, func(channel *amqp.Channel) error {
			from, err := channel.Consume(topic+"-adapter", "", false, false, false, false, nil)
			if err != nil {
				return err
			}

			for got := range from {
				for name, value := range got.Headers {
					// Upstream's library refuses a message with another kind of header.
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

// reaches waits until an event is published and handled.
func reaches(t *testing.T, b *broker.Broker, topic string, r *record) {
	t.Helper()

	number := 0

	eventually(t, "an event is handled", func() bool {
		number++

		if b.Publish(t.Context(), topic, event(t, "reached", number)) != nil {
			return false
		}

		// It is not there as long as nobody has subscribed.
		for range 20 {
			if slices.Contains(r.copy()["reached"], number) {
				return true
			}

			time.Sleep(lookAt)
		}

		return false
	})
}

// onChannel calls on a channel, and gives up after a while.
func onChannel(t *testing.T, where *site, calls func(*amqp.Channel) error) {
	t.Helper()

	address, err := os.ReadFile(where.conf.RabbitMQ.URLFile)
	if err != nil {
		t.Fatal(err)
	}

	conn, err := amqp.Dial(strings.TrimSpace(string(address)))
	if err != nil {
		t.Fatal(err)
	}

	late := time.AfterFunc(time.Minute, func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) })
	defer late.Stop()
	defer conn.CloseDeadline(time.Now().Add(time.Second))

	channel, err := conn.Channel()
	if err == nil {
		err = calls(channel)
	}

	if err != nil {
		t.Fatal(err)
	}
}
