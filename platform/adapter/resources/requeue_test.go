// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/platform/adapter/pipeline"
	"github.com/hyperfleet/hyperfleet/platform/adapter/serve"
)

const (
	firstDelay, lastDelay, deletionDelay = time.Second, 10 * time.Second, 200 * time.Millisecond
	// quietPeriod is the time without a change after which the delay is firstDelay again.
	quietPeriod = 30 * time.Second
)

// requeueFixture is an adapter in a synctest bubble, with the IDs of the events that it has handled.
type requeueFixture struct {
	requeuer *serve.Requeuer

	events  *source
	handled chan string
	// earlier has the calls that the last event got from its requeuer.
	earlier atomic.Pointer[pipeline.Handled]
	// result is the result of each event.
	result pipeline.Result
	// hold keeps an event in progress until the channel is closed.
	hold chan struct{}
}

// runInBubble runs a test in a synctest bubble.
func runInBubble(t *testing.T, test func(*testing.T, *requeueFixture)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &requeueFixture{
			requeuer: serve.NewRequeuer(), events: newSource(t, platform.Broker{Parallelism: 2}), handled: make(chan string, 100),
			hold: make(chan struct{}),
		}
		close(l.hold)

		options := newServeOptions(l.events, func(ctx context.Context, event cloudevents.Event) pipeline.Result {
			hold := l.hold
			earlier, _ := pipeline.EarlierOf(ctx)
			l.earlier.Store(earlier)

			l.handled <- event.ID()
			<-hold

			return l.result
		})
		options.Requeuer = l.requeuer

		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)

		go func() { ended <- serve.Run(ctx, options) }()

		test(t, l)
		cancel()

		if err := <-ended; err != nil {
			t.Error(err)
		}

		// The queues notice their shutdown only with the next tick.
		time.Sleep(time.Minute)
	})
}

// handleEvent sends an event of a resource and waits until it is handled.
func (l *requeueFixture) handleEvent(t *testing.T, id, eventID string) {
	t.Helper()

	e := newReconcileEvent(id, 1)
	e.SetID(eventID)
	l.events.publishEvent(e)

	if got := <-l.handled; got != eventID {
		t.Fatalf("handled %s, want %s", got, eventID)
	}

	synctest.Wait()
}

// waitForRequeue waits until an event is handled again, and returns the event's ID and the time it took. It
// returns an empty ID if no event is handled within the bound.
func (l *requeueFixture) waitForRequeue(bound time.Duration) (string, time.Duration) {
	begin := time.Now()

	select {
	case id := <-l.handled:
		return id, time.Since(begin)
	case <-time.After(bound):
		return "", bound
	}
}

// Several changes cause one requeue. Its delay grows while changes continue, and is short again after
// a time without changes.
func TestRequeueDelayGrows(t *testing.T) {
	runInBubble(t, func(t *testing.T, l *requeueFixture) {
		t.Helper()
		l.handleEvent(t, "a", "a1")

		want := firstDelay

		for range 6 {
			l.requeuer.EnqueueChange("a", false)
			l.requeuer.EnqueueChange("a", false)

			if id, after := l.waitForRequeue(quietPeriod); id != "a1" || after < want {
				t.Fatalf("handled %q after %s, want a1 after %s", id, after, want)
			}

			want = min(2*want, lastDelay)
		}

		if id, _ := l.waitForRequeue(quietPeriod); id != "" {
			t.Errorf("%s was handled again without a change", id)
		}

		time.Sleep(time.Second)
		l.requeuer.EnqueueChange("a", false)

		if id, after := l.waitForRequeue(quietPeriod); id != "a1" || after >= lastDelay {
			t.Errorf("after a quiet period: handled %q after %s", id, after)
		}
	})
}

func TestLastEventIsRequeued(t *testing.T) {
	runInBubble(t, func(t *testing.T, l *requeueFixture) {
		t.Helper()
		l.requeuer.EnqueueChange("a", false)
		l.handleEvent(t, "a", "a1")
		l.handleEvent(t, "a", "a2")

		l.result.Trace.Result.Reason = pipeline.ReasonGone
		l.handleEvent(t, "gone", "g1")
		l.result.Trace.Result.Reason = ""

		unknown := newReconcileEvent("x", 1)
		unknown.SetExtension("partitionkey", nil)
		l.events.publishEvent(unknown)
		<-l.handled

		for _, id := range []string{"a", "gone", "b", "x"} {
			l.requeuer.EnqueueChange(id, false)
		}

		if id, _ := l.waitForRequeue(quietPeriod); id != "a2" {
			t.Errorf("handled %q, want a2", id)
		}

		if id, _ := l.waitForRequeue(quietPeriod); id != "" {
			t.Errorf("%s of a resource without earlier events was handled", id)
		}
	})
}

