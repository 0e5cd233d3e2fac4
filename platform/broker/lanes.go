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
)

const (
	defaultParallelism   = 8
	defaultMaxDeliveries = 10
	defaultMinBackoff    = 500 * time.Millisecond
	defaultMaxBackoff    = 30 * time.Second
)

// QueueOptions of NewQueue.
type QueueOptions struct {
	// Conf has the numbers; what it says of a broker is not looked at.
	Conf platform.Broker
	// Topic and Subscription are what metrics and the log name.
	Topic, Subscription string
	// GiveUp takes an event that is not tried any more, before the next one of its key is. Where
	// it fails, it is called again after a pause. Without it events are tried for ever.
	GiveUp func(Letter) error
	// Log. Default: none.
	Log *slog.Logger
	// Metrics. Required.
	Metrics *Metrics
}

// Queue keeps the order of one subscription in this process: a lane for each key, of
// which the first event alone is in work, or waits for its next try. Lanes take turns, so
// that a key with many events does not hold up others, and a lane that waits takes no
// worker.
type Queue struct {
	QueueOptions

	handle func(cloudevents.Event) error

	// turns has the keys of lanes whose first event is to be handled, each with one worker
	// at a time, and those whose first event waits for its next try.
	turns workqueue.TypedRateLimitingInterface[string]

	mu       sync.Mutex
	byKey    map[string]*lane
	stopping bool
}

type lane struct {
	// items are in line, or the first of them waits for its next try.
	items []*delivery
	// running: one more is in work.
	running bool
}

// delivery is an event that was handed out and is not yet done.
type delivery struct {
	Letter

	// ack says that it is done. An error means that it may come again.
	ack func() error
	// alive is false when the broker will deliver it again whatever is said now.
	alive func() bool
}

// NewQueue makes a queue, with defaults in the place of what is not said.
func NewQueue(options QueueOptions) *Queue {
	conf := &options.Conf
	conf.Parallelism = cmp.Or(max(conf.Parallelism, 0), defaultParallelism)
	conf.MaxDeliveries = cmp.Or(max(conf.MaxDeliveries, 0), defaultMaxDeliveries)
	conf.MinBackoff = cmp.Or(max(conf.MinBackoff, 0), defaultMinBackoff)
	conf.MaxBackoff = max(cmp.Or(max(conf.MaxBackoff, 0), defaultMaxBackoff), conf.MinBackoff)

	options.Log = cmp.Or(options.Log, slog.New(slog.DiscardHandler))
	options.Log = options.Log.With("topic", options.Topic, "subscription", options.Subscription)
	backoff := workqueue.NewTypedItemExponentialFailureRateLimiter[string](conf.MinBackoff, conf.MaxBackoff)

	return &Queue{QueueOptions: options, turns: workqueue.NewTypedRateLimitingQueue(backoff), byKey: map[string]*lane{}}
}

// Run hands events to the handler, those that came before as well, until ctx ends, and
// returns when those in work are handled, whose context goes on. It may be called once.
func (q *Queue) Run(ctx context.Context, handle Handler) {
	work := context.WithoutCancel(ctx)
	q.handle = func(event cloudevents.Event) error { return handle(traced(work, event), event.Clone()) }

	var workers sync.WaitGroup

	for range q.Conf.Parallelism {
		workers.Go(q.work)
	}

	<-ctx.Done()

	q.mu.Lock()
	q.stopping = true
	q.mu.Unlock()

	q.turns.ShutDown()
	workers.Wait()

	for _, in := range q.byKey {
		q.gauge(-float64(len(in.items)))
	}
}

// Add puts an event in line. What comes when Run ends is dropped.
func (q *Queue) Add(event cloudevents.Event) {
	q.Metrics.published.WithLabelValues(q.Topic).Inc()
	q.add(&delivery{
		Letter: Letter{Event: event}, ack: func() error { return nil }, alive: func() bool { return true },
	})
}

// take puts in line what came from a broker, which has delivered it so often before.
func (q *Queue) take(body []byte, tries int, ack func() error, alive func() bool) {
	one := &delivery{Letter: Letter{Tries: tries}, ack: ack, alive: alive}

	err := json.Unmarshal(body, &one.Event)
	if err == nil {
		err = one.Event.Validate()
	}

	if err != nil {
		q.Metrics.errors.WithLabelValues(errorConversion).Inc()
		one.Event, one.Reason, one.Error = malformed(body), reasonMalformed, err.Error()
	}

	q.add(one)
}

func (q *Queue) add(one *delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()

	// The broker delivers it again.
	if q.stopping {
		return
	}

	key := keyOf(one.Event)

	in := q.byKey[key]
	if in == nil {
		in = &lane{}
		q.byKey[key] = in
	}

	q.purge(in)

	if q.fold(in, one) {
		return
	}

	in.items = append(in.items, one)
	q.gauge(1)

	// Else the one before it has a turn, now or after its pause, and this one follows it.
	if len(in.items) == 1 && !in.running {
		q.turns.Add(key)
	}
}

