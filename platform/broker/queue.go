// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"go.opentelemetry.io/otel/propagation"
	"k8s.io/client-go/util/workqueue"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/events"
	"github.com/hyperfleet/hyperfleet/api/exactjson"
)

// QueueOptions configure NewQueue.
type QueueOptions struct {
	// Conf has the limits and back-offs. Its settings for the connection are ignored.
	Conf platform.Broker
	// Topic and Subscription are used in metrics and the log.
	Topic, Subscription string
	// GiveUp is called for an event that is no longer retried, before the next event of its key
	// is handled. If it fails, it is called again after a back-off. If it is nil, events are
	// retried forever.
	GiveUp func(Letter) error
	// Log is the logger. Default: no log.
	Log *slog.Logger
	// Metrics are the metrics of the queue. Required.
	Metrics *Metrics
}

// Queue keeps the events of one subscription in this process in order. It has a list of waiting events
// for each key, which identifies a resource. Only the first event of a key is handled, or waits for its
// next attempt. Keys take turns, so a key with many events does not delay others, and a key that waits
// after an error does not occupy a worker.
type Queue struct {
	QueueOptions

	// queue has the keys whose first event is to be handled now, and those whose first event waits for
	// its next attempt. Only one worker handles a key at a time.
	queue workqueue.TypedRateLimitingInterface[string]

	mu         sync.Mutex
	byKey      map[string]*keyEvents
	isStopping bool
}

// keyEvents are the events of one key.
type keyEvents struct {
	// items are the waiting events. The first of them may wait for its next attempt.
	items []*delivery
	// isRunning is true while another event, which is not in items, is being handled.
	isRunning bool
}

// delivery is an event that was delivered and is not acknowledged yet.
type delivery struct {
	Letter

	// ack acknowledges the event. If it returns an error, the event may be delivered again.
	ack func() error
	// isAlive returns false if the broker will deliver the event again even if it is acknowledged.
	isAlive func() bool
}

// NewQueue returns a queue. It uses defaults for options that are not set.
func NewQueue(options QueueOptions) *Queue {
	conf := &options.Conf
	standard := platform.DefaultBroker()
	conf.Parallelism = cmp.Or(max(conf.Parallelism, 0), standard.Parallelism)
	conf.MaxDeliveries = cmp.Or(max(conf.MaxDeliveries, 0), standard.MaxDeliveries)
	conf.MinBackoff = cmp.Or(max(conf.MinBackoff, 0), standard.MinBackoff)
	conf.MaxBackoff = max(cmp.Or(max(conf.MaxBackoff, 0), standard.MaxBackoff), conf.MinBackoff)

	options.Log = cmp.Or(options.Log, slog.New(slog.DiscardHandler))
	options.Log = options.Log.With("topic", options.Topic, "subscription", options.Subscription)
	backoff := workqueue.NewTypedItemExponentialFailureRateLimiter[string](conf.MinBackoff, conf.MaxBackoff)

	return &Queue{QueueOptions: options, queue: workqueue.NewTypedRateLimitingQueue(backoff), byKey: map[string]*keyEvents{}}
}

// Run passes events to the handler, including those that were added before, until ctx ends. It then
// waits for running handlers, whose context is not canceled. It may be called only once.
func (q *Queue) Run(ctx context.Context, handle Handler) {
	workCtx := context.WithoutCancel(ctx)

	var workers sync.WaitGroup

	for range q.Conf.Parallelism {
		workers.Go(func() { q.runWorker(workCtx, handle) })
	}

	<-ctx.Done()

	q.mu.Lock()
	q.isStopping = true
	q.mu.Unlock()

	q.queue.ShutDown()
	workers.Wait()

	for _, waiting := range q.byKey {
		q.addHeld(-float64(len(waiting.items)))
	}
}

// Publish adds an event of this process. It ignores the topic, because a queue has only one, and never fails.
// After Run has ended, it drops the event.
func (q *Queue) Publish(_ context.Context, _ string, event cloudevents.Event) error {
	q.Metrics.published.WithLabelValues(q.Topic).Inc()
	q.add(&delivery{
		Letter: Letter{Event: event}, ack: func() error { return nil }, isAlive: func() bool { return true },
	})

	return nil
}

