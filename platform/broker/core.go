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

// transport is one kind of broker, below order, retries and dead letters.
type transport interface {
	// publish returns when the broker has the message for good. Messages of one topic are
	// kept in order. The id is the same for each try.
	publish(ctx context.Context, topic string, m message) error
	// consume hands what is published to the topic from the first time on that the
	// subscription was made to the sink, and reconnects by itself. Of all processes one at
	// a time is given messages.
	consume(ctx context.Context, topic, subscription string, into sink) (consumer, error)
	health(ctx context.Context) error
	close()
}

// message is what travels.
type message struct {
	id     string
	header map[string]string
	body   []byte
}

// sink takes deliveries. It does not block for long.
type sink func(delivery)

// delivery is a message that was handed out and is not yet done.
type delivery interface {
	body() []byte
	// tries is how often the message was handed out before, as far as the broker knows.
	tries() int
	// ack says that it is done. An error means that it may come again.
	ack() error
	// release gives it back at once.
	release()
	// alive is false when the broker will deliver it again whatever is said now.
	alive() bool
}

// consumer is a running subscription.
type consumer interface {
	// quiet ends deliveries; what was delivered can still be acked.
	quiet()
	// close gives back what is not acked.
	close()
}

// core is a Broker over any transport.
type core struct {
	over    transport
	conf    platform.Broker
	log     *slog.Logger
	metrics *meters
	clock   clock.WithTicker

	mu      sync.Mutex
	closing chan struct{}
	closed  bool
	running sync.WaitGroup
	// hard ends handlers that Close did not wait for.
	hard    context.Context
	endHard context.CancelFunc
}

// newCore is one that has no transport yet.
func newCore(conf platform.Broker, log *slog.Logger, registerer prometheus.Registerer) (*core, error) {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))

	m, err := newMeters(registerer)
	if err != nil {
		return nil, err
	}

	c := &core{conf: completed(conf), log: log, metrics: m, clock: clock.RealClock{}, closing: make(chan struct{})}
	c.hard, c.endHard = context.WithCancel(context.Background())

	return c, nil
}

// Publish hands the event to the broker.
func (c *core) Publish(ctx context.Context, topic string, event cloudevents.Event) error {
	if err := checkName("topic", topic); err != nil {
		return fmt.Errorf("publish to %q: %w", topic, err)
	}

	if err := event.Validate(); err != nil {
		return fmt.Errorf("publish to %s: %w", topic, err)
	}

	body, err := json.Marshal(event)
	if err != nil {
		return fmt.Errorf("publish event %s to %s: %w", event.ID(), topic, err)
	}

	if len(body) > maxEvent {
		return fmt.Errorf("publish event %s to %s: %w", event.ID(), topic, errSize)
	}

	m := message{id: event.Source() + "/" + event.ID(), body: body}
	if err := c.send(ctx, topic, m); err != nil {
		return fmt.Errorf("publish event %s to %s: %w", event.ID(), topic, err)
	}

	return nil
}

// send publishes, unless the broker is closed.
func (c *core) send(ctx context.Context, topic string, m message) error {
	if !c.begin() {
		return errClosed
	}
	defer c.running.Done()

	return c.sendLast(ctx, topic, m)
}

// sendLast publishes with bounded tries, also while the broker is being closed.
func (c *core) sendLast(ctx context.Context, topic string, m message) error {
	for try := 1; ; try++ {
		err := c.trySend(ctx, topic, m)
		if err == nil {
			c.metrics.published.WithLabelValues(topic).Inc()

			return nil
		}

		if try == publishTries || ctx.Err() != nil {
			c.metrics.errors.WithLabelValues(errorPublish).Inc()

			return err
		}

		if err := retry.Pause(ctx, c.clock, firstPause<<(try-1)); err != nil {
			return err
		}
	}
}

func (c *core) trySend(ctx context.Context, topic string, m message) error {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()

	return c.over.publish(ctx, topic, m)
}

// Subscribe hands events to the handler.
func (c *core) Subscribe(ctx context.Context, topic, subscriptionID string, handle Handler) error {
	if err := errors.Join(checkName("topic", topic), checkName("subscription id", subscriptionID)); err != nil {
		return fmt.Errorf("subscribe to %q as %q: %w", topic, subscriptionID, err)
	}

	if !c.begin() {
		return errClosed
	}
	defer c.running.Done()

	order := newLanes(c, topic, subscriptionID, handle)

	from, err := c.over.consume(ctx, topic, subscriptionID, order.add)
	if err != nil {
		order.end()
		order.giveBack()

		// It was to end before it began.
		if ctx.Err() != nil {
			return nil
		}

		return fmt.Errorf("subscribe to %s as %s: %w", topic, subscriptionID, err)
	}

	select {
	case <-ctx.Done():
	case <-c.closing:
	}

	// The next process may begin only when nothing is in work here any more.
	order.end()
	from.quiet()
	order.giveBack()
	from.close()

	return nil
}

// Health asks the broker.
func (c *core) Health(ctx context.Context) error {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()

	if closed {
		return errClosed
	}

	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()

	return c.over.health(ctx)
}

// Close ends all subscriptions and waits for what is in work.
func (c *core) Close(ctx context.Context) error {
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		close(c.closing)
	}
	c.mu.Unlock()

	done := make(chan struct{})

	go func() {
		defer close(done)

		c.running.Wait()
	}()

	var err error

	select {
	case <-done:
	case <-ctx.Done():
		err = fmt.Errorf("close the broker: events are still in work: %w", ctx.Err())
	}

	c.endHard()
	c.over.close()

	return err
}

// begin counts a user in, unless the broker is closed.
func (c *core) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.closed {
		return false
	}

	c.running.Add(1)

	return true
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
