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
	// publishTimeout is the timeout of one attempt to publish, publishAttempts the number of
	// attempts.
	publishTimeout = 5 * time.Second
	// checkTimeout is the timeout of Health and CheckPublish.
	checkTimeout      = 4 * time.Second
	publishAttempts   = 3
	initialRetryDelay = 200 * time.Millisecond
	// letterGrace is how long dead letters may still be published after the end of a subscription.
	letterGrace = 10 * time.Second
	// maxEventSize is the maximum size of an encoded event in bytes.
	maxEventSize = 512 << 10
)

var (
	errClosed = errors.New("the broker is closed")
	errName   = errors.New("write at most 100 letters, digits, '.', '-' and '_', and begin and end with a letter or digit")
	errSize   = errors.New("the event is larger than 512 KiB")
)

// Handler handles one event. If it returns nil, the event is acknowledged. If it returns an error,
// the event is delivered again with a back-off. After MaxDeliveries attempts the event becomes a
// dead letter. If the error is marked with Poison, the event becomes a dead letter immediately.
// While an event of a resource waits for its next attempt, later events of the same resource wait
// behind it, but events of other resources do not. A new event is dropped if it equals the last
// queued event of its resource and that event has not been handled yet.
//
// An event can be delivered more than once: if the process, the broker or the connection between
// them is lost before the event is acknowledged. It can then arrive after later events of its
// resource. Two events of one resource are handled at the same time only if another process took
// over the queue while this process was still running.
type Handler func(ctx context.Context, event cloudevents.Event) error

// Broker publishes events to RabbitMQ and subscribes to them. All methods are safe for concurrent
// use.
type Broker struct {
	conf     platform.Broker
	access   access
	log      *slog.Logger
	metrics  *Metrics
	problems problemSet

	// ctx ends when the broker is closed.
	ctx    context.Context
	cancel context.CancelFunc

	// opening has a value while conn and channel are opened or read.
	opening chan struct{}
	// conn and channel are used by all publishers. They are opened again when they are lost.
	// RabbitMQ may block a connection that publishes, so each consumer has its own connection.
	conn    *connection
	channel *rabbitPublisher
}

// Open connects to the configured broker. Log and registerer may be nil.
func Open(ctx context.Context, conf platform.Broker, log *slog.Logger, registerer prometheus.Registerer) (*Broker, error) {
	rabbit := access(conf.RabbitMQ).withDefaults()
	if _, _, err := rabbit.resolve(); err != nil {
		return nil, err
	}

	if rabbit.Exchange != "" {
		if err := validateName(configPath+".exchange", rabbit.Exchange); err != nil {
			return nil, err
		}
	}

	if !slices.Contains([]string{amqp.ExchangeTopic, amqp.ExchangeFanout, amqp.ExchangeDirect}, rabbit.ExchangeType) {
		return nil, fmt.Errorf("%s.exchange_type: %q: write topic, fanout or direct", configPath, rabbit.ExchangeType)
	}

	m, err := NewMetrics(registerer)
	if err != nil {
		return nil, err
	}

	b := &Broker{
		conf: conf, access: rabbit, log: cmp.Or(log, slog.New(slog.DiscardHandler)), metrics: m, opening: make(chan struct{}, 1),
	}
	b.ctx, b.cancel = context.WithCancel(context.Background())

	if _, err := b.ensurePublisher(ctx, ""); err != nil {
		b.Close()

		return nil, err
	}

	return b, nil
}

// Publish returns after the broker has stored the event. Events with the same partitionkey
// (api/events) stay in order.
func (b *Broker) Publish(ctx context.Context, topic string, event cloudevents.Event) error {
	body, err := json.Marshal(event)
	err = errors.Join(validateName("topic", topic), event.Validate(), err)

	switch {
	case err != nil:
	case len(body) > maxEventSize:
		err = errSize
	case b.ctx.Err() != nil:
		err = errClosed
	default:
		err = b.publishWithRetry(ctx, topic, amqp.Publishing{MessageId: event.Source() + "/" + event.ID(), Body: body})
	}

	if err != nil {
		return fmt.Errorf("publish event %s to %q: %w", event.ID(), topic, err)
	}

	return nil
}

