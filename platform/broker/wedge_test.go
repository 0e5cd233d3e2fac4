// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/test/brokers"
)

// TestKilledAtFirst: RabbitMQ is killed at once after the queues of a subscription were
// declared for the first time, which costs 3.10.8 one of them nearly each time.
func TestKilledAtFirst(t *testing.T) {
	t.Parallel()

	where := rabbitSite(t)
	b, topic, r := where.open(t, nil), topicOf(t), newRecord(t)

	persist(t, b, topic, r.handle)
	there(t, where.server, "hyperfleet:"+topic+":adapter:7")
	where.server.Kill(t)
	where.server.Restart(t)
	reaches(t, b, topic, r)
}

// TestLostQueue: a queue that had events is lost. It is not deleted for somebody, and who
// asks is told its name.
func TestLostQueue(t *testing.T) {
	t.Parallel()

	const tries = 5

	where := rabbitSite(t)
	b, topic, r := where.open(t, nil), topicOf(t), newRecord(t)
	queue := "hyperfleet:" + topic + ":adapter:7"

	subscribe(t, b, topic, "adapter", r.handle)

	// It is made anew, and the server killed at once. Most times the server then knows of the
	// queue and does not have it; it may as well have all of it, or know nothing of it.
	for try := 1; ; try++ {
		remove(t, where.server, queue)
		there(t, where.server, queue)
		where.server.Kill(t)
		where.server.Restart(t)

		if !answers(t, where.server, queue) {
			break
		}

		reaches(t, b, topic, r)

		if try == tries {
			t.Skip("this RabbitMQ does not forget queues")
		}
	}

	ill(t, b, "queue "+queue+" of RabbitMQ does not work", "rabbitmqctl delete_queue")
	remove(t, where.server, queue)
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
				time.Sleep(100 * time.Millisecond)
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

				time.Sleep(50 * time.Millisecond)
			}

			return false
		})
	}
}

// onChannel calls on a channel, and gives up after a while.
func onChannel(t *testing.T, server *brokers.Server, calls func(*amqp.Channel) error) error {
	t.Helper()

	conn, err := amqp.Dial(server.URL)
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
func there(t *testing.T, server *brokers.Server, queue string) {
	t.Helper()
	eventually(t, "there is queue "+queue, func() bool {
		return onChannel(t, server, func(channel *amqp.Channel) error {
			_, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)

			return err
		}) == nil
	})
}

func remove(t *testing.T, server *brokers.Server, queue string) {
	t.Helper()

	if err := onChannel(t, server, func(channel *amqp.Channel) error {
		_, err := channel.QueueDelete(queue, false, false, false)

		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// answers says whether a queue can be consumed from. One that the server knows nothing of is
// about to be made by its subscriber.
func answers(t *testing.T, server *brokers.Server, queue string) (does bool) {
	t.Helper()
	eventually(t, "the server knows queue "+queue, func() bool {
		err := onChannel(t, server, func(channel *amqp.Channel) error {
			_, err := channel.Consume(queue, "", false, false, false, false, nil)

			return err
		})
		does = err == nil
		said, ok := errors.AsType[*amqp.Error](err)

		return !ok || said.Code != amqp.NotFound
	})

	return does
}