// purge forgets events that the broker took back with a lost connection, but for the one
// in work.
func (q *Queue) purge(in *lane) {
	before := len(in.items)
	in.items = slices.DeleteFunc(in.items, func(one *delivery) bool { return !one.alive() })

	q.gauge(float64(len(in.items) - before))
}

// fold drops an event that says what the last one in line says, which is yet to be
// handled. A resource that fails for long would else gather an event for each time that
// Sentinel looked at it.
func (q *Queue) fold(in *lane, one *delivery) bool {
	if len(in.items) == 0 || one.Reason != "" {
		return false
	}

	last := in.items[len(in.items)-1]
	if last.Reason != "" || last.Event.Type() != one.Event.Type() || last.Event.Source() != one.Event.Source() ||
		last.Event.Subject() != one.Event.Subject() || !bytes.Equal(last.Event.Data(), one.Event.Data()) {
		return false
	}

	q.settle(one)
	q.count(resultFolded)

	return true
}

// work is one worker: it handles the first event of the lane whose turn it is.
func (q *Queue) work() {
	for {
		key, ended := q.turns.Get()
		if ended {
			return
		}

		if one := q.first(key); one != nil {
			q.finish(key, one, q.try(one))
		}

		q.turns.Done(key)
	}
}

// first is what is to be handled of a lane; nil if there is nothing.
func (q *Queue) first(key string) *delivery {
	q.mu.Lock()
	defer q.mu.Unlock()

	in := q.byKey[key]
	if in == nil || q.stopping {
		return nil
	}

	q.purge(in)

	if len(in.items) == 0 {
		delete(q.byKey, key)

		return nil
	}

	one := in.items[0]
	in.items, in.running = in.items[1:], true

	return one
}

// try handles an event, or gives it up; nil when it is done with.
func (q *Queue) try(one *delivery) error {
	if one.Reason == "" {
		one.Tries++

		err := q.call(one)
		if err == nil {
			q.count(resultDone)

			return nil
		}

		if !q.hopeless(one, err) {
			q.count(resultRetry)
			q.about(one).Warn("event is tried again", "tries", one.Tries, "error", err)

			return err
		}
	}

	if q.GiveUp != nil {
		if err := q.GiveUp(one.Letter); err != nil {
			q.about(one).Error("give event up", "error", err)

			return err
		}

		q.Metrics.deadLetters.WithLabelValues(q.Topic, q.Subscription, one.Reason).Inc()
	}

	q.about(one).Error("event is given up", "reason", one.Reason, "tries", one.Tries, "error", line(one.Error))
	q.count(resultDeadLetter)

	return nil
}

// hopeless says whether a failed event is given up, and notes why.
func (q *Queue) hopeless(one *delivery, err error) bool {
	switch {
	case q.GiveUp == nil:
		return false
	case IsPoison(err):
		one.Reason = reasonPoison
	case one.Tries >= q.Conf.MaxDeliveries:
		one.Reason = ReasonExhausted
	default:
		return false
	}

	one.Error = err.Error()

	return true
}

// call runs the handler.
func (q *Queue) call(one *delivery) (err error) {
	begin := time.Now()

	defer func() {
		if thrown := recover(); thrown != nil {
			q.Metrics.errors.WithLabelValues(errorPanic).Inc()
			q.about(one).Error("handler panicked", "panic", thrown, "stack", string(debug.Stack()))

			err = fmt.Errorf("%w: %v", errPanic, thrown)
		} else if err != nil {
			q.Metrics.errors.WithLabelValues(errorHandler).Inc()
		}

		q.Metrics.duration.WithLabelValues(q.Topic, q.Subscription).Observe(time.Since(begin).Seconds())
	}()

	return q.handle(one.Event)
}

// traced continues the trace that the event came from.
func traced(ctx context.Context, event cloudevents.Event) context.Context {
	parent, _ := event.Extensions()[events.ExtensionTraceParent].(string)

	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": parent})
}

// finish frees the lane for its next event, or has it wait.
func (q *Queue) finish(key string, one *delivery, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()

	in := q.byKey[key]
	in.running = false

	if err != nil {
		in.items = slices.Insert(in.items, 0, one)
		q.turns.AddRateLimited(key)

		return
	}

	q.settle(one)
	q.gauge(-1)
	q.turns.Forget(key)
	q.turns.Add(key)
}

// settle acks; one that could not be acked comes again.
func (q *Queue) settle(one *delivery) {
	if !one.alive() {
		return
	}

	if err := one.ack(); err != nil {
		q.Metrics.errors.WithLabelValues(errorAck).Inc()
		q.Log.Warn("ack event: it will come again", "error", err)
	}
}

// about logs of an event.
func (q *Queue) about(one *delivery) *slog.Logger {
	return q.Log.With("event", one.Event.ID(), "key", keyOf(one.Event))
}

func (q *Queue) count(result string) {
	q.Metrics.consumed.WithLabelValues(q.Topic, q.Subscription, result).Inc()
}

func (q *Queue) gauge(change float64) {
	q.Metrics.held.WithLabelValues(q.Topic, q.Subscription).Add(change)
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
