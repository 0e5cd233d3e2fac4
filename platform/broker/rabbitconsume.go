// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/retry"
)

func (o *overRabbit) consume(ctx context.Context, topic, subscription string, into sink) (consumer, error) {
	c := &rabbitConsumer{
		over: o, topic: topic, subscription: subscription, into: into, link: o.newLink(), ended: make(chan struct{}),
	}
	c.ctx, c.end = context.WithCancel(context.WithoutCancel(ctx))

	// From then on it ends when the events in work are done.
	stay := context.AfterFunc(ctx, c.end)
	first, err := c.connect()

	if !stay() && err == nil {
		_ = first.channel.Close()
		err = ctx.Err()
	}

	if err != nil && !errors.Is(err, errStandby) {
		c.end()
		o.endLink(c.link)

		return nil, err
	}

	go c.run(first)

	return c, nil
}

// rabbitConsumer is a subscription in this process.
type rabbitConsumer struct {
	over                *overRabbit
	topic, subscription string
	into                sink
	link                *rabbitLink

	ctx   context.Context //nolint:containedctx // it lives as long as the consumer
	end   context.CancelFunc
	ended chan struct{}

	mu  sync.Mutex
	now *rabbitEpoch
}

// name of it among the troubles.
func (c *rabbitConsumer) name() string {
	return fmt.Sprintf("consume %s %s %p", c.topic, c.subscription, c)
}

// rabbitEpoch is the life of one channel. What was delivered in it can be acked in it
// alone, and is delivered again after it.
type rabbitEpoch struct {
	channel *amqp.Channel
	from    <-chan amqp.Delivery
	dead    atomic.Bool
}

// consumerTag names the one consumer of a channel.
const consumerTag = "hyperfleet"

// run takes deliveries, on a new channel whenever one is lost. Without an epoch another
// replica has the queue.
func (c *rabbitConsumer) run(epoch *rabbitEpoch) {
	defer close(c.ended)
	defer func() { c.over.troubles.over(c.name()) }()

	log := c.over.log.With("topic", c.topic, "subscription", c.subscription)

	for {
		if epoch == nil {
			log.Info("another replica has the queue of RabbitMQ: this one stands by")
		} else {
			for d := range epoch.from {
				c.into(rabbitDelivery{epoch: epoch, d: d})
			}

			if c.ctx.Err() != nil {
				return
			}

			epoch.dead.Store(true)
			_ = epoch.channel.Close()

			log.Warn("consumer of RabbitMQ lost: it is made anew")
		}

		if epoch = c.reconnect(); epoch == nil {
			return
		}

		log.Info("this replica has the queue of RabbitMQ")
	}
}

// reconnect tries until it is made to end; then it gives nil.
func (c *rabbitConsumer) reconnect() *rabbitEpoch {
	for pause := rabbitMinPause; ; pause = min(2*pause, rabbitMaxPause) {
		if err := retry.Pause(c.ctx, clock.RealClock{}, pause); err != nil {
			return nil
		}

		epoch, err := c.connect()

		switch {
		case err == nil && c.ctx.Err() != nil:
			// The one that quiet knew was the last.
			_ = epoch.channel.Close()

			return nil
		case err == nil:
			c.over.troubles.over(c.name())

			return epoch
		case errors.Is(err, errStandby):
			c.over.troubles.over(c.name())

			pause = rabbitStandby / 2 //nolint:mnd // it is doubled
		default:
			c.over.troubles.note(c.name(), fmt.Errorf("consume %s from RabbitMQ as %s: %w", c.topic, c.subscription, err), false)
			c.over.log.Warn("consume from RabbitMQ: it is tried again", "topic", c.topic, "subscription", c.subscription, "error", err)
		}
	}
}

// connect opens a channel, sees that there is what is needed, and consumes.
func (c *rabbitConsumer) connect() (*rabbitEpoch, error) {
	epoch := &rabbitEpoch{}

	err := c.link.guarded(func() error {
		if err := c.prepare(); err != nil {
			return err
		}

		var err error
		if epoch.channel, err = c.link.open(); err != nil {
			return err
		}

		if epoch.from, err = c.begin(epoch.channel); err != nil {
			_ = epoch.channel.Close()
		}

		return err
	})
	if err != nil {
		return nil, c.link.access.explain(err)
	}

	c.mu.Lock()
	c.now = epoch
	c.mu.Unlock()

	return epoch, nil
}

// prepare declares exchanges and queues that are not there. One that is there is used as it
// is: it may be of upstream's programs, or made by hand.
func (c *rabbitConsumer) prepare() error {
	layout := c.over.layout
	name, arguments := layout.queue(c.topic, c.subscription)

	if err := c.link.bound(layout.exchange(c.topic), layout.kind, layout.key, name, arguments); err != nil {
		return err
	}

	if strings.HasSuffix(c.topic, DeadLetterSuffix) {
		return nil
	}

	// Where the topic's dead letters stay for people to look at.
	dead := c.topic + DeadLetterSuffix

	return c.link.bound(dead, layout.kind, layout.key, dead, amqp.Table{
		"x-max-length": rabbitDeadLetters, "x-overflow": "drop-head", "x-message-ttl": deadKept.Milliseconds(),
	})
}

// begin consumes. Nobody else may: the order of events is kept inside of a process.
func (c *rabbitConsumer) begin(channel *amqp.Channel) (<-chan amqp.Delivery, error) {
	if err := channel.Qos(c.over.prefetch, 0, false); err != nil {
		return nil, fmt.Errorf("limit deliveries of RabbitMQ: %w", err)
	}

	queue, _ := c.over.layout.queue(c.topic, c.subscription)

	from, err := channel.Consume(queue, consumerTag, false, true, false, false, nil)

	said, ok := errors.AsType[*amqp.Error](err)
	if ok && said.Code == amqp.AccessRefused && strings.Contains(said.Reason, "exclusive use") {
		return nil, fmt.Errorf("%w: %s", errStandby, queue)
	}

	if err != nil {
		return nil, fmt.Errorf("consume queue %s of RabbitMQ: %w", queue, err)
	}

	return from, nil
}

func (c *rabbitConsumer) quiet() {
	c.end()

	c.mu.Lock()
	epoch := c.now
	c.mu.Unlock()

	if epoch != nil {
		// A channel that is lost delivers no more.
		_ = epoch.channel.Cancel(consumerTag, false)
	}

	<-c.ended
}

func (c *rabbitConsumer) close() {
	// What is not acked goes back to its queue.
	c.over.endLink(c.link)
}

type rabbitDelivery struct {
	epoch *rabbitEpoch
	d     amqp.Delivery
}

func (d rabbitDelivery) body() []byte { return d.d.Body }

// tries is a count with quorum queues; others tell but that there was one.
func (d rabbitDelivery) tries() int {
	const most = 1 << 20

	count, counted := d.d.Headers["x-delivery-count"].(int64)
	if !counted && d.d.Redelivered {
		count = 1
	}

	return int(min(max(count, 0), most))
}

func (d rabbitDelivery) ack() error { return d.d.Ack(false) }

// release does nothing: the connection is closed, and gives all back in its order.
func (d rabbitDelivery) release()    {}
func (d rabbitDelivery) alive() bool { return !d.epoch.dead.Load() }
