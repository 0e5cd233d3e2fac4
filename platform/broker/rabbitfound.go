// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/retry"
)

// A RabbitMQ that is killed within a second or so after it said that a quorum queue is there
// may have forgotten the name of the queue's log: it then starts an empty one that waits
// for ever for a leader. Declaring it works, consuming from it and publishing to it do not, and
// what was in it is lost (seen with 3.10.8; github.com/rabbitmq/rabbitmq-server/issues/15725
// says it of 4). So a new subscription has its queues first, then waits until their names
// are on disk, and only then gets what is published. An exchange that nobody publishes to
// marks that it is so: queues without that mark have never had an event, and are made
// anew when they don't answer. Queues with it are never deleted: they may as well wait for
// a node that has their events.

// rabbitSettle is for how long the queues of a new subscription wait for their names to be
// on disk. RabbitMQ saves them when none was added for half a second to a second.
const rabbitSettle = 3 * time.Second

// rabbitQueue is a queue of ours.
type rabbitQueue struct {
	name, key string
	arguments amqp.Table
}

// queues are those of the subscription, by part.
func (c *rabbitConsumer) queues() []rabbitQueue {
	out := make([]rabbitQueue, partitionCount)
	for part := range out {
		out[part] = rabbitQueue{
			name: c.mark() + ":" + strconv.Itoa(part), key: routingKey(c.topic, part),
			arguments: amqp.Table{
				"x-queue-type": "quorum", "x-single-active-consumer": true, "x-delivery-limit": rabbitDeliveries,
				"x-message-ttl": eventsKept.Milliseconds(), "x-expires": subscriptionKept.Milliseconds(),
			},
		}
	}

	return out
}

// deadLetters is the queue where the topic's dead letters stay for people to look at; none
// if they are the topic.
func (c *rabbitConsumer) deadLetters() []rabbitQueue {
	if strings.HasSuffix(c.topic, DeadLetterSuffix) {
		return nil
	}

	topic := c.topic + DeadLetterSuffix

	return []rabbitQueue{{name: c.over.exchange + ":" + topic, key: topic + ".*", arguments: amqp.Table{
		"x-queue-type": "quorum", "x-max-length": rabbitDeadLetters, "x-overflow": "drop-head",
		"x-message-ttl": deadKept.Milliseconds(),
	}}}
}

// mark is the exchange that says that the subscription gets what is published.
func (c *rabbitConsumer) mark() string {
	return strings.Join([]string{c.over.exchange, c.topic, c.subscription}, ":")
}

// declare gives the number of messages that wait in the queue.
func (q rabbitQueue) declare(channel *amqp.Channel) (int, error) {
	now, err := channel.QueueDeclare(q.name, true, false, false, false, q.arguments)
	if err != nil {
		return 0, fmt.Errorf("declare queue %s of RabbitMQ: %w", q.name, err)
	}

	return now.Messages, nil
}

func (q rabbitQueue) bind(channel *amqp.Channel, exchange string) error {
	if err := channel.QueueBind(q.name, q.key, exchange, false, nil); err != nil {
		return fmt.Errorf("bind queue %s of RabbitMQ: %w", q.name, err)
	}

	return nil
}

// rabbitGroup are queues that share a mark.
type rabbitGroup struct {
	mark   string
	queues []rabbitQueue
}

// found has a new subscription's queues made, and sees that they outlive the server. The
// queue of the dead letters is the topic's, has a mark of its own, and may be another
// subscription's work.
func (c *rabbitConsumer) found() error {
	if c.founded {
		return nil
	}

	groups := []rabbitGroup{{mark: c.mark(), queues: c.queues()}}
	for _, dead := range c.deadLetters() {
		groups = append(groups, rabbitGroup{mark: dead.name, queues: []rabbitQueue{dead}})
	}

	var fresh []rabbitGroup

	for _, group := range groups {
		known, err := c.marked(group.mark)
		if err != nil {
			return err
		}

		if !known {
			fresh = append(fresh, group)
		}
	}

	if len(fresh) > 0 {
		if err := c.foundGroups(fresh); err != nil {
			return err
		}
	}

	c.founded = true

	return nil
}

