// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const (
	// rabbitMinPause and rabbitMaxPause are before a consumer is made anew.
	rabbitMinPause = 200 * time.Millisecond
	rabbitMaxPause = 5 * time.Second
	// rabbitStandby is how often a replica asks for a queue that another one has.
	rabbitStandby     = time.Second
	rabbitDeadLetters = 10000
	// rabbitDeliveries is after how many lost consumers RabbitMQ itself gives a message of a
	// quorum queue up: never before we do (RabbitMQ 4 has 20 by default).
	rabbitDeliveries = 1000
	deadKept         = 7 * 24 * time.Hour
)

var (
	errLost = errors.New("consumer of RabbitMQ lost")
	// errStandby is of a queue that another replica has.
	errStandby = errors.New("another replica consumes the queue")
)

// rabbitConsumer is a subscription in this process.
type rabbitConsumer struct {
	*Broker

	into  *Queue
	queue string
	// begun: it has had the queue, or has stood by for it.
	begun bool
	pause time.Duration
}

// consume puts in line what is published to the topic from the first time on that the
// subscription was made, and reconnects by itself, until ctx ends: what is not acked then is
// delivered again. An error: it could not begin.
func (b *Broker) consume(ctx context.Context, into *Queue) error {
	c := &rabbitConsumer{Broker: b, into: into, queue: into.Topic + "-" + into.Subscription, pause: rabbitMinPause}
	defer c.trouble(nil)

	for {
		err := c.over(ctx)

		switch {
		case ctx.Err() != nil:
			return nil
		case !c.begun:
			return err
		case !errors.Is(err, errLost):
			c.trouble(fmt.Errorf("consume queue %s from RabbitMQ: %w", c.queue, err))
		}

		c.into.Log.Warn("consume from RabbitMQ: it is tried again", "error", err)

		if retry.Pause(ctx, clock.RealClock{}, c.pause) != nil {
			return nil
		}

		c.pause = min(2*c.pause, rabbitMaxPause)
	}
}

// trouble notes what keeps it from the queue; nil: nothing any more.
func (c *rabbitConsumer) trouble(err error) { c.troubles.note(fmt.Sprintf("consume %p", c), err) }

// over consumes over one connection, until that is lost or ctx ends.
func (c *rabbitConsumer) over(ctx context.Context) error {
	conn, err := c.access.dial()
	if err != nil {
		return err
	}
	defer hangUp(conn)

	defer context.AfterFunc(ctx, func() { hangUp(conn) })()

	channel, from, err := c.have(ctx, conn)
	if err != nil {
		return c.access.explain(err)
	}

	c.into.Log.Info("this replica has the queue of RabbitMQ")

	for d := range from {
		c.into.take(d.Body, triesOf(d), func() error { return d.Ack(false) }, func() bool { return !channel.IsClosed() })
	}

	return errLost
}

// have consumes the queue, which it makes, as soon as no other replica does.
func (c *rabbitConsumer) have(
	ctx context.Context, conn *amqp.Connection,
) (channel *amqp.Channel, from <-chan amqp.Delivery, err error) {
	if err := guarded(conn, func() error { return c.prepare(conn) }); err != nil {
		return nil, nil, err
	}

	for standby := false; ; standby = true {
		err = guarded(conn, func() (err error) {
			if channel, err = openChannel(conn); err == nil {
				from, err = c.begin(channel)
			}

			return err
		})
		if err != nil && !errors.Is(err, errStandby) {
			return nil, nil, err
		}

		c.begun, c.pause = true, rabbitMinPause
		c.trouble(nil)

		if err == nil {
			return channel, from, nil
		}

		if !standby {
			c.into.Log.Info("another replica has the queue of RabbitMQ: this one stands by")
		}

		if err := retry.Pause(ctx, clock.RealClock{}, rabbitStandby); err != nil {
			return nil, nil, err
		}
	}
}

// prepare declares exchanges and queues that are not there.
func (c *rabbitConsumer) prepare(conn *amqp.Connection) error {
	var arguments amqp.Table
	if c.access.Quorum {
		arguments = amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": rabbitDeliveries}
	}

	topic := c.into.Topic
	if err := c.bound(conn, c.exchange(topic), c.queue, arguments); err != nil || strings.HasSuffix(topic, DeadLetterSuffix) {
		return err
	}

	// Where the topic's dead letters stay for people to look at.
	dead := topic + DeadLetterSuffix

	return c.bound(conn, dead, dead, amqp.Table{
		"x-max-length": rabbitDeadLetters, "x-overflow": "drop-head", "x-message-ttl": deadKept.Milliseconds(),
	})
}

// bound sees that a queue is there and gets what the exchange is sent.
func (c *rabbitConsumer) bound(conn *amqp.Connection, exchange, queue string, arguments amqp.Table) error {
	if err := ensureExchange(conn, exchange, c.access.ExchangeType); err != nil {
		return err
	}

	err := ensure(conn, func(channel *amqp.Channel, passive bool) error {
		declare := channel.QueueDeclare
		if passive {
			declare = channel.QueueDeclarePassive
		}

		_, err := declare(queue, true, false, false, false, arguments)

		return err
	})
	if err != nil {
		return fmt.Errorf("declare queue %s of RabbitMQ: %w", queue, err)
	}

	channel, err := openChannel(conn)
	if err != nil {
		return err
	}
	defer channel.Close() //nolint:errcheck // it has done its work

	if err := channel.QueueBind(queue, c.access.RoutingKey, exchange, false, nil); err != nil {
		return fmt.Errorf("bind queue %s of RabbitMQ: %w", queue, err)
	}

	return nil
}

// begin consumes. Nobody else may: the order of events is kept inside of a process.
func (c *rabbitConsumer) begin(channel *amqp.Channel) (<-chan amqp.Delivery, error) {
	if err := channel.Qos(c.access.PrefetchCount, 0, false); err != nil {
		return nil, fmt.Errorf("limit deliveries of RabbitMQ: %w", err)
	}

	from, err := channel.Consume(c.queue, "hyperfleet", false, true, false, false, nil)

	said, ok := errors.AsType[*amqp.Error](err)

	switch {
	case ok && said.Code == amqp.AccessRefused && strings.Contains(said.Reason, "exclusive use"):
		return nil, fmt.Errorf("%w: %s", errStandby, c.queue)
	case err != nil:
		return nil, fmt.Errorf("consume queue %s of RabbitMQ: %w", c.queue, err)
	default:
		return from, nil
	}
}

// triesOf is a count with quorum queues; others tell but that there was one.
func triesOf(d amqp.Delivery) int {
	const most = 1 << 20

	count, counted := d.Headers["x-delivery-count"].(int64)
	if !counted && d.Redelivered {
		count = 1
	}

	return int(min(max(count, 0), most))
}
