// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	rabbitDialTimeout = 5 * time.Second
	// dialAttempts is the number of attempts to connect if the connection ends without a reason.
	dialAttempts = 4
	// minRejectDelay is less than the three seconds after which RabbitMQ closes the connection of a user that
	// it rejects.
	minRejectDelay  = time.Second
	rabbitHeartbeat = 5 * time.Second
	// rabbitCallTimeout is the timeout of calls on a channel. For example, RabbitMQ does not respond while it
	// elects the leader of a queue.
	rabbitCallTimeout = 10 * time.Second
	// problemPublish is the name of the problem that events cannot be published.
	problemPublish = "publish"
	// problemConnect is the name of the problem that there is no connection to publish on.
	problemConnect = "connect"
)

// Options of a message. If no queue takes the message, the server drops it and does not return it.
const mandatory, immediate = false, false

var (
	errNotConfirmed = errors.New("RabbitMQ did not confirm the message")
	errNoAnswer     = errors.New("RabbitMQ did not respond in time")
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

	conn, err := b.ensureConnection(ctx)
	if err == nil {
		err = conn.waitUntilUnblocked(ctx)
	}

	if err != nil {
		return err
	}

	channel, err := b.ensurePublisher(ctx, exchange)
	if err != nil {
		return err
	}

	m.ContentType, m.DeliveryMode = "application/cloudevents+json", amqp.Persistent

	if err := channel.publish(ctx, exchange, b.access.RoutingKey, m); err != nil {
		return b.handlePublishError(ctx, channel, err)
	}

	b.problems.set(problemPublish, nil)

	return nil
}

// handlePublishError returns the error for the caller of publish. It discards the channel, unless the server blocks the
// connection: then the server confirms the message after its memory or disk alarm, and would block another connection, too.
func (b *Broker) handlePublishError(ctx context.Context, channel *rabbitPublisher, err error) error {
	if _, blockedErr := channel.conn.blocked(); blockedErr != nil {
		return fmt.Errorf("publish to RabbitMQ: %w", blockedErr)
	}

	err = fmt.Errorf("publish to RabbitMQ: %w", b.access.explain(err))

	if !channel.conn.IsClosed() {
		b.problems.set(problemPublish, err)
		channel.discard(ctx)
	}

	return err
}

// ensurePublisher returns the channel that all calls publish on, and declares the exchange if it is
// missing. If the exchange is empty, it only checks that the channel works.
func (b *Broker) ensurePublisher(ctx context.Context, exchange string) (*rabbitPublisher, error) {
	if err := b.lock(ctx); err != nil {
		return nil, err
	}
	defer b.unlock()

	if err := b.open(ctx); err != nil {
		return nil, err
	}

	// The server does not answer while it blocks the connection.
	if _, err := b.conn.blocked(); err != nil {
		return nil, err
	}

	err := b.conn.call(ctx, func() (err error) {
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

// ensureConnection returns the connection that all calls publish on.
func (b *Broker) ensureConnection(ctx context.Context) (*connection, error) {
	if err := b.lock(ctx); err != nil {
		return nil, err
	}
	defer b.unlock()

	if err := b.open(ctx); err != nil {
		return nil, err
	}

	return b.conn, nil
}

// open opens the connection if there is none. The caller holds the lock.
func (b *Broker) open(ctx context.Context) error {
	if b.conn != nil && !b.conn.IsClosed() {
		return nil
	}

	conn, err := b.access.dial(ctx)

	// A check may end before the server rejects the user. It then returns the error of an earlier attempt.
	if ctx.Err() == nil {
		b.problems.set(problemConnect, err)
	}

	if err != nil {
		return err
	}

	b.conn, b.channel = conn, nil

	return nil
}

// tryPublish returns an error if nothing can be published to the exchange now. It publishes a message in a
// transaction and rolls the transaction back: the server checks the exchange, the permission and its alarms,
// and delivers nothing.
func (b *Broker) tryPublish(ctx context.Context, exchange string) error {
	publisher, err := b.ensurePublisher(ctx, exchange)
	if err != nil {
		return err
	}

	changed, _ := publisher.conn.blocked()
	done := make(chan error, 1)

	// The server does not answer before an alarm is over, so this ends with the alarm or the connection.
	go func() { done <- publisher.conn.rollBackMessage(ctx, exchange, b.access.RoutingKey) }()

	select {
	case err = <-done:
	case <-changed:
		_, err = publisher.conn.blocked()
	case <-ctx.Done():
		err = fmt.Errorf("%w: %w", errNoAnswer, ctx.Err())
	}

	if err == nil {
		return nil
	}

	if amqpErr, ok := errors.AsType[*amqp.Error](err); ok && amqpErr.Code == amqp.NotFound {
		publisher.discard(ctx) // the next channel declares the exchange again
	}

	return fmt.Errorf("publish to RabbitMQ: %w", b.access.explain(err))
}

// lock waits until no other call opens the connection.
func (b *Broker) lock(ctx context.Context) error {
	select {
	case b.opening <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("wait for the connection to RabbitMQ: %w", ctx.Err())
	}

	if b.ctx.Err() != nil {
		b.unlock()

		return errClosed
	}

	return nil
}

func (b *Broker) unlock() { <-b.opening }

// rabbitPublisher is a channel in confirm mode that records why the server closed it.
type rabbitPublisher struct {
	*amqp.Channel

	conn *connection
	// declaredExchanges are the exchanges that exist.
	declaredExchanges map[string]bool
	// closedCtx ends when the channel is closed. Its cause is the server's reason.
	closedCtx context.Context
}

func newPublisher(conn *connection) (*rabbitPublisher, error) {
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
	err := p.conn.call(ctx, func() (err error) {
		confirmation, err = p.PublishWithDeferredConfirmWithContext(ctx, exchange, key, mandatory, immediate, m)

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

// discard closes a channel on which an event was not confirmed. The next call opens another channel, and
// callers that wait for a confirmation on this channel get an error.
func (p *rabbitPublisher) discard(ctx context.Context) {
	if p.IsClosed() {
		return
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()

	_ = p.conn.call(ctx, p.Close)
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

func openChannel(conn *connection) (*amqp.Channel, error) {
	channel, err := conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("open channel of RabbitMQ: %w", err)
	}

	return channel, nil
}

// declareIfMissing declares an object that is missing. An object that exists is used as it is,
// because it may belong to the upstream programs or may have been created by hand. Each attempt
// needs its own channel, because the server closes a channel after an error.
func declareIfMissing(conn *connection, declare func(channel *amqp.Channel, isPassive bool) error) error {
	for _, isPassive := range []bool{true, false} {
		channel, err := openChannel(conn)
		if err != nil {
			return err
		}

		err = declare(channel, isPassive)
		_ = channel.Close()

		if amqpErr, ok := errors.AsType[*amqp.Error](err); !isPassive || !ok || amqpErr.Code != amqp.NotFound {
			return err
		}
	}

	return nil
}

func ensureExchange(conn *connection, exchange, kind string) error {
	const durable, autoDelete, internal, noWait = true, false, false, false

	err := declareIfMissing(conn, func(channel *amqp.Channel, isPassive bool) error {
		declare := channel.ExchangeDeclare
		if isPassive {
			declare = channel.ExchangeDeclarePassive
		}

		return declare(exchange, kind, durable, autoDelete, internal, noWait, nil)
	})
	if err != nil {
		return fmt.Errorf("declare exchange %s of RabbitMQ: %w", exchange, err)
	}

	return nil
}
