// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"fmt"
	"strconv"
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

	if err != nil {
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
	// founded says that the queues are known to have a mark.
	founded bool

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
	tags    []string
	from    []<-chan amqp.Delivery
	// asked is the queue that was asked for and has not answered yet.
	asked string
	dead  atomic.Bool
	// ending says that its consumers were cancelled on purpose.
	ending atomic.Bool
}

// quiet ends deliveries.
func (e *rabbitEpoch) quiet() {
	e.ending.Store(true)

	for _, tag := range e.tags {
		// A channel that is lost delivers no more.
		_ = e.channel.Cancel(tag, false)
	}
}

// run takes deliveries, on a new channel whenever one is lost.
func (c *rabbitConsumer) run(epoch *rabbitEpoch) {
	defer close(c.ended)
	defer func() { c.over.troubles.over(c.name()) }()

	for {
		epoch.pump(c.into)

		if c.ctx.Err() != nil {
			return
		}

		epoch.dead.Store(true)
		_ = epoch.channel.Close()
		c.over.log.Warn("consumer of RabbitMQ lost: it is made anew", "topic", c.topic, "subscription", c.subscription)

		if epoch = c.reconnect(); epoch == nil {
			return
		}

		c.over.log.Info("consumer of RabbitMQ made anew", "topic", c.topic, "subscription", c.subscription)
	}
}

// reconnect tries until it is made to end; then it gives nil.
func (c *rabbitConsumer) reconnect() *rabbitEpoch {
	for pause := rabbitMinPause; ; pause = min(2*pause, rabbitMaxPause) {
		if err := retry.Pause(c.ctx, clock.RealClock{}, pause); err != nil {
			return nil
		}

		epoch, err := c.connect()
		if err == nil && c.ctx.Err() != nil {
			// The one that quiet knew was the last.
			_ = epoch.channel.Close()

			return nil
		}

		if err == nil {
			c.over.troubles.over(c.name())

			return epoch
		}

		c.over.troubles.keep(c.name(), fmt.Errorf("consume %s from RabbitMQ as %s: %w", c.topic, c.subscription, err))
		c.over.log.Warn("consume from RabbitMQ: it is tried again", "topic", c.topic, "subscription", c.subscription, "error", err)
	}
}

// connect opens a channel, declares what is needed, and consumes.
func (c *rabbitConsumer) connect() (*rabbitEpoch, error) {
	if err := c.found(); err != nil {
		return nil, c.link.access.explain(err)
	}

	epoch := &rabbitEpoch{}

	err := c.link.guarded(func() error {
		var err error
		if epoch.channel, err = c.link.open(c.over.exchange); err != nil {
			return err
		}

		if err := c.fill(epoch); err != nil {
			_ = epoch.channel.Close()

			return err
		}

		return nil
	})
	if epoch.asked != "" && lost(err) {
		return nil, fmt.Errorf("queue %s of RabbitMQ does not work: if all nodes of RabbitMQ are up and that stays so, "+
			"what was in it is lost; delete it then, as with rabbitmqctl delete_queue, and it is made anew: %w", epoch.asked, err)
	}

	if err != nil {
		return nil, c.link.access.explain(err)
	}

	c.mu.Lock()
	c.now = epoch
	c.mu.Unlock()

	return epoch, nil
}

func (c *rabbitConsumer) fill(epoch *rabbitEpoch) error {
	if err := epoch.channel.Qos(c.over.prefetch, 0, false); err != nil {
		return fmt.Errorf("limit deliveries of RabbitMQ: %w", err)
	}

	for _, queue := range c.deadLetters() {
		if _, err := queue.declare(epoch.channel); err != nil {
			return err
		}

		if err := queue.bind(epoch.channel, c.over.exchange); err != nil {
			return err
		}
	}

	for part, queue := range c.queues() {
		if _, err := queue.declare(epoch.channel); err != nil {
			return err
		}

		if err := queue.bind(epoch.channel, c.over.exchange); err != nil {
			return err
		}

		tag := strconv.Itoa(part)

		epoch.asked = queue.name

		from, err := epoch.channel.Consume(queue.name, tag, false, false, false, false, nil)
		if err != nil {
			return fmt.Errorf("consume queue %s of RabbitMQ: %w", queue.name, err)
		}

		epoch.asked = ""
		epoch.tags, epoch.from = append(epoch.tags, tag), append(epoch.from, from)
	}

	return nil
}

// pump hands on deliveries until there are none any more.
func (e *rabbitEpoch) pump(into sink) {
	var parts sync.WaitGroup

	for _, from := range e.from {
		parts.Go(func() {
			for d := range from {
				into(rabbitDelivery{epoch: e, d: d})
			}

			// RabbitMQ cancels a consumer by itself when its queue goes: the others are
			// then made anew with it.
			if !e.ending.Load() {
				_ = e.channel.Close()
			}
		})
	}

	parts.Wait()
}

func (c *rabbitConsumer) quiet() {
	c.end()

	c.mu.Lock()
	epoch := c.now
	c.mu.Unlock()

	epoch.quiet()
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
func (d rabbitDelivery) id() string   { return "" }

func (d rabbitDelivery) tries() int {
	const most = 1 << 20

	count, _ := d.d.Headers["x-delivery-count"].(int64)

	return int(min(max(count, 0), most))
}

func (d rabbitDelivery) ack() error { return d.d.Ack(false) }

// release does nothing: the connection is closed, and gives all back in its order.
func (d rabbitDelivery) release()    {}
func (d rabbitDelivery) extend()     {}
func (d rabbitDelivery) alive() bool { return !d.epoch.dead.Load() }
