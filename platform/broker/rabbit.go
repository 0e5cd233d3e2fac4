// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
)

const (
	rabbitDialTimeout = 5 * time.Second
	// rabbitDials is how often a connection is tried whose end has no reason.
	rabbitDials     = 4
	rabbitHeartbeat = 5 * time.Second
	// rabbitCallTimeout bounds calls on a channel, which have no bound of their own: the
	// connection is given up then. A queue whose leader is being elected does not answer.
	rabbitCallTimeout = 10 * time.Second
	rabbitMinPause    = 200 * time.Millisecond
	rabbitMaxPause    = 5 * time.Second
	// rabbitStandby is how often a replica asks for a queue that another one has.
	rabbitStandby = time.Second
	// rabbitPending is how many events a subscriber holds that are not done.
	rabbitPending     = 1000
	rabbitDeadLetters = 10000
	// rabbitDeliveries is after how many lost consumers RabbitMQ itself gives a message of a
	// quorum queue up: never before we do (RabbitMQ 4 has 20 by default).
	rabbitDeliveries = 1000
	deadKept         = 7 * 24 * time.Hour
	// troublePublish is what keeps events from being published.
	troublePublish = "publish"
)

var (
	errNotConfirmed = errors.New("RabbitMQ did not confirm the message")
	errNoAnswer     = errors.New("RabbitMQ did not answer within " + rabbitCallTimeout.String())
	// errStandby is of a queue that another replica has.
	errStandby = errors.New("another replica consumes the queue")
)

// overRabbit is a transport over RabbitMQ, laid out as upstream's programs have it: an
// exchange for each topic, and for each subscription a queue, which one process consumes at
// a time.
type overRabbit struct {
	// RabbitMQ may hold up a connection that publishes; each consumer has its own.
	publishing *rabbitLink
	layout     rabbitLayout
	prefetch   int
	log        *slog.Logger
	troubles   *troubles

	mu        sync.Mutex
	consuming map[*rabbitLink]bool
}

// rabbitLayout says what exchanges, keys and queues there are.
type rabbitLayout struct {
	// static is the exchange of all topics; empty: each has one of its name.
	static, kind, key string
	quorum            bool
}

func (l rabbitLayout) exchange(topic string) string {
	if strings.HasSuffix(topic, DeadLetterSuffix) {
		return topic
	}

	return cmp.Or(l.static, topic)
}

// queue is that of a subscription, with what it is declared with where there is none yet.
func (l rabbitLayout) queue(topic, subscription string) (string, amqp.Table) {
	name := topic + "-" + subscription
	if !l.quorum {
		return name, nil
	}

	return name, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": rabbitDeliveries}
}

func dialRabbit(ctx context.Context, conf platform.BrokerRabbit, log *slog.Logger) (*overRabbit, error) {
	how := rabbitAccess(conf)
	if err := how.check(); err != nil {
		return nil, err
	}

	if conf.Exchange != "" {
		if err := checkName("broker.rabbitmq.exchange", conf.Exchange); err != nil {
			return nil, err
		}
	}

	kind := cmp.Or(conf.ExchangeType, amqp.ExchangeTopic)
	if kind != amqp.ExchangeTopic && kind != amqp.ExchangeFanout && kind != amqp.ExchangeDirect {
		return nil, fmt.Errorf("broker.rabbitmq.exchange_type: %q: write topic, fanout or direct", kind)
	}

	conf.PrefetchCount = cmp.Or(max(conf.PrefetchCount, 0), rabbitPending)

	known := &troubles{}
	o := &overRabbit{
		publishing: &rabbitLink{access: how, made: known.anew}, consuming: map[*rabbitLink]bool{},
		layout:   rabbitLayout{static: conf.Exchange, kind: kind, key: conf.RoutingKey, quorum: conf.Quorum},
		prefetch: conf.PrefetchCount, log: log, troubles: known,
	}
	if err := o.health(ctx); err != nil {
		o.close()

		return nil, err
	}

	return o, nil
}

func (o *overRabbit) publish(ctx context.Context, topic string, m message) error {
	exchange := o.layout.exchange(topic)

	channel, err := o.publishing.publisher(exchange, o.layout.kind)
	if err != nil {
		return err
	}

	header := amqp.Table{}
	for name, value := range m.header {
		header[name] = value
	}

	var sent *amqp.DeferredConfirmation

	// A server that takes no more holds up even the writing.
	err = o.publishing.guarded(func() error {
		var err error
		sent, err = channel.PublishWithDeferredConfirmWithContext(ctx, exchange, o.layout.key, false, false,
			amqp.Publishing{
				ContentType: "application/cloudevents+json", DeliveryMode: amqp.Persistent,
				MessageId: m.id, Headers: header, Body: m.body,
			})

		return err
	})
	if err == nil {
		err = confirmed(ctx, sent)
	}

	if err == nil {
		o.troubles.over(troublePublish)

		return nil
	}

	err = o.publishing.access.explain(channel.reason(ctx, err))
	o.publishing.forget(channel)

	err = fmt.Errorf("publish to RabbitMQ: %w", err)
	if o.publishing.stands() {
		o.troubles.note(troublePublish, err, true)
	}

	return err
}

func confirmed(ctx context.Context, sent *amqp.DeferredConfirmation) error {
	done, err := sent.WaitContext(ctx)

	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errNotConfirmed, err)
	case !done:
		return errNotConfirmed
	default:
		return nil
	}
}

func (o *overRabbit) health(ctx context.Context) error {
	done := make(chan error, 1)

	go func() {
		_, err := o.publishing.publisher("", "")
		done <- err
	}()

	select {
	case err := <-done:
		return errors.Join(err, o.troubles.err())
	case <-ctx.Done():
		return fmt.Errorf("look at RabbitMQ: %w", ctx.Err())
	}
}

func (o *overRabbit) close() {
	o.publishing.end()

	o.mu.Lock()
	defer o.mu.Unlock()

	for link := range o.consuming {
		link.end()
	}
}

// newLink makes a connection for one consumer.
func (o *overRabbit) newLink() *rabbitLink {
	link := &rabbitLink{access: o.publishing.access}

	o.mu.Lock()
	defer o.mu.Unlock()

	o.consuming[link] = true

	return link
}

func (o *overRabbit) endLink(link *rabbitLink) {
	link.end()

	o.mu.Lock()
	defer o.mu.Unlock()

	delete(o.consuming, link)
}
