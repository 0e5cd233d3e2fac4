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
	// minReconnectDelay and maxReconnectDelay limit the delay before a consumer connects again.
	minReconnectDelay = 200 * time.Millisecond
	maxReconnectDelay = 5 * time.Second
	// standbyInterval is how often a replica tries to consume a queue that another replica
	// consumes.
	standbyInterval = time.Second
	maxDeadLetters  = 10000
	deadLetterTTL   = 7 * 24 * time.Hour
	// maxStartTime is how long a subscription tries to start.
	maxStartTime = time.Minute
)

var (
	errNotStarted = errors.New("the subscription has not started yet")
	errLost       = errors.New("the consumer of RabbitMQ was lost")
	// errStandby means that another replica consumes the queue.
	errStandby = errors.New("another replica consumes the queue")
)

// rabbitConsumer is one subscription of this process.
type rabbitConsumer struct {
	*Broker

	localQueue *Queue
	queueName  string
	// hasStarted is true after the consumer has consumed the queue, or waited for another replica.
	hasStarted bool
	delay      time.Duration
}

// consume adds the messages of a subscription to the local queue, and reconnects after errors,
// until ctx ends. The broker delivers unacknowledged messages again. The subscription receives all
// messages that are published after its queue was first created. consume returns an error if the server
// rejects the first attempt, or if no attempt succeeds within maxStartTime.
func (b *Broker) consume(ctx context.Context, into *Queue) error {
	c := &rabbitConsumer{
		Broker: b, localQueue: into, queueName: into.Topic + "-" + into.Subscription, delay: minReconnectDelay,
	}
	defer c.setProblem(nil)

	c.setProblem(fmt.Errorf("queue %s of RabbitMQ: %w", c.queueName, errNotStarted))

	for begin := time.Now(); ; {
		err := c.consumeOnce(ctx)

		switch {
		case ctx.Err() != nil:
			return nil
		case !c.hasStarted && (c.access.isRejected(err) || time.Since(begin) > maxStartTime):
			return err
		case !errors.Is(err, errLost):
			c.setProblem(fmt.Errorf("consume queue %s from RabbitMQ: %w", c.queueName, err))
		}

		c.localQueue.Log.Warn("could not consume from RabbitMQ: retry later", "error", err)

		if retry.Sleep(ctx, clock.RealClock{}, c.delay) != nil {
			return nil
		}

		c.delay = min(2*c.delay, maxReconnectDelay)
	}
}

// setProblem records why the queue cannot be consumed. Nil means that it can.
func (c *rabbitConsumer) setProblem(err error) { c.problems.set(fmt.Sprintf("consume %p", c), err) }

// consumeOnce consumes over one connection until the connection is lost or ctx ends.
func (c *rabbitConsumer) consumeOnce(ctx context.Context) error {
	conn, err := c.access.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.close()

	defer context.AfterFunc(ctx, conn.close)()

	channel, deliveries, err := c.acquireQueue(ctx, conn)
	if err != nil {
		return c.access.explain(err)
	}

	c.localQueue.Log.Info("this replica consumes the queue of RabbitMQ")

	for d := range deliveries {
		c.localQueue.addDelivery(d.Body, countAttempts(d),
			func() error { return d.Ack(false) }, func() bool { return !channel.IsClosed() })
	}

	return errLost
}

// acquireQueue declares the queue, waits until no other replica consumes it, and starts to consume
// it.
func (c *rabbitConsumer) acquireQueue(
	ctx context.Context, conn *connection,
) (channel *amqp.Channel, deliveries <-chan amqp.Delivery, err error) {
	if err := conn.call(ctx, func() error { return c.declareQueues(conn) }); err != nil {
		return nil, nil, err
	}

	for isStandby := false; ; isStandby = true {
		err = conn.call(ctx, func() (err error) {
			if channel, err = openChannel(conn); err == nil {
				deliveries, err = c.startConsuming(channel)
			}

			return err
		})
		if err != nil && !errors.Is(err, errStandby) {
			return nil, nil, err
		}

		c.hasStarted, c.delay = true, minReconnectDelay
		c.setProblem(nil)

		if err == nil {
			return channel, deliveries, nil
		}

		if !isStandby {
			c.localQueue.Log.Info("another replica consumes the queue of RabbitMQ: wait for it to end")
		}

		if err := retry.Sleep(ctx, clock.RealClock{}, standbyInterval); err != nil {
			return nil, nil, err
		}
	}
}

