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
	// dialAttempts is the number of attempts to connect if the connection ends without a reason.
	dialAttempts    = 4
	rabbitHeartbeat = 5 * time.Second
	// rabbitCallTimeout is the timeout of calls on a channel, because the library has none. When it
	// expires, the connection is closed. For example, RabbitMQ does not respond while it elects the
	// leader of a queue.
	rabbitCallTimeout = 10 * time.Second
	// defaultPrefetch is the number of unacknowledged events that a subscriber can hold.
	defaultPrefetch = 1000
	// problemPublish is the name of the problem that events cannot be published.
	problemPublish = "publish"
)

var (
	errNotConfirmed = errors.New("RabbitMQ did not confirm the message")
	errNoAnswer     = errors.New("RabbitMQ did not respond within " + rabbitCallTimeout.String())
)

// exchangeName returns the exchange of a topic. The layout is the same as in the programs of the
// upstream HyperFleet project: each topic has an exchange, and each subscription has a queue, which one process
// consumes at a time.
func (b *Broker) exchangeName(topic string) string {
	if strings.HasSuffix(topic, DeadLetterSuffix) {
		return topic
	}

	return cmp.Or(b.access.Exchange, topic)
}

// publish returns after the server has stored the message.
func (b *Broker) publish(ctx context.Context, topic string, m amqp.Publishing) error {
	exchange := b.exchangeName(topic)

	channel, err := b.ensurePublisher(exchange)
	if err != nil {
		return err
	}

	m.ContentType, m.DeliveryMode = "application/cloudevents+json", amqp.Persistent

	if err := channel.publish(ctx, exchange, b.access.RoutingKey, m); err != nil {
		err = fmt.Errorf("publish to RabbitMQ: %w", b.access.explain(err))

		if !channel.conn.IsClosed() {
			b.problems.set(problemPublish, err)
		}

		// The next call opens another channel. Callers that wait for a confirmation on this channel
		// get an error.
		_ = channel.Close()

		return err
	}

	b.problems.set(problemPublish, nil)

	return nil
}

// ensurePublisher returns the channel that all calls publish on, and declares the exchange if it is
// missing. If the exchange is empty, it only checks that the channel works.
func (b *Broker) ensurePublisher(exchange string) (*rabbitPublisher, error) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if b.ctx.Err() != nil {
		return nil, errClosed
	}

	if b.conn == nil || b.conn.IsClosed() {
		conn, err := b.access.dial()
		if err != nil {
			return nil, err
		}

		b.conn, b.channel = conn, nil
	}

	err := withCallTimeout(b.conn, func() (err error) {
		if b.channel == nil || b.channel.IsClosed() {
			if b.channel, err = newPublisher(b.conn); err != nil {
				return err
			}
		}

		if exchange == "" || b.channel.declaredExchanges[exchange] {
			return nil
		}

		err = ensureExchange(b.conn, exchange, b.access.ExchangeType)
		b.channel.declaredExchanges[exchange] = err == nil

		return err
	})
	if err != nil {
		return nil, b.access.explain(err)
	}

	return b.channel, nil
}

// rabbitPublisher is a channel in confirm mode that records why the server closed it.
type rabbitPublisher struct {
	*amqp.Channel

	conn *amqp.Connection
	// declaredExchanges are the exchanges that exist.
	declaredExchanges map[string]bool
	// closedCtx ends when the channel is closed. Its cause is the server's reason.
	closedCtx context.Context
}

func newPublisher(conn *amqp.Connection) (*rabbitPublisher, error) {
	channel, err := openChannel(conn)
	if err != nil {
		return nil, err
	}

	if err := channel.Confirm(false); err != nil {
		return nil, fmt.Errorf("enable confirmations of RabbitMQ: %w", err)
	}

	closeNotify := channel.NotifyClose(make(chan *amqp.Error, 1))
	closed, end := context.WithCancelCause(context.Background())

	go func() { end(cmp.Or(<-closeNotify, amqp.ErrClosed)) }()

	return &rabbitPublisher{Channel: channel, conn: conn, declaredExchanges: map[string]bool{}, closedCtx: closed}, nil
}

// publish returns after the server has stored the message.
func (p *rabbitPublisher) publish(ctx context.Context, exchange, key string, m amqp.Publishing) error {
	var confirmation *amqp.DeferredConfirmation

	// Even the write blocks if the server does not accept more data.
	err := withCallTimeout(p.conn, func() (err error) {
		confirmation, err = p.PublishWithDeferredConfirmWithContext(ctx, exchange, key, false, false, m)

		return err
	})
	if err != nil {
		return p.withCloseReason(ctx, err)
	}

	isConfirmed, err := confirmation.WaitContext(ctx)

	switch {
	case err != nil:
		return p.withCloseReason(ctx, fmt.Errorf("%w: %w", errNotConfirmed, err))
	case !isConfirmed:
		return p.withCloseReason(ctx, errNotConfirmed)
	default:
		return nil
	}
}

// withCloseReason adds the server's reason to an error if the server closed the channel.
func (p *rabbitPublisher) withCloseReason(ctx context.Context, err error) error {
	if !p.IsClosed() {
		return err
	}

	select {
	case <-p.closedCtx.Done():
		return fmt.Errorf("%w: %w", err, context.Cause(p.closedCtx))
	case <-ctx.Done():
		return err
	}
}

// withCallTimeout runs calls on a connection. If they take longer than rabbitCallTimeout, it closes
// the connection, which ends them.
func withCallTimeout(conn *amqp.Connection, calls func() error) error {
	var isTimedOut atomic.Bool

	timer := time.AfterFunc(rabbitCallTimeout, func() {
		isTimedOut.Store(true)

		_ = conn.CloseDeadline(time.Now().Add(time.Second))
	})
	defer timer.Stop()

	err := calls()
	if err != nil && isTimedOut.Load() {
		return fmt.Errorf("%w: %w", errNoAnswer, err)
	}

	return err
}

// closeConnection closes a connection. The server delivers its unacknowledged messages again.
func closeConnection(conn *amqp.Connection) {
	_ = conn.CloseDeadline(time.Now().Add(rabbitDialTimeout))
}

func openChannel(conn *amqp.Connection) (*amqp.Channel, error) {
	channel, err := conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("open channel of RabbitMQ: %w", err)
	}

	return channel, nil
}

// declareIfMissing declares an object that is missing. An object that exists is used as it is,
// because it may belong to the upstream programs or may have been created by hand. Each attempt
// needs its own channel, because the server closes a channel after an error.
func declareIfMissing(conn *amqp.Connection, declare func(channel *amqp.Channel, passive bool) error) error {
	for _, passive := range []bool{true, false} {
		channel, err := openChannel(conn)
		if err != nil {
			return err
		}

		err = declare(channel, passive)
		_ = channel.Close()

		if amqpErr, ok := errors.AsType[*amqp.Error](err); !passive || !ok || amqpErr.Code != amqp.NotFound {
			return err
		}
	}

	return nil
}

func ensureExchange(conn *amqp.Connection, exchange, kind string) error {
	err := declareIfMissing(conn, func(channel *amqp.Channel, passive bool) error {
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
