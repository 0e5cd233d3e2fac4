// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"sync"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/hyperfleet/hyperfleet/api/events"
	"github.com/hyperfleet/hyperfleet/platform/adapter/pipeline"
)

const (
	// minDelay is the delay between the first change of an object and the requeue of its resource.
	// All changes during the delay cause one requeue.
	minDelay = time.Second
	// maxDelay is the maximum delay while changes continue. It equals Sentinel's resync period for
	// resources that are not reconciled.
	maxDelay = 10 * time.Second
	// resetInterval is the time without a change after which the delay is minDelay again.
	resetInterval = 30 * time.Second
	// deletionDelay is the delay after the deletion of an object whose resource is being deleted. It is
	// short because the deletion of the resource waits for its last object, and each object is
	// deleted only once.
	deletionDelay = 200 * time.Millisecond
	// workers is the number of events that are handled again at the same time.
	workers = 4
	// maxResources is the number of resources whose last event is kept. Other resources wait for
	// Sentinel's next event.
	maxResources = 10_000
)

// Requeuer handles the last event of a resource again when one of its objects has changed, for
// example when a deletion is done, when a job has ended, or when another program has deleted an
// object. Without the Requeuer, the adapter would see the change only with Sentinel's next event for
// the resource, after 10 seconds or 30 minutes.
//
// The Requeuer gives no guarantee. Resources without a stored event and failed events wait for
// Sentinel. Handling an event twice is safe, because the pipeline reads the current state from the API before it changes
// or reports anything.
type Requeuer struct {
	clock clock.PassiveClock
	queue workqueue.TypedDelayingInterface[string]
	// records are the last events, by resource.
	records *lru.Cache

	mu sync.Mutex
	// inProgress counts the events in progress, by resource.
	inProgress map[string]int
}

// record is the state of a resource.
type record struct {
	// event is the last event. Handlers do not change events.
	event cloudevents.Event
	// deleting is true if the resource was being deleted when its event was last handled, and hasFailed is true if the
	// event has failed.
	deleting, hasFailed bool
	// hasUnread is true if EnqueueIfFailed was called while the event was in progress.
	hasUnread bool
	// handled has the calls of the event. It is nil while an event of the resource is in progress.
	handled *pipeline.Handled
	// isOverlapped is true if two events of the resource are or were in progress at the same time, until both are done. It is
	// then unknown which of them has reported last.
	isOverlapped bool
	// requeuedAt is the time of the last requeue, and delay its delay.
	requeuedAt time.Time
	delay      time.Duration
}

// NewRequeuer creates a Requeuer.
func NewRequeuer() *Requeuer {
	return &Requeuer{
		clock: clock.RealClock{}, queue: workqueue.NewTypedDelayingQueue[string](), records: lru.New(maxResources),
		inProgress: map[string]int{},
	}
}

// EnqueueChange requeues the resource because one of its objects has changed or was deleted. It does
// nothing for a resource without a stored event. It does not block.
func (l *Requeuer) EnqueueChange(resourceID string, isDeleted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if resource := l.get(resourceID); resource != nil {
		l.schedule(resourceID, resource, isDeleted)
	}
}

// EnqueueIfFailed requeues the resource if its last event has failed, or the event in progress fails. It is for a change of
// an object that the task file does not read. Only the API server can depend on such a change, for example
// because an admission webhook has rejected another object until then.
func (l *Requeuer) EnqueueIfFailed(resourceID string) {
	l.mu.Lock()
	defer l.mu.Unlock()

	switch resource := l.get(resourceID); {
	case resource == nil:
	case l.inProgress[resourceID] > 0:
		resource.hasUnread = true
	case resource.hasFailed:
		l.schedule(resourceID, resource, false)
	}
}

// schedule requeues a resource after its delay. The caller holds mu.
func (l *Requeuer) schedule(resourceID string, resource *record, isDeleted bool) {
	now := l.clock.Now()
	since := now.Sub(resource.requeuedAt)
	// remaining is the time until the requeue that is already scheduled.
	remaining := resource.delay - since

	switch {
	case isDeleted && resource.deleting && (remaining <= 0 || remaining > deletionDelay):
		resource.delay = deletionDelay
	case remaining > 0:
		return
	case since > resetInterval:
		resource.delay = minDelay
	default:
		resource.delay = min(2*resource.delay, maxDelay)
	}

	resource.requeuedAt = now
	l.queue.AddAfter(resourceID, resource.delay)
}

func (l *Requeuer) get(resourceID string) *record {
	value, _ := l.records.Get(resourceID)
	resource, _ := value.(*record)

	return resource
}

// requeue is an event to handle again.
type requeue struct {
	event cloudevents.Event
	// earlier has the calls of the event, for pipeline.WithRequeue.
	earlier *pipeline.Handled
	// end records the result.
	end func(*pipeline.Result)
}

// beginEvent records the start of an event. The returned function records its result.
func (l *Requeuer) beginEvent(event *cloudevents.Event) (end func(*pipeline.Result)) {
	id, _ := event.Extensions()[events.PartitionKey].(string)
	if id == "" {
		return func(*pipeline.Result) {}
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	resource := l.get(id)
	if resource == nil {
		resource = &record{}
		l.records.Add(id, resource)
	}

	resource.event = *event

	return l.begin(id, resource)
}

// begin records the start of the event of a resource. The caller holds mu.
func (l *Requeuer) begin(id string, resource *record) (end func(*pipeline.Result)) {
	l.inProgress[id]++
	resource.handled = nil
	resource.isOverlapped = resource.isOverlapped || l.inProgress[id] > 1

	return func(result *pipeline.Result) {
		l.mu.Lock()
		defer l.mu.Unlock()

		l.inProgress[id]--

		isLast := l.inProgress[id] == 0
		if isLast {
			delete(l.inProgress, id)
		}

		if resource := l.get(id); resource != nil {
			resource.deleting, resource.hasFailed = result.Deleting, result.Status == pipeline.Failed

			if !resource.isOverlapped {
				resource.handled = result.Handled
			}

			resource.isOverlapped = resource.isOverlapped && !isLast

			if resource.hasFailed && resource.hasUnread {
				l.schedule(id, resource, false)
			}

			resource.hasUnread = resource.hasUnread && !isLast
		}

		if result.Trace.Result.Reason == pipeline.ReasonGone {
			l.records.Remove(id)
		}
	}
}

// takeEvent returns the event to handle again, and records its start. While another event of the resource is in
// progress, it requeues the resource and returns false. It also returns false if the resource has no stored event.
func (l *Requeuer) takeEvent(id string) (again requeue, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	resource := l.get(id)
	if resource == nil {
		return again, false
	}

	if l.inProgress[id] > 0 {
		l.queue.AddAfter(id, resource.delay)

		return again, false
	}

	again = requeue{event: resource.event, earlier: resource.handled}
	again.end = l.begin(id, resource)

	return again, true
}

// run calls handle for requeued events until ctx ends, and then waits for the calls in progress.
func (l *Requeuer) run(ctx context.Context, handle func(context.Context, requeue)) {
	var group sync.WaitGroup
	defer group.Wait()

	for range workers {
		group.Go(func() {
			for {
				id, isShutDown := l.queue.Get()
				if isShutDown {
					return
				}

				if ctx.Err() == nil {
					if again, ok := l.takeEvent(id); ok {
						handle(ctx, again)
					}
				}

				l.queue.Done(id)
			}
		})
	}

	<-ctx.Done()
	l.queue.ShutDown()
}
