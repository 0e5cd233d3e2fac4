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
	"sync"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/events"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const (
	defaultParallelism   = 8
	defaultMaxDeliveries = 10
	defaultMinBackoff    = 500 * time.Millisecond
	defaultMaxBackoff    = 30 * time.Second

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

// transport is one kind of broker, below order, retries and dead letters.
type transport interface {
	// publish returns when the broker has the message for good. Messages of one topic are
	// kept in order. The id is the same for each try.
	publish(ctx context.Context, topic string, m message) error
	// consume hands over what is published to the topic from the first time on that the
	// subscription was made, and reconnects by itself, until ctx ends: what is not acked
	// then is delivered again. Of all processes one at a time is given messages. What is
	// called with them does not block for long. An error: it could not begin.
	consume(ctx context.Context, topic, subscription string, into func(delivery)) error
	health(ctx context.Context) error
	close()
}

// message is what travels.
type message struct {
	id     string
	header map[string]string
	body   []byte
}

// delivery is a message that was handed out and is not yet done.
type delivery struct {
	body []byte
	// tries is how often the message was handed out before, as far as the broker knows.
	tries int
	// ack says that it is done. An error means that it may come again.
	ack func() error
	// alive is false when the broker will deliver it again whatever is said now.
	alive func() bool
}

// Broker publishes and subscribes. All methods may be called at once.
type Broker struct {
	over    transport
	conf    platform.Broker
	log     *slog.Logger
	metrics *meters

	mu      sync.Mutex
	closing chan struct{}
	closed  bool
	running sync.WaitGroup
	// hard ends handlers and subscriptions that Close did not wait for.
	hard    context.Context
	endHard context.CancelFunc
}

// Open connects to the configured broker. Log and registerer may be nil.
func Open(ctx context.Context, conf platform.Broker, log *slog.Logger, registerer prometheus.Registerer) (*Broker, error) {
	b, err := newBroker(conf, log, registerer)
	if err != nil {
		return nil, err
	}

	switch conf.Type {
	case platform.BrokerMemory:
		b.over = &memory{topics: map[string]*memoryQueue{}}
	case platform.BrokerRabbitMQ:
		b.over, err = dialRabbit(ctx, conf.RabbitMQ, b.log)
	default:
		err = fmt.Errorf("broker.type: %q: write memory or rabbitmq", conf.Type)
	}

	if err != nil {
		return nil, err
	}

	return b, nil
}

// NewMemory makes a broker inside the process, with the configuration's numbers: a topic has
// one subscription, which has all that is published, before anybody has subscribed as well.
func NewMemory(conf platform.Broker, log *slog.Logger, registerer prometheus.Registerer) (*Broker, error) {
	conf.Type = platform.BrokerMemory

	return Open(context.Background(), conf, log, registerer)
}

// newBroker is one that has no transport yet, with the defaults in the place of what is not
// said.
func newBroker(conf platform.Broker, log *slog.Logger, registerer prometheus.Registerer) (*Broker, error) {
	conf.Parallelism = cmp.Or(max(conf.Parallelism, 0), defaultParallelism)
	conf.MaxDeliveries = cmp.Or(max(conf.MaxDeliveries, 0), defaultMaxDeliveries)
	conf.MinBackoff = cmp.Or(max(conf.MinBackoff, 0), defaultMinBackoff)
	conf.MaxBackoff = max(cmp.Or(max(conf.MaxBackoff, 0), defaultMaxBackoff), conf.MinBackoff)

	m, err := newMeters(registerer)
	if err != nil {
		return nil, err
	}

	b := &Broker{conf: conf, log: cmp.Or(log, slog.New(slog.DiscardHandler)), metrics: m, closing: make(chan struct{})}
	b.hard, b.endHard = context.WithCancel(context.Background())

	return b, nil
}

