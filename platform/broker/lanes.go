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
	"sync"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"go.opentelemetry.io/otel/propagation"

	"github.com/hyperfleet/hyperfleet/api/events"
)

// lanes keep the order of one subscription in this process: a lane for each key, of
// which the first event alone is in work, or waits for its next try. Lanes take turns, so
// that a key with many events does not hold up others, and a lane that waits takes no
// worker.
type lanes struct {
	core                *core
	topic, subscription string
	handle              Handler
	log                 *slog.Logger

	mu       sync.Mutex
	wake     *sync.Cond
	byKey    map[string]*lane
	ready    []*lane
	stopping bool
	workers  sync.WaitGroup
}

type laneState int

const (
	laneIdle laneState = iota
	// laneReady is in the line of those that wait for a worker.
	laneReady
	laneRunning
	// laneWaiting waits for the next try of its first event.
	laneWaiting
)

type lane struct {
	key   string
	state laneState
	items []*item
	// pause tells a wait that is over from one that was given up.
	pause int
}

type item struct {
	from  delivery
	event cloudevents.Event
	tries int
	// doomed says why it goes to the dead letters, once that is decided.
	doomed *doom
}

func newLanes(c *core, topic, subscription string, handle Handler) *lanes {
	l := &lanes{
		core: c, topic: topic, subscription: subscription, handle: handle,
		log:   c.log.With("topic", topic, "subscription", subscription),
		byKey: map[string]*lane{},
	}
	l.wake = sync.NewCond(&l.mu)

	for range c.conf.Parallelism {
		l.workers.Go(l.work)
	}

	return l
}

// add takes a delivery. What comes when no more is begun stands in line as well: else the
// broker would have it overtake what came before it, when all is given back.
func (l *lanes) add(d delivery) {
	one := &item{from: d, tries: d.tries()}
	err := json.Unmarshal(d.body(), &one.event)
	if err == nil {
		err = one.event.Validate()
	}

	if err != nil {
		l.core.metrics.errors.WithLabelValues(errorConversion).Inc()
		one.event = malformed(d.body())
		one.doomed = &doom{reason: reasonMalformed, text: err.Error()}
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	key := keyOf(one.event)

	in := l.byKey[key]
	if in == nil {
		in = &lane{key: key}
		l.byKey[key] = in
	}

	l.purge(in)

	if l.fold(in, one) {
		return
	}

	in.items = append(in.items, one)

	l.gauge(1)

	if in.state == laneIdle {
		l.enqueue(in)
	}
}

// purge forgets events that the broker took back with a lost connection, but for the one
// in work.
func (l *lanes) purge(in *lane) {
	kept := in.items[:0]

	for i, one := range in.items {
		switch {
		case i == 0 && in.state == laneRunning, one.from.alive():
			kept = append(kept, one)
		default:
			l.gauge(-1)

			if i == 0 && in.state == laneWaiting {
				in.state = laneIdle
				in.pause++
			}
		}
	}

	clear(in.items[len(kept):])
	in.items = kept

	if in.state == laneIdle && len(in.items) > 0 {
		l.enqueue(in)
	}
}

// fold drops an event that says what the last one in line says, which is yet to be
// handled. A resource that fails for long would else gather an event for each time that
// Sentinel looked at it.
func (l *lanes) fold(in *lane, one *item) bool {
	if len(in.items) == 0 || one.doomed != nil || len(in.items) == 1 && in.state == laneRunning {
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

func (l *lanes) enqueue(in *lane) {
	in.state = laneReady
	l.ready = append(l.ready, in)
	l.wake.Signal()
}

// work is one worker: it handles the first event of the lane whose turn it is.
func (l *lanes) work() {
	for {
		in, one := l.next()
		if in == nil {
			return
		}

		l.finish(in, one, l.try(one))
	}
}

func (l *lanes) next() (*lane, *item) {
	l.mu.Lock()
	defer l.mu.Unlock()

	for {
		for len(l.ready) == 0 && !l.stopping {
			l.wake.Wait()
		}

		if l.stopping {
			return nil, nil
		}

		in := l.ready[0]
		l.ready[0] = nil
		l.ready = l.ready[1:]
		in.state = laneIdle
		l.drop(in)

		if len(in.items) == 0 {
			delete(l.byKey, in.key)

			continue
		}

		in.state = laneRunning

		return in, in.items[0]
	}
}

// drop forgets the first events of an idle lane as long as the broker took them back.
func (l *lanes) drop(in *lane) {
	for len(in.items) > 0 && !in.items[0].from.alive() {
		l.pop(in)
	}
}

func (l *lanes) pop(in *lane) {
	in.items = in.items[1:]
	l.gauge(-1)
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
	begin := l.core.clock.Now()

	defer func() {
		if thrown := recover(); thrown != nil {
			l.core.metrics.errors.WithLabelValues(errorPanic).Inc()
			l.log.Error("handler panicked", "event", one.event.ID(), "panic", thrown, "stack", string(debug.Stack()))

			err = fmt.Errorf("%w: %v", errPanic, thrown)
		} else if err != nil {
			l.core.metrics.errors.WithLabelValues(errorHandler).Inc()
		}

		l.core.metrics.duration.WithLabelValues(l.topic, l.subscription).Observe(l.core.clock.Since(begin).Seconds())
	}()

	return l.handle(traced(l.core.hard, one.event), one.event.Clone())
}

// traced continues the trace that the event came from.
func traced(ctx context.Context, event cloudevents.Event) context.Context {
	parent, _ := event.Extensions()[events.ExtensionTraceParent].(string)

	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": parent})
}

// finish frees the lane for its next event, or has it wait.
func (l *lanes) finish(in *lane, one *item, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if err == nil {
		l.settle(one.from)
		l.pop(in)

		in.state = laneIdle

		switch {
		case len(in.items) > 0:
			l.enqueue(in)
		default:
			delete(l.byKey, in.key)
		}

		return
	}

	in.state = laneWaiting
	in.pause++
	pause := in.pause

	l.core.clock.AfterFunc(l.core.backoff(one.tries), func() { l.resume(in, pause) })
}

// resume puts a lane in line whose wait is over.
func (l *lanes) resume(in *lane, pause int) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if !l.stopping && in.state == laneWaiting && in.pause == pause {
		l.enqueue(in)
	}
}

// settle acks; one that could not be acked comes again.
func (l *lanes) settle(d delivery) {
	if !d.alive() {
		return
	}

	if err := d.ack(); err != nil {
		l.core.metrics.errors.WithLabelValues(errorAck).Inc()
		l.log.Warn("ack event: it will come again", "error", err)
	}
}

// end ends the work: what is in work is handled, and nothing else is begun.
func (l *lanes) end() {
	l.mu.Lock()
	l.stopping = true
	l.wake.Broadcast()
	l.mu.Unlock()

	l.workers.Wait()
}

// giveBack gives what was not handled back to the broker, the events of each key in their
// order. Nothing is delivered any more.
func (l *lanes) giveBack() {
	l.mu.Lock()
	defer l.mu.Unlock()

	for key, in := range l.byKey {
		for _, one := range in.items {
			one.from.release()
			l.gauge(-1)
		}

		delete(l.byKey, key)
	}

	l.ready = nil
}

func (l *lanes) count(result string) {
	l.core.metrics.consumed.WithLabelValues(l.topic, l.subscription, result).Inc()
}

func (l *lanes) gauge(change float64) {
	l.core.metrics.held.WithLabelValues(l.topic, l.subscription).Add(change)
}