// declareQueues declares the exchanges and queues that are missing.
func (c *rabbitConsumer) declareQueues(conn *connection) error {
	topic := c.localQueue.Topic

	err := c.declareBoundQueue(conn, c.exchangeName(topic), c.queueName, nil)
	if err != nil || strings.HasSuffix(topic, DeadLetterSuffix) {
		return err
	}

	// This queue keeps the topic's dead letters, so that people can look at them.
	deadLetters := topic + DeadLetterSuffix

	return c.declareBoundQueue(conn, deadLetters, deadLetters, amqp.Table{
		"x-max-length": maxDeadLetters, "x-overflow": "drop-head", "x-message-ttl": deadLetterTTL.Milliseconds(),
	})
}

// declareBoundQueue declares a queue and its exchange, and binds the queue to the exchange.
func (c *rabbitConsumer) declareBoundQueue(conn *connection, exchange, queue string, arguments amqp.Table) error {
	if err := ensureExchange(conn, exchange, c.access.ExchangeType); err != nil {
		return err
	}

	const durable, autoDelete, exclusive, noWait = true, false, false, false

	err := declareIfMissing(conn, func(channel *amqp.Channel, isPassive bool) error {
		declare := channel.QueueDeclare
		if isPassive {
			declare = channel.QueueDeclarePassive
		}

		_, err := declare(queue, durable, autoDelete, exclusive, noWait, arguments)

		return err
	})
	if err != nil {
		return fmt.Errorf("declare queue %s of RabbitMQ: %w", queue, err)
	}

	channel, err := openChannel(conn)
	if err != nil {
		return err
	}
	defer channel.Close() //nolint:errcheck // the channel is no longer needed

	if err := channel.QueueBind(queue, c.access.RoutingKey, exchange, false, nil); err != nil {
		return fmt.Errorf("bind queue %s of RabbitMQ: %w", queue, err)
	}

	return nil
}

// startConsuming consumes the queue exclusively, because only one process can keep events in order.
// It returns errStandby if another replica consumes the queue.
func (c *rabbitConsumer) startConsuming(channel *amqp.Channel) (<-chan amqp.Delivery, error) {
	const (
		global                              = false // the limit holds for each consumer
		autoAck, exclusive, noLocal, noWait = false, true, false, false
	)

	if err := channel.Qos(c.access.PrefetchCount, 0, global); err != nil {
		return nil, fmt.Errorf("limit deliveries of RabbitMQ: %w", err)
	}

	deliveries, err := channel.Consume(c.queueName, "hyperfleet", autoAck, exclusive, noLocal, noWait, nil)

	amqpErr, ok := errors.AsType[*amqp.Error](err)

	switch {
	case ok && amqpErr.Code == amqp.AccessRefused && strings.Contains(amqpErr.Reason, "exclusive use"):
		return nil, fmt.Errorf("%w: %s", errStandby, c.queueName)
	case err != nil:
		return nil, fmt.Errorf("consume queue %s of RabbitMQ: %w", c.queueName, err)
	default:
		return deliveries, nil
	}
}

// countAttempts returns how often a message was delivered before. Only quorum queues count
// deliveries. For other queues the result is 1 if the message was delivered before.
func countAttempts(d amqp.Delivery) int {
	const maxCount = 1 << 20

	count, hasCount := d.Headers["x-delivery-count"].(int64)
	if !hasCount && d.Redelivered {
		count = 1
	}

	return int(min(max(count, 0), maxCount))
}