// CheckPublish returns nil, because a queue needs no connection.
func (*Queue) CheckPublish(context.Context, string) error { return nil }

// addDelivery adds a message from a broker. attempts is how often the broker has delivered the message before.
// A message that is not a valid event is added as a malformed event, which is given up.
func (q *Queue) addDelivery(body []byte, attempts int, ack func() error, alive func() bool) {
	item := &delivery{Letter: Letter{Attempts: attempts}, ack: ack, isAlive: alive}

	// The decoder of events would take the last of two equal keys, and replace invalid UTF-8.
	err := exactjson.Check(body, nil)
	if err == nil {
		err = json.Unmarshal(body, &item.Event)
	}

	if err == nil {
		err = item.Event.Validate()
	}

	if err != nil {
		q.Metrics.errors.WithLabelValues(errorConversion).Inc()
		item.Event, item.Reason, item.Error = newMalformedEvent(body), reasonMalformed, err.Error()
	}

	q.add(item)
}

// add adds a delivery to the events of its key, or folds it into the last waiting one. If the queue stops, it
// drops the delivery.
func (q *Queue) add(item *delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()

	// Drop the delivery. The broker delivers the event again.
	if q.isStopping {
		return
	}

	key := orderingKey(item.Event)

	waiting := q.byKey[key]
	if waiting == nil {
		waiting = &keyEvents{}
		q.byKey[key] = waiting
	}

	q.removeLost(waiting)

	if q.fold(waiting, item) {
		return
	}

	waiting.items = append(waiting.items, item)
	q.addHeld(1)

	// If the key has earlier deliveries, this one follows them, and the key is or will be in the queue.
	if len(waiting.items) == 1 && !waiting.isRunning {
		q.queue.Add(key)
	}
}

// removeLost removes events that the broker will deliver again because their connection was lost.
// The event that is being handled stays.
func (q *Queue) removeLost(waiting *keyEvents) {
	countBefore := len(waiting.items)
	waiting.items = slices.DeleteFunc(waiting.items, func(item *delivery) bool { return !item.isAlive() })

	q.addHeld(float64(len(waiting.items) - countBefore))
}

// fold drops an event that equals the last waiting event of its key, and returns true if it did.
// Otherwise a resource that fails for a long time would collect an event for each time that
// Sentinel evaluated it.
func (q *Queue) fold(waiting *keyEvents, item *delivery) bool {
	if len(waiting.items) == 0 || item.Reason != "" {
		return false
	}

	last := waiting.items[len(waiting.items)-1]
	if last.Reason != "" || last.Event.Type() != item.Event.Type() || last.Event.Source() != item.Event.Source() ||
		last.Event.Subject() != item.Event.Subject() || !bytes.Equal(last.Event.Data(), item.Event.Data()) {
		return false
	}

	q.acknowledge(item)
	q.countResult(resultFolded)

	return true
}

// runWorker handles the first event of each key that is due, until the queue shuts down.
func (q *Queue) runWorker(ctx context.Context, handle Handler) {
	for {
		key, isShutDown := q.queue.Get()
		if isShutDown {
			return
		}

		if item := q.nextDelivery(key); item != nil {
			q.finish(key, item, q.process(ctx, item, handle))
		}

		q.queue.Done(key)
	}
}

// nextDelivery removes the first event of a key. It returns nil if there is none.
func (q *Queue) nextDelivery(key string) *delivery {
	q.mu.Lock()
	defer q.mu.Unlock()

	waiting := q.byKey[key]
	if waiting == nil || q.isStopping {
		return nil
	}

	q.removeLost(waiting)

	if len(waiting.items) == 0 {
		delete(q.byKey, key)

		return nil
	}

	item := waiting.items[0]
	waiting.items, waiting.isRunning = waiting.items[1:], true

	return item
}

