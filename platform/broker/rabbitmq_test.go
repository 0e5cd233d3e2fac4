// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
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

	d := startDoor(t, platform.BrokerRabbitMQ, brokers.Setup{Users: users()})
	where := &site{conf: d.inFile(t, d.as(user+":"+secret)), server: d.server, silence: quiet}
	lasting := *where
	lasting.lasting = true

	t.Run("it is killed", func(t *testing.T) { testKilledRabbit(t, &lasting) })
	t.Run("a queue is lost", func(t *testing.T) { testLostQueue(t, &lasting) })
	testPlain(t, d)
	testPromises(t, where)
}

// testKilledRabbit: RabbitMQ is killed while there are events, and at once after the queues of
// another subscription were declared for the first time, which costs 3.10.8 one of them.
func testKilledRabbit(t *testing.T, where *site) {
	t.Helper()

	b, topic, r := where.open(t, nil), topicOf(t), newRecord(t)
	queue := "hyperfleet:" + topic + ":adapter:7"

	testKill(t, where, func(t *testing.T) {
		t.Helper()
		persist(t, b, topic, r.handle)
		there(t, where, queue)
	}, func(t *testing.T) {
		t.Helper()
		where.server.Forget(t, queue)
	})
	reaches(t, b, topic, r)
}

// testLostQueue: a queue that had events is lost. It is not deleted for somebody, and who
// asks is told its name.
func testLostQueue(t *testing.T, where *site) {
	t.Helper()

	b, topic, r := where.open(t, nil), topicOf(t), newRecord(t)
	queue := "hyperfleet:" + topic + ":adapter:7"

	subscribe(t, b, topic, "adapter", r.handle)
	reaches(t, b, topic, r)

	where.server.Kill(t)
	where.server.Forget(t, queue)
	where.server.Restart(t)

	ill(t, b, "queue "+queue+" of RabbitMQ does not work", "rabbitmqctl delete_queue")
	remove(t, where, queue)
	reaches(t, b, topic, r)
	well(t, b)
}

// persist subscribes again whenever that fails, as a program does that is started anew.
func persist(t *testing.T, b broker.Broker, topic string, handle broker.Handler) {
	t.Helper()

	var running sync.WaitGroup

	ctx, cancel := context.WithCancel(context.Background())

	running.Go(func() {
		for ctx.Err() == nil {
			if err := b.Subscribe(ctx, topic, "adapter", handle); err != nil {
				t.Log(err)
				time.Sleep(lookAt)
			}
		}
	})

	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

// reaches waits until events of all parts are published and handled.
func reaches(t *testing.T, b broker.Broker, topic string, r *record) {
	t.Helper()

	number := 0

	for _, key := range broker.PartKeys() {
		eventually(t, "an event of "+key+" is handled", func() bool {
			number++

			if b.Publish(t.Context(), topic, event(t, key, number)) != nil {
				return false
			}

			// It is not there as long as nobody has subscribed.
			for range 20 {
				if slices.Contains(r.copy()[key], number) {
					return true
				}

				time.Sleep(lookAt)
			}

			return false
		})
	}
}

// onChannel calls on a channel, and gives up after a while.
func onChannel(t *testing.T, where *site, calls func(*amqp.Channel) error) error {
	t.Helper()

	address, err := os.ReadFile(where.conf.RabbitMQ.URLFile)
	if err != nil {
		return err
	}

	conn, err := amqp.Dial(strings.TrimSpace(string(address)))
	if err != nil {
		return err
	}

	late := time.AfterFunc(20*time.Second, func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) })
	defer late.Stop()
	defer conn.CloseDeadline(time.Now().Add(time.Second))

	channel, err := conn.Channel()
	if err != nil {
		return err
	}

	return calls(channel)
}

// there waits for a queue to be declared.
func there(t *testing.T, where *site, queue string) {
	t.Helper()
	eventually(t, "there is queue "+queue, func() bool {
		return onChannel(t, where, func(channel *amqp.Channel) error {
			_, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)

			return err
		}) == nil
	})
}

func remove(t *testing.T, where *site, queue string) {
	t.Helper()

	if err := onChannel(t, where, func(channel *amqp.Channel) error {
		_, err := channel.QueueDelete(queue, false, false, false)

		return err
	}); err != nil {
		t.Fatal(err)
	}
}