// Publish returns when the broker has the event for good. The event's partitionkey
// (api/events) says which events are kept in order.
func (b *Broker) Publish(ctx context.Context, topic string, event cloudevents.Event) error {
	if err := checkName("topic", topic); err != nil {
		return fmt.Errorf("publish to %q: %w", topic, err)
	}

	if err := event.Validate(); err != nil {
		return fmt.Errorf("publish to %s: %w", topic, err)
	}

	body, err := json.Marshal(event)

	switch {
	case err != nil:
	case len(body) > maxEvent:
		err = errSize
	case !b.begin():
		err = errClosed
	default:
		defer b.running.Done()

		err = b.send(ctx, topic, message{id: event.Source() + "/" + event.ID(), body: body})
	}

	if err != nil {
		return fmt.Errorf("publish event %s to %s: %w", event.ID(), topic, err)
	}

	return nil
}

// send publishes with bounded tries, also while the broker is being closed.
func (b *Broker) send(ctx context.Context, topic string, m message) error {
	for try := 1; ; try++ {
		once, cancel := context.WithTimeout(ctx, publishTimeout)
		err := b.over.publish(once, topic, m)

		cancel()

		if err == nil {
			b.metrics.published.WithLabelValues(topic).Inc()

			return nil
		}

		if try == publishTries || ctx.Err() != nil {
			b.metrics.errors.WithLabelValues(errorPublish).Inc()

			return err
		}

		if err := retry.Pause(ctx, clock.RealClock{}, firstPause<<(try-1)); err != nil {
			return err
		}
	}
}

// Subscribe hands the topic's events to the handler until ctx ends, and then returns
// nil when those in work are handled. Each id gets all events that are published after
// it subscribed for the first time. Of subscribers with one id one has them at a time,
// and another one when that is gone.
func (b *Broker) Subscribe(ctx context.Context, topic, subscriptionID string, handle Handler) error {
	if err := errors.Join(checkName("topic", topic), checkName("subscription id", subscriptionID)); err != nil {
		return fmt.Errorf("subscribe to %q as %q: %w", topic, subscriptionID, err)
	}

	if !b.begin() {
		return errClosed
	}
	defer b.running.Done()

	order := newLanes(b, topic, subscriptionID, handle)
	life, end := context.WithCancel(b.hard)
	ended := make(chan struct{})

	var err error

	go func() {
		defer close(ended)

		err = b.over.consume(life, topic, subscriptionID, order.add)
	}()

	select {
	case <-ctx.Done():
	case <-b.closing:
	case <-ended:
	}

	// The next process may begin only when nothing is in work here any more.
	order.end()
	end()
	<-ended
	order.drop()

	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("subscribe to %s as %s: %w", topic, subscriptionID, err)
	}

	return nil
}

// Health says why the broker can't be used now; nil if it can.
func (b *Broker) Health(ctx context.Context) error {
	if !b.begin() {
		return errClosed
	}
	defer b.running.Done()

	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()

	return b.over.health(ctx)
}

// Close ends all subscriptions, and waits for what is in work until ctx ends.
func (b *Broker) Close(ctx context.Context) error {
	b.mu.Lock()
	if !b.closed {
		b.closed = true
		close(b.closing)
	}
	b.mu.Unlock()

	done := make(chan struct{})

	go func() {
		defer close(done)

		b.running.Wait()
	}()

	var err error

	select {
	case <-done:
	case <-ctx.Done():
		err = fmt.Errorf("close the broker: events are still in work: %w", ctx.Err())
	}

	b.endHard()
	b.over.close()

	return err
}

// begin counts a user in, unless the broker is closed.
func (b *Broker) begin() bool {
	b.mu.Lock()
	defer b.mu.Unlock()

	if !b.closed {
		b.running.Add(1)
	}

	return !b.closed
}

// keyOf is what orders an event: its partitionkey, or where it has none, as upstream's, the
// id of the resource. Else it stands for itself.
func keyOf(event cloudevents.Event) string {
	if key, ok := event.Extensions()[events.PartitionKey].(string); ok && key != "" {
		return key
	}

	var said struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(event.Data(), &said); err == nil && said.ID != "" {
		return said.ID
	}

	return event.ID()
}

func checkName(what, name string) error {
	const most = 100

	if len(name) > most || !regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`).MatchString(name) {
		return fmt.Errorf("%s %q: %w", what, name, errName)
	}

	return nil
}