// The deletion of an object of a resource that is being deleted causes a requeue with a short delay,
// even after many changes. Other changes keep their delay.
func TestDeletionsAreRequeuedSoon(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		deleting, gone bool
		want           time.Duration
	}{
		"object deleted, resource deleting": {deleting: true, gone: true, want: deletionDelay},
		"object changed, resource deleting": {deleting: true, want: 4 * firstDelay},
		"object deleted, resource active":   {gone: true, want: 4 * firstDelay},
		"object changed, resource active":   {want: 4 * firstDelay},
	} {
		t.Run(name, func(t *testing.T) {
			runInBubble(t, func(t *testing.T, l *requeueFixture) {
				t.Helper()

				l.result.Deleting = tc.deleting
				l.handleEvent(t, "a", "a1")

				for range 2 {
					l.requeuer.EnqueueChange("a", false)
					l.waitForRequeue(quietPeriod)
				}

				// A requeue is already scheduled.
				l.requeuer.EnqueueChange("a", false)
				l.requeuer.EnqueueChange("a", tc.gone)

				if id, after := l.waitForRequeue(quietPeriod); id != "a1" || after != tc.want {
					t.Errorf("handled %q after %s, want a1 after %s", id, after, tc.want)
				}

				if id, _ := l.waitForRequeue(quietPeriod); id != "" {
					t.Errorf("%s was handled twice", id)
				}

				l.requeuer.EnqueueChange("a", tc.gone)

				if id, _ := l.waitForRequeue(quietPeriod); id != "a1" {
					t.Errorf("handled %q after the quiet period, want a1", id)
				}
			})
		})
	}
}

// A requeued event waits until another event of its resource is handled.
func TestRequeueWaitsForTheEventInProgress(t *testing.T) {
	runInBubble(t, func(t *testing.T, l *requeueFixture) {
		t.Helper()

		hold := make(chan struct{})
		l.hold = hold
		l.handleEvent(t, "a", "a1")
		l.requeuer.EnqueueChange("a", false)

		if id, _ := l.waitForRequeue(2 * firstDelay); id != "" {
			t.Fatalf("%s was handled while another event was in progress", id)
		}

		close(hold)

		if id, _ := l.waitForRequeue(quietPeriod); id != "a1" {
			t.Errorf("handled %q, want a1", id)
		}
	})
}

// A requeued event gets the calls of its last handling, unless another event was in progress at the same time, because it
// is then unknown which of them has reported last.
func TestRequeueHasTheCallsOfItsEvent(t *testing.T) {
	runInBubble(t, func(t *testing.T, l *requeueFixture) {
		t.Helper()

		l.result.Handled = &pipeline.Handled{}

		requeue := func(want *pipeline.Handled) {
			l.requeuer.EnqueueChange("a", false)

			if id, _ := l.waitForRequeue(quietPeriod); id == "" || l.earlier.Load() != want {
				t.Errorf("the requeue of %q has the calls %p, want %p", id, l.earlier.Load(), want)
			}
		}

		l.handleEvent(t, "a", "a1")

		if l.earlier.Load() != nil {
			t.Error("an event of the source has earlier calls")
		}

		requeue(l.result.Handled)
		requeue(l.result.Handled)

		hold := make(chan struct{})
		l.hold = hold

		requeue(l.result.Handled)
		l.handleEvent(t, "a", "a2") // while the requeued event is in progress
		close(hold)
		synctest.Wait()

		requeue(nil)
		requeue(l.result.Handled)
	})
}

// A change that the task file does not read requeues an event that has failed, also if it fails only after the change.
func TestUnreadChangeRequeuesFailedEvents(t *testing.T) {
	runInBubble(t, func(t *testing.T, l *requeueFixture) {
		t.Helper()

		l.requeuer.EnqueueIfFailed("a")
		l.handleEvent(t, "a", "a1")
		l.requeuer.EnqueueIfFailed("a")

		if id, _ := l.waitForRequeue(quietPeriod); id != "" {
			t.Fatalf("%s was handled again, and has not failed", id)
		}

		// hold makes the next event fail or not after the change.
		handleDuringChange := func(eventID string, status pipeline.Status) {
			hold := make(chan struct{})
			l.hold, l.result.Status = hold, status

			l.handleEvent(t, "a", eventID)
			l.requeuer.EnqueueIfFailed("a")
			close(hold)
			synctest.Wait()
		}

		handleDuringChange("a2", pipeline.Success)

		if id, _ := l.waitForRequeue(quietPeriod); id != "" {
			t.Fatalf("%s was handled again, and has not failed", id)
		}

		handleDuringChange("a3", pipeline.Failed)

		if id, after := l.waitForRequeue(quietPeriod); id != "a3" || after != firstDelay {
			t.Fatalf("handled %q after %s, want a3 after %s", id, after, firstDelay)
		}

		l.requeuer.EnqueueIfFailed("a")

		if id, _ := l.waitForRequeue(quietPeriod); id != "a3" {
			t.Errorf("handled %q, want a3, which has failed", id)
		}
	})
}