// process handles an event or gives it up. It returns an error if the event has to be retried.
func (q *Queue) process(ctx context.Context, item *delivery, handle Handler) error {
	if item.Reason == "" {
		item.Attempts++

		err := q.callHandler(ctx, item, handle)
		if err == nil {
			q.countResult(resultDone)

			return nil
		}

		if !q.shouldGiveUp(item, err) {
			q.countResult(resultRetry)
			q.logFor(item).Warn("could not handle the event: retry later", "tries", item.Attempts, "error", err)

			return err
		}
	}

	if q.GiveUp != nil {
		if err := q.GiveUp(item.Letter); err != nil {
			q.logFor(item).Error("could not give up the event", "error", err)

			return err
		}

		q.Metrics.deadLetters.WithLabelValues(q.Topic, q.Subscription, item.Reason).Inc()
	}

	q.logFor(item).Error("gave up the event", "reason", item.Reason, "tries", item.Attempts, "error", sanitizeLine(item.Error))
	q.countResult(resultDeadLetter)

	return nil
}

// shouldGiveUp returns true if a failed event has to be given up, and records the reason.
func (q *Queue) shouldGiveUp(item *delivery, err error) bool {
	switch {
	case q.GiveUp == nil:
		return false
	case IsPoison(err):
		item.Reason = reasonPoison
	case item.Attempts >= q.Conf.MaxDeliveries:
		item.Reason = ReasonExhausted
	default:
		return false
	}

	item.Error = err.Error()

	return true
}

// callHandler calls the handler. It converts a panic to an error.
func (q *Queue) callHandler(ctx context.Context, item *delivery, handle Handler) (err error) {
	start := time.Now()

	defer func() {
		if recovered := recover(); recovered != nil {
			q.Metrics.errors.WithLabelValues(errorPanic).Inc()
			q.logFor(item).Error("the handler panicked", "panic", recovered, "stack", string(debug.Stack()))

			err = fmt.Errorf("%w: %v", errPanic, recovered)
		} else if err != nil {
			q.Metrics.errors.WithLabelValues(errorHandler).Inc()
		}

		q.Metrics.duration.WithLabelValues(q.Topic, q.Subscription).Observe(time.Since(start).Seconds())
	}()

	return handle(withTrace(ctx, item.Event), item.Event.Clone())
}

// withTrace returns a context that continues the trace of the event.
func withTrace(ctx context.Context, event cloudevents.Event) context.Context {
	parent, _ := event.Extensions()[events.ExtensionTraceParent].(string)

	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": parent})
}

// finish lets the next event of the key be handled. After an error, it puts the event back and delays
// the key.
func (q *Queue) finish(key string, item *delivery, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()

	waiting := q.byKey[key]
	waiting.isRunning = false

	if err != nil {
		waiting.items = slices.Insert(waiting.items, 0, item)
		q.queue.AddRateLimited(key)

		return
	}

	q.acknowledge(item)
	q.addHeld(-1)
	q.queue.Forget(key)

	if len(waiting.items) > 0 {
		q.queue.Add(key)
	} else {
		delete(q.byKey, key)
	}
}

// acknowledge acknowledges an event. If that fails, the broker delivers the event again.
func (q *Queue) acknowledge(item *delivery) {
	if !item.isAlive() {
		return
	}

	if err := item.ack(); err != nil {
		q.Metrics.errors.WithLabelValues(errorAck).Inc()
		q.Log.Warn("could not acknowledge the event: the broker will deliver it again", "error", err)
	}
}

func (q *Queue) logFor(item *delivery) *slog.Logger {
	return q.Log.With("event", item.Event.ID(), "key", orderingKey(item.Event))
}

func (q *Queue) countResult(result string) {
	q.Metrics.consumed.WithLabelValues(q.Topic, q.Subscription, result).Inc()
}

func (q *Queue) addHeld(change float64) {
	q.Metrics.held.WithLabelValues(q.Topic, q.Subscription).Add(change)
}

// orderingKey returns the key by which an event is ordered: its partitionkey. Events of upstream
// programs have none, so the ID of their resource is used. If an event has neither, its own ID is
// used.
func orderingKey(event cloudevents.Event) string {
	if key, ok := event.Extensions()[events.PartitionKey].(string); ok && key != "" {
		return key
	}

	var data struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(event.Data(), &data); err == nil && data.ID != "" {
		return data.ID
	}

	return event.ID()
}
