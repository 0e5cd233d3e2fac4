// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const (
	// publishTimeout bounds one try, publishTries their number.
	publishTimeout = 5 * time.Second
	publishTries   = 3
	firstPause     = 200 * time.Millisecond
	// maxEvent in bytes, as it travels.
	maxEvent = 512 << 10
)

var (
	errClosed = errors.New("the broker is closed")
	errName   = errors.New("write letters, digits, '.', '-' and '_', a letter or digit first and last, at most 100")
	errSize   = errors.New("the event is larger than 512 KiB")
)

// Handler handles one event. Nil: the event is done. An error: it is delivered again,
// with backoff, and after MaxDeliveries it goes to the dead letters. An error marked with
// Poison goes there at once. While an event of a resource waits for its next try, later
// ones of the same resource wait behind it; those of others don't. One that says the same
// as the last in line, which no handler has seen yet, is folded into that.
//
// An event may come more than once: when a process, the broker or the connection between
// them is lost before the event is known to be done. It may then come after later ones of
// its resource, but two of one resource are in work at once only if a process that was
// taken for gone is not.
type Handler func(ctx context.Context, event cloudevents.Event) error

// Broker publishes to RabbitMQ and subscribes there. All methods may be called at once.
type Broker struct {
	conf     platform.Broker
	access   access
	log      *slog.Logger
	metrics  *Metrics
	troubles troubles

	// life ends with Close.
	life context.Context
	end  context.CancelFunc

	mu sync.Mutex
	// conn and channel are what all publish on, made anew when they are lost. RabbitMQ may
	// hold up a connection that publishes; each consumer has its own.
	conn    *amqp.Connection
	channel *rabbitPublisher
}

// Open connects to the configured broker. Log and registerer may be nil.
func Open(ctx context.Context, conf platform.Broker, log *slog.Logger, registerer prometheus.Registerer) (*Broker, error) {
	rabbit := access(conf.RabbitMQ)
	if _, _, err := rabbit.server(); err != nil {
		return nil, err
	}

	if rabbit.Exchange != "" {
		if err := checkName(field+".exchange", rabbit.Exchange); err != nil {
			return nil, err
		}
	}

	rabbit.ExchangeType = cmp.Or(rabbit.ExchangeType, amqp.ExchangeTopic)
	if !slices.Contains([]string{amqp.ExchangeTopic, amqp.ExchangeFanout, amqp.ExchangeDirect}, rabbit.ExchangeType) {
		return nil, fmt.Errorf("%s.exchange_type: %q: write topic, fanout or direct", field, rabbit.ExchangeType)
	}

	rabbit.PrefetchCount = cmp.Or(max(rabbit.PrefetchCount, 0), rabbitPending)

	m, err := NewMetrics(registerer)
	if err != nil {
		return nil, err
	}

	b := &Broker{conf: conf, access: rabbit, log: cmp.Or(log, slog.New(slog.DiscardHandler)), metrics: m}
	b.life, b.end = context.WithCancel(context.Background())

	if err := b.Health(ctx); err != nil {
		b.Close()

		return nil, err
	}

	return b, nil
}

// Publish returns when the broker has the event for good. The event's partitionkey
// (api/events) says which events are kept in order.
func (b *Broker) Publish(ctx context.Context, topic string, event cloudevents.Event) error {
	body, err := json.Marshal(event)
	err = errors.Join(checkName("topic", topic), event.Validate(), err)

	switch {
	case err != nil:
	case len(body) > maxEvent:
		err = errSize
	case b.life.Err() != nil:
		err = errClosed
	default:
		err = b.send(ctx, topic, amqp.Publishing{MessageId: event.Source() + "/" + event.ID(), Body: body})
	}

	if err != nil {
		return fmt.Errorf("publish event %s to %q: %w", event.ID(), topic, err)
	}

	return nil
}

// send publishes with bounded tries.
func (b *Broker) send(ctx context.Context, topic string, m amqp.Publishing) error {
	for try := 1; ; try++ {
		once, cancel := context.WithTimeout(ctx, publishTimeout)
		err := b.publish(once, topic, m)

		cancel()

		if err == nil {
			b.metrics.published.WithLabelValues(topic).Inc()

			return nil
		}

		if try == publishTries || retry.Pause(ctx, clock.RealClock{}, firstPause<<(try-1)) != nil {
			b.metrics.errors.WithLabelValues(errorPublish).Inc()

			return err
		}
	}
}

// Subscribe hands the topic's events to the handler until ctx or the broker ends, and then
// returns nil when those in work are handled, whose context goes on. Each id gets all events
// that are published after it subscribed for the first time. Of subscribers with one id one
// has them at a time, and another one when that is gone.
func (b *Broker) Subscribe(ctx context.Context, topic, subscriptionID string, handle Handler) error {
	if err := errors.Join(checkName("topic", topic), checkName("subscription id", subscriptionID)); err != nil {
		return fmt.Errorf("subscribe to %q as %q: %w", topic, subscriptionID, err)
	}

	if b.life.Err() != nil {
		return errClosed
	}

	options := QueueOptions{Conf: b.conf, Topic: topic, Subscription: subscriptionID, Log: b.log, Metrics: b.metrics}
	// Dead letters that nobody can handle stay what they are.
	if !strings.HasSuffix(topic, DeadLetterSuffix) {
		options.GiveUp = func(l Letter) error { return b.bury(topic, subscriptionID, l) }
	}

	queue := NewQueue(options)
	connected, disconnect := context.WithCancel(context.WithoutCancel(ctx))

	taking, stop := context.WithCancel(ctx)
	defer context.AfterFunc(b.life, stop)()

	var (
		consuming sync.WaitGroup
		err       error
	)

	consuming.Go(func() {
		defer stop()

		err = b.consume(connected, queue)
	})

	// The next process may begin only when nothing is in work here any more.
	queue.Run(taking, handle)
	disconnect()
	consuming.Wait()

	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("subscribe to %s as %s: %w", topic, subscriptionID, err)
	}

	return nil
}

// Health says why the broker can't be used now; nil if it can.
func (b *Broker) Health(ctx context.Context) error {
	done := make(chan error, 1)

	go func() {
		_, err := b.publisher("")
		done <- err
	}()

	select {
	case err := <-done:
		return errors.Join(err, b.troubles.err())
	case <-ctx.Done():
		return fmt.Errorf("look at RabbitMQ: %w", ctx.Err())
	}
}

// Close ends subscriptions, which it does not wait for, and what is being published.
func (b *Broker) Close() {
	b.end()
	b.mu.Lock()
	defer b.mu.Unlock()

	if b.conn != nil {
		hangUp(b.conn)
	}
}

func checkName(what, name string) error {
	const most = 100

	if len(name) > most || !regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`).MatchString(name) {
		return fmt.Errorf("%s %q: %w", what, name, errName)
	}

	return nil
}
