// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bytes"
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

	"github.com/hyperfleet/hyperfleet/api/events"
)

// lanes keep the order of one subscription in this process: a lane for each key, of
// which the first event alone is in work, or waits for its next try. Lanes take turns, so
// that a key with many events does not hold up others, and a lane that waits takes no
// worker.
type lanes struct {
	broker              *Broker
	topic, subscription string
	handle              Handler
	log                 *slog.Logger

	// turns has the keys of lanes whose first event is to be handled, each with one worker
	// at a time, and those whose first event waits for its next try.
	turns   workqueue.TypedRateLimitingInterface[string]
	workers sync.WaitGroup

	mu       sync.Mutex
	byKey    map[string]*lane
	stopping bool
}

type lane struct {
	items []*item
	// running: the first is in work.
	running bool
}

type item struct {
	from  delivery
	event cloudevents.Event
	tries int
	// doomed says why it goes to the dead letters, once that is decided.
	doomed *doom
}

func newLanes(b *Broker, topic, subscription string, handle Handler) *lanes {
	backoff := workqueue.NewTypedItemExponentialFailureRateLimiter[string](b.conf.MinBackoff, b.conf.MaxBackoff)
	l := &lanes{
		broker: b, topic: topic, subscription: subscription, handle: handle,
		log:   b.log.With("topic", topic, "subscription", subscription),
		turns: workqueue.NewTypedRateLimitingQueue(backoff),
		byKey: map[string]*lane{},
	}

	for range b.conf.Parallelism {
		l.workers.Go(l.work)
	}

	return l
}

// add takes a delivery. What comes when no more is begun stands in line as well, until the
// broker delivers all of it again.
func (l *lanes) add(d delivery) {
	one := &item{from: d, tries: d.tries}

	err := json.Unmarshal(d.body, &one.event)
	if err == nil {
		err = one.event.Validate()
	}

	if err != nil {
		l.broker.metrics.errors.WithLabelValues(errorConversion).Inc()
		one.event = malformed(d.body)
		one.doomed = &doom{reason: reasonMalformed, text: err.Error()}
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	key := keyOf(one.event)

	in := l.byKey[key]
	if in == nil {
		in = &lane{}
		l.byKey[key] = in
	}

	l.purge(in)

	if l.fold(in, one) {
		return
	}

	in.items = append(in.items, one)
	l.gauge(1)

	// Else the one before it has a turn, now or after its pause, and this one follows it.
	if len(in.items) == 1 {
		l.turns.Add(key)
	}
}

// purge forgets events that the broker took back with a lost connection, but for the one
// in work.
func (l *lanes) purge(in *lane) {
	first := 0
	if in.running {
		first = 1
	}

	kept := slices.DeleteFunc(in.items[first:], func(one *item) bool { return !one.from.alive() })

	l.gauge(float64(first + len(kept) - len(in.items)))
	in.items = in.items[:first+len(kept)]
}

// fold drops an event that says what the last one in line says, which is yet to be
// handled. A resource that fails for long would else gather an event for each time that
// Sentinel looked at it.
func (l *lanes) fold(in *lane, one *item) bool {
	if len(in.items) == 0 || one.doomed != nil || len(in.items) == 1 && in.running {
		return false
	}

	last := in.items[len(in.items)-1]
	if last.doomed != nil || last.event.Type() != one.event.Type() || last.event.Source() != one.event.Source() ||
		last.event.Subject() != one.event.Subject() || !bytes.Equal(last.event.Data(), one.event.Data()) {
		return false
	}

	l.settle(one.from)
	l.count(resultFolded)

	return true
}

// work is one worker: it handles the first event of the lane whose turn it is.
func (l *lanes) work() {
	for {
		key, ended := l.turns.Get()
		if ended {
			return
		}

		if one := l.first(key); one != nil {
			l.finish(key, one, l.try(one))
		}

		l.turns.Done(key)
	}
}

// first is what is to be handled of a lane; nil if there is nothing.
func (l *lanes) first(key string) *item {
	l.mu.Lock()
	defer l.mu.Unlock()

	in := l.byKey[key]
	if in == nil || l.stopping {
		return nil
	}

	l.purge(in)

	if len(in.items) == 0 {
		delete(l.byKey, key)

		return nil
	}

	in.running = true

	return in.items[0]
}

// try handles an event, or puts it to the dead letters; nil when it is done with.
func (l *lanes) try(one *item) error {
	if one.doomed == nil {
		one.tries++

		err := l.call(one)
		if err == nil {
			l.count(resultDone)

			return nil
		}

		if one.doomed = l.judge(one, err); one.doomed == nil {
			l.count(resultRetry)
			l.log.Warn("event is tried again", "event", one.event.ID(), "key", keyOf(one.event), "tries", one.tries, "error", err)

			return err
		}
	}

	if err := l.bury(one); err != nil {
		l.log.Error("put event to the dead letters", "event", one.event.ID(), "key", keyOf(one.event), "error", err)

		return err
	}

	l.count(resultDeadLetter)

	return nil
}

// call runs the handler.
func (l *lanes) call(one *item) (err error) {
	begin := time.Now()

	defer func() {
		if thrown := recover(); thrown != nil {
			l.broker.metrics.errors.WithLabelValues(errorPanic).Inc()
			l.log.Error("handler panicked", "event", one.event.ID(), "panic", thrown, "stack", string(debug.Stack()))

			err = fmt.Errorf("%w: %v", errPanic, thrown)
		} else if err != nil {
			l.broker.metrics.errors.WithLabelValues(errorHandler).Inc()
		}

		l.broker.metrics.duration.WithLabelValues(l.topic, l.subscription).Observe(time.Since(begin).Seconds())
	}()

	return l.handle(traced(l.broker.hard, one.event), one.event.Clone())
}

// traced continues the trace that the event came from.
func traced(ctx context.Context, event cloudevents.Event) context.Context {
	parent, _ := event.Extensions()[events.ExtensionTraceParent].(string)

	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": parent})
}

// finish frees the lane for its next event, or has it wait.
func (l *lanes) finish(key string, one *item, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	in := l.byKey[key]
	in.running = false

	if err != nil {
		l.turns.AddRateLimited(key)

		return
	}

	l.settle(one.from)

	in.items = in.items[1:]

	l.gauge(-1)
	l.turns.Forget(key)
	l.turns.Add(key)
}

// settle acks; one that could not be acked comes again.
func (l *lanes) settle(d delivery) {
	if !d.alive() {
		return
	}

	if err := d.ack(); err != nil {
		l.broker.metrics.errors.WithLabelValues(errorAck).Inc()
		l.log.Warn("ack event: it will come again", "error", err)
	}
}

// end ends the work: what is in work is handled, and nothing else is begun.
func (l *lanes) end() {
	l.mu.Lock()
	l.stopping = true
	l.mu.Unlock()

	l.turns.ShutDown()
	l.workers.Wait()
}

// drop forgets what was not handled, which the broker has. Nothing is delivered any more.
func (l *lanes) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()

	for _, in := range l.byKey {
		l.gauge(-float64(len(in.items)))
	}
}

func (l *lanes) count(result string) {
	l.broker.metrics.consumed.WithLabelValues(l.topic, l.subscription, result).Inc()
}

func (l *lanes) gauge(change float64) {
	l.broker.metrics.held.WithLabelValues(l.topic, l.subscription).Add(change)
}