func (c *rabbitConsumer) foundGroups(groups []rabbitGroup) error {
	for _, group := range groups {
		for _, queue := range group.queues {
			if err := c.prove(group.mark, queue); err != nil {
				return err
			}
		}
	}

	if err := retry.Pause(c.ctx, clock.RealClock{}, c.over.settle); err != nil {
		return fmt.Errorf("wait for new queues of RabbitMQ: %w", err)
	}

	return c.once(func(channel *amqp.Channel) error {
		for _, group := range groups {
			if err := group.begin(channel, c.over.exchange); err != nil {
				return err
			}
		}

		return nil
	})
}

// begin has the queues get what is published, and says so.
func (g rabbitGroup) begin(channel *amqp.Channel, exchange string) error {
	for _, queue := range g.queues {
		if err := queue.bind(channel, exchange); err != nil {
			return err
		}
	}

	if err := channel.ExchangeDeclare(g.mark, amqp.ExchangeFanout, true, false, false, false, nil); err != nil {
		return fmt.Errorf("declare exchange %s of RabbitMQ: %w", g.mark, err)
	}

	return nil
}

// once calls on a channel of its own, with bounded time.
func (c *rabbitConsumer) once(calls func(*amqp.Channel) error) error {
	return c.link.guarded(func() error {
		channel, err := c.link.open(c.over.exchange)
		if err != nil {
			return err
		}

		err = calls(channel)
		_ = channel.Close()

		return err
	})
}

// marked says whether the mark is there.
func (c *rabbitConsumer) marked(mark string) (bool, error) {
	err := c.once(func(channel *amqp.Channel) error {
		return channel.ExchangeDeclarePassive(mark, amqp.ExchangeFanout, true, false, false, false, nil)
	})
	if said, ok := errors.AsType[*amqp.Error](err); ok && said.Code == amqp.NotFound {
		return false, nil
	}

	if err != nil {
		return false, fmt.Errorf("look for exchange %s of RabbitMQ: %w", mark, err)
	}

	return true, nil
}

// prove declares a queue without a mark and sees whether it answers. One that does not is
// made anew, once.
func (c *rabbitConsumer) prove(mark string, queue rabbitQueue) error {
	works, err := c.tryOut(queue)
	if works || !lost(err) {
		return err
	}

	// Another process may have had more luck with it in between.
	if known, err := c.marked(mark); err != nil || known {
		return err
	}

	c.over.log.Warn("a new queue of RabbitMQ does not work, and never had an event: it is made anew",
		"queue", queue.name, "error", err)

	if err := c.once(func(channel *amqp.Channel) error {
		_, err := channel.QueueDelete(queue.name, false, false, false)

		return err //nolint:wrapcheck // it is below
	}); err != nil {
		return fmt.Errorf("delete queue %s of RabbitMQ, which does not work: %w", queue.name, err)
	}

	_, err = c.tryOut(queue)

	return err
}

// lost says whether what consuming from a queue gave is what a queue without a leader
// gives: nothing, or an error inside of RabbitMQ.
func lost(err error) bool {
	said, ok := errors.AsType[*amqp.Error](err)

	return errors.Is(err, errNoAnswer) || ok && said.Code == amqp.InternalError
}

// tryOut declares a queue and consumes from it for a moment, which only a leader of it
// answers. The error may be of another thing than the queue, which then works as far as
// is known.
func (c *rabbitConsumer) tryOut(queue rabbitQueue) (works bool, err error) {
	works = true
	err = c.once(func(channel *amqp.Channel) error {
		held, err := queue.declare(channel)
		if err != nil {
			return err
		}

		if err := channel.Qos(1, 0, false); err != nil {
			return fmt.Errorf("limit deliveries of RabbitMQ: %w", err)
		}

		// One that holds something was bound by a program that knew no marks.
		works = held > 0

		if _, err := channel.Consume(queue.name, "", false, false, false, false, nil); err != nil {
			return fmt.Errorf("try out queue %s of RabbitMQ: %w", queue.name, err)
		}

		works = true

		return nil
	})

	return works, err
}