// publishWithRetry publishes with a limited number of attempts.
func (b *Broker) publishWithRetry(ctx context.Context, topic string, m amqp.Publishing) error {
	ctx, cancel := b.untilClosed(ctx)
	defer cancel()

	for attempt := 1; ; attempt++ {
		attemptCtx, cancel := context.WithTimeout(ctx, publishTimeout)
		err := b.publish(attemptCtx, topic, m)

		cancel()

		if err == nil {
			b.metrics.published.WithLabelValues(topic).Inc()

			return nil
		}

		if attempt == publishAttempts || retry.Sleep(ctx, clock.RealClock{}, initialRetryDelay<<(attempt-1)) != nil {
			b.metrics.errors.WithLabelValues(errorPublish).Inc()

			return err
		}
	}
}

// Subscribe passes the topic's events to the handler until ctx ends or the broker is closed. It
// then waits for running handlers, whose context is not canceled, and returns nil. Each
// subscription ID receives all events that are published after its first subscription. If several
// processes subscribe with the same ID, only one of them receives events at a time. Another one
// takes over when that process is gone.
func (b *Broker) Subscribe(ctx context.Context, topic, subscriptionID string, handle Handler) error {
	if err := errors.Join(validateName("topic", topic), validateName("subscription id", subscriptionID)); err != nil {
		return fmt.Errorf("subscribe to %q as %q: %w", topic, subscriptionID, err)
	}

	if b.ctx.Err() != nil {
		return errClosed
	}

	// Dead letters are published even if the subscription has ended.
	letterCtx, cancelLetters := retry.WithGrace(ctx, letterGrace)
	defer cancelLetters()

	options := QueueOptions{Conf: b.conf, Topic: topic, Subscription: subscriptionID, Log: b.log, Metrics: b.metrics}
	// A dead letter that cannot be handled does not become another dead letter.
	if !strings.HasSuffix(topic, DeadLetterSuffix) {
		options.GiveUp = func(l Letter) error { return b.publishDeadLetter(letterCtx, topic, subscriptionID, l) }
	}

	queue := NewQueue(options)
	consumeCtx, disconnect := context.WithCancel(context.WithoutCancel(ctx))

	handleCtx, stop := context.WithCancel(ctx)
	defer context.AfterFunc(b.ctx, stop)()

	var (
		consuming sync.WaitGroup
		err       error
	)

	consuming.Go(func() {
		defer stop()

		err = b.consume(consumeCtx, queue)
	})

	// Another process may take over only after all handlers of this one have returned.
	queue.Run(handleCtx, handle)
	disconnect()
	consuming.Wait()

	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("subscribe to %s as %s: %w", topic, subscriptionID, err)
	}

	return nil
}

// Health returns an error if the broker cannot be used now.
func (b *Broker) Health(ctx context.Context) error {
	ctx, cancel := b.checkContext(ctx)
	defer cancel()

	_, err := b.ensurePublisher(ctx, "")

	return errors.Join(err, b.problems.err())
}

// CheckPublish returns an error if events of a topic cannot be published now.
func (b *Broker) CheckPublish(ctx context.Context, topic string) error {
	ctx, cancel := b.checkContext(ctx)
	defer cancel()

	return errors.Join(b.tryPublish(ctx, b.exchangeName(topic)), b.problems.err())
}

// checkContext returns the context of a check. Its parent's end does not end it, because the end of a call
// aborts the connection, and a client of a health endpoint must not be able to do that.
func (b *Broker) checkContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := b.untilClosed(context.WithoutCancel(ctx))
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)

	return ctx, func() {
		cancel()
		stop()
	}
}

// untilClosed returns a context that ends with ctx or when the broker is closed.
func (b *Broker) untilClosed(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(b.ctx, func() { cancel(errClosed) })

	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// Close ends all subscriptions without waiting for them, and aborts the publishing of events.
func (b *Broker) Close() {
	b.cancel()

	b.opening <- struct{}{}
	defer b.unlock()

	if b.conn != nil {
		b.conn.close()
	}
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

func validateName(field, name string) error {
	const maxLength = 100

	if len(name) > maxLength || !namePattern.MatchString(name) {
		return fmt.Errorf("%s %q: %w", field, name, errName)
	}

	return nil
}
