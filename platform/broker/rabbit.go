// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	rabbitDialTimeout = 5 * time.Second
	// rabbitDials is how often a connection is tried whose end has no reason.
	rabbitDials     = 4
	rabbitHeartbeat = 5 * time.Second
	// rabbitCallTimeout bounds calls on a channel, which have no bound of their own: the
	// connection is given up then. A queue whose leader is being elected does not answer.
	rabbitCallTimeout = 10 * time.Second
	// rabbitPending is how many events a subscriber holds that are not done.
	rabbitPending = 1000
	// troublePublish is what keeps events from being published.
	troublePublish = "publish"
)

var (
	errNotConfirmed = errors.New("RabbitMQ did not confirm the message")
	errNoAnswer     = errors.New("RabbitMQ did not answer within " + rabbitCallTimeout.String())
)

// exchange is that of a topic. They are laid out as upstream's programs have them: an
// exchange for each topic, and for each subscription a queue, which one process consumes at
// a time.
func (b *Broker) exchange(topic string) string {
	if strings.HasSuffix(topic, DeadLetterSuffix) {
		return topic
	}

	return cmp.Or(b.access.Exchange, topic)
}

// publish returns when the server has the message for good.
func (b *Broker) publish(ctx context.Context, topic string, m amqp.Publishing) error {
	exchange := b.exchange(topic)

	channel, err := b.publisher(exchange)
	if err != nil {
		return err
	}

	m.ContentType, m.DeliveryMode = "application/cloudevents+json", amqp.Persistent

	if err := channel.send(ctx, exchange, b.access.RoutingKey, m); err != nil {
		err = fmt.Errorf("publish to RabbitMQ: %w", b.access.explain(err))

		if !channel.conn.IsClosed() {
			b.troubles.note(troublePublish, err)
		}

		// The next one opens another. Those who wait for their confirmation on this one are
		// told that there is none.
		_ = channel.Close()

		return err
	}

	b.troubles.note(troublePublish, nil)

	return nil
}

// publisher gives the channel that all publish on, once there is the exchange; without one,
// whether it works.
func (b *Broker) publisher(exchange string) (*rabbitPublisher, error) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if b.life.Err() != nil {
		return nil, errClosed
	}

	if b.conn == nil || b.conn.IsClosed() {
		conn, err := b.access.dial()
		if err != nil {
			return nil, err
		}

		b.conn, b.channel = conn, nil
	}

	err := guarded(b.conn, func() (err error) {
		if b.channel == nil || b.channel.IsClosed() {
			if b.channel, err = newPublisher(b.conn); err != nil {
				return err
			}
		}

		if exchange == "" || b.channel.declared[exchange] {
			return nil
		}

		err = ensureExchange(b.conn, exchange, b.access.ExchangeType)
		b.channel.declared[exchange] = err == nil

		return err
	})
	if err != nil {
		return nil, b.access.explain(err)
	}

	return b.channel, nil
}

// rabbitPublisher is a channel that confirms, and says why the server closed it.
type rabbitPublisher struct {
	*amqp.Channel

	conn *amqp.Connection
	// declared are the exchanges that there are.
	declared map[string]bool
	// closed ends with the channel, for the reason that the server gave.
	closed context.Context
}

func newPublisher(conn *amqp.Connection) (*rabbitPublisher, error) {
	channel, err := openChannel(conn)
	if err != nil {
		return nil, err
	}

	if err := channel.Confirm(false); err != nil {
		return nil, fmt.Errorf("have RabbitMQ confirm: %w", err)
	}

	told := channel.NotifyClose(make(chan *amqp.Error, 1))
	closed, end := context.WithCancelCause(context.Background())

	go func() { end(cmp.Or(<-told, amqp.ErrClosed)) }()

	return &rabbitPublisher{Channel: channel, conn: conn, declared: map[string]bool{}, closed: closed}, nil
}

// send returns when the server has the message for good.
func (p *rabbitPublisher) send(ctx context.Context, exchange, key string, m amqp.Publishing) error {
	var sent *amqp.DeferredConfirmation

	// A server that takes no more holds up even the writing.
	err := guarded(p.conn, func() (err error) {
		sent, err = p.PublishWithDeferredConfirmWithContext(ctx, exchange, key, false, false, m)

		return err
	})
	if err != nil {
		return p.reason(ctx, err)
	}

	done, err := sent.WaitContext(ctx)

	switch {
	case err != nil:
		return p.reason(ctx, fmt.Errorf("%w: %w", errNotConfirmed, err))
	case !done:
		return p.reason(ctx, errNotConfirmed)
	default:
		return nil
	}
}

// reason adds why the server closed the channel to an error on it, if it did.
func (p *rabbitPublisher) reason(ctx context.Context, err error) error {
	if !p.IsClosed() {
		return err
	}

	select {
	case <-p.closed.Done():
		return fmt.Errorf("%w: %w", err, context.Cause(p.closed))
	case <-ctx.Done():
		return err
	}
}

// guarded gives the connection up when calls on it take too long, which ends them.
func guarded(conn *amqp.Connection, calls func() error) error {
	var late atomic.Bool

	timer := time.AfterFunc(rabbitCallTimeout, func() {
		late.Store(true)

		_ = conn.CloseDeadline(time.Now().Add(time.Second))
	})
	defer timer.Stop()

	err := calls()
	if err != nil && late.Load() {
		return fmt.Errorf("%w: %w", errNoAnswer, err)
	}

	return err
}

// hangUp ends a connection. What was delivered over it and is not acked is delivered again.
func hangUp(conn *amqp.Connection) { _ = conn.CloseDeadline(time.Now().Add(rabbitDialTimeout)) }

func openChannel(conn *amqp.Connection) (*amqp.Channel, error) {
	channel, err := conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("open channel of RabbitMQ: %w", err)
	}

	return channel, nil
}

// ensure declares what is not there. What is there is taken whatever it is like: it may be of
// upstream's programs, or made by hand. A channel ends with a no.
func ensure(conn *amqp.Connection, declare func(channel *amqp.Channel, passive bool) error) error {
	for _, passive := range []bool{true, false} {
		channel, err := openChannel(conn)
		if err != nil {
			return err
		}

		err = declare(channel, passive)
		_ = channel.Close()

		if said, ok := errors.AsType[*amqp.Error](err); !passive || !ok || said.Code != amqp.NotFound {
			return err
		}
	}

	return nil
}

func ensureExchange(conn *amqp.Connection, exchange, kind string) error {
	err := ensure(conn, func(channel *amqp.Channel, passive bool) error {
		declare := channel.ExchangeDeclare
		if passive {
			declare = channel.ExchangeDeclarePassive
		}

		return declare(exchange, kind, true, false, false, false, nil)
	})
	if err != nil {
		return fmt.Errorf("declare exchange %s of RabbitMQ: %w", exchange, err)
	}

	return nil
}
