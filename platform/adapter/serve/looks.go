// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"cmp"
	"context"
	"sync"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/hyperfleet/hyperfleet/api/events"
)

const (
	// firstLook is how long after a change of an object its resource is looked at: changes
	// that follow each other are one look.
	firstLook = time.Second
	// lastLook is what that grows to while changes go on: Sentinel's own cadence for what
	// is not reconciled.
	lastLook = 10 * time.Second
	// quiet is how long nothing has to change until the next change is looked at soon again.
	quiet = 30 * time.Second
	// goneLook is how long after the end of an object its resource is looked at, if that is
	// being deleted: somebody waits for the last of them, and each ends once.
	goneLook = 200 * time.Millisecond
	// lookers handle events again.
	lookers = 4
	// maxKnown events are kept. The resources beyond them wait for Sentinel.
	maxKnown = 10_000
)

// Looks handle the last event of a resource again when one of its objects has changed:
// when a deletion is done, a job has ended, or somebody has removed an object. Else the
// adapter would learn of it with Sentinel's next event for the resource, 10 seconds later
// or 30 minutes.
//
// It is a help and no promise: what it does not know, and what fails, waits for Sentinel.
// An event that is handled twice does no harm; the API is asked what is true now.
type Looks struct {
	clock clock.WithTicker
	queue workqueue.TypedDelayingInterface[string]
	// known are the last events, by resource.
	known *lru.Cache

	mu sync.Mutex
	// busy counts the events of a resource that are in work.
	busy map[string]int
}

// known is what is kept of a resource.
type known struct {
	event cloudevents.Event
	// deleting says that the resource was being deleted when it was last handled.
	deleting bool
	// at is when a look was last planned, and pause how long it was to wait.
	at    time.Time
	pause time.Duration
}

// NewLooks makes one. The clock's default is the real one.
func NewLooks(timer clock.WithTicker) *Looks {
	timer = cmp.Or[clock.WithTicker](timer, clock.RealClock{})

	queue := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{Clock: timer})

	return &Looks{clock: timer, queue: queue, known: lru.New(maxKnown), busy: map[string]int{}}
}

// Changed says that an object of the resource has changed, or gone. It does not wait.
func (l *Looks) Changed(resourceID string, gone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	one := l.get(resourceID)
	if one == nil {
		return
	}

	now := l.clock.Now()
	since := now.Sub(one.at)
	// planned is how long it is to the look that is planned.
	planned := one.pause - since

	switch {
	case gone && one.deleting && (planned <= 0 || planned > goneLook):
		one.pause = goneLook
	case planned > 0:
		return
	case since > quiet:
		one.pause = firstLook
	default:
		one.pause = min(2*one.pause, lastLook)
	}

	one.at = now
	l.queue.AddAfter(resourceID, one.pause)
}

func (l *Looks) get(resourceID string) *known {
	value, _ := l.known.Get(resourceID)
	one, _ := value.(*known)

	return one
}

// begin notes an event that is taken up; what is returned notes its end, and whether the
// resource is gone, or being deleted.
func (l *Looks) begin(event *cloudevents.Event) (end func(gone, deleting bool)) {
	id, _ := event.Extensions()[events.PartitionKey].(string)
	if id == "" {
		return func(bool, bool) {}
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	l.busy[id]++

	if one := l.get(id); one != nil {
		one.event = event.Clone()
	} else {
		l.known.Add(id, &known{event: event.Clone()})
	}

	return func(gone, deleting bool) {
		l.mu.Lock()
		defer l.mu.Unlock()

		l.busy[id]--
		if l.busy[id] == 0 {
			delete(l.busy, id)
		}

		if one := l.get(id); one != nil {
			one.deleting = deleting
		}

		if gone {
			l.known.Remove(id)
		}
	}
}

// take gives the event to handle again; false while another of the resource is in work,
// after which the next look is due.
func (l *Looks) take(id string) (event cloudevents.Event, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	one := l.get(id)
	if one == nil {
		return event, false
	}

	if l.busy[id] > 0 {
		l.queue.AddAfter(id, one.pause)

		return event, false
	}

	return one.event.Clone(), true
}

// run looks until ctx ends, which ends those in work.
func (l *Looks) run(ctx context.Context, look func(context.Context, cloudevents.Event)) {
	var workers sync.WaitGroup
	defer workers.Wait()

	for range lookers {
		workers.Go(func() {
			for {
				id, ended := l.queue.Get()
				if ended {
					return
				}

				if event, ok := l.take(id); ok && ctx.Err() == nil {
					look(ctx, event)
				}

				l.queue.Done(id)
			}
		})
	}

	<-ctx.Done()
	l.queue.ShutDown()
}
