// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/platform/adapter/pipeline"
	"github.com/hyperfleet/hyperfleet/platform/adapter/serve"
)

const (
	firstLook, lastLook, goneLook = time.Second, 10 * time.Second, 200 * time.Millisecond
	// looksQuiet is the time without a change after which the delay is firstLook again.
	looksQuiet = 30 * time.Second
)

// looked is an adapter in a synctest bubble, with the IDs of the events that it has handled.
type looked struct {
	requeuer *serve.Requeuer

	events  *source
	handled chan string
	// result is the result of each event.
	result pipeline.Result
	// hold keeps an event in progress until the channel is closed.
	hold chan struct{}
}

// inTime runs a test in a synctest bubble.
func inTime(t *testing.T, test func(*testing.T, *looked)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &looked{
			requeuer: serve.NewRequeuer(), events: newSource(t, platform.Broker{Parallelism: 2}), handled: make(chan string, 100),
			hold: make(chan struct{}),
		}
		close(l.hold)

		options := quietly(l.events, func(_ context.Context, event cloudevents.Event) pipeline.Result {
			hold := l.hold
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

// tell sends an event of a resource and waits until it is handled.
func (l *looked) tell(t *testing.T, id, eventID string) {
	t.Helper()

	e := reconcile(id, 1)
	e.SetID(eventID)
	l.events.add(e)

	if got := <-l.handled; got != eventID {
		t.Fatalf("handled %s, want %s", got, eventID)
	}

	synctest.Wait()
}

// pass waits until an event is handled again, and returns the event's ID and the time it took. It
// returns an empty ID if no event is handled within the bound.
func (l *looked) pass(bound time.Duration) (string, time.Duration) {
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
func TestLooksArePaced(t *testing.T) {
	inTime(t, func(t *testing.T, l *looked) {
		t.Helper()
		l.tell(t, "a", "a1")

		want := firstLook

		for range 6 {
			l.requeuer.EnqueueChange("a", false)
			l.requeuer.EnqueueChange("a", false)

			if id, after := l.pass(looksQuiet); id != "a1" || after < want {
				t.Fatalf("handled %q after %s, want a1 after %s", id, after, want)
			}

			want = min(2*want, lastLook)
		}

		if id, _ := l.pass(looksQuiet); id != "" {
			t.Errorf("%s is handled without a change", id)
		}

		time.Sleep(time.Second)
		l.requeuer.EnqueueChange("a", false)

		if id, after := l.pass(looksQuiet); id != "a1" || after >= lastLook {
			t.Errorf("after quiet: handled %q after %s", id, after)
		}
	})
}

func TestLooksAreOfTheLastEvent(t *testing.T) {
	inTime(t, func(t *testing.T, l *looked) {
		t.Helper()
		l.requeuer.EnqueueChange("a", false)
		l.tell(t, "a", "a1")
		l.tell(t, "a", "a2")

		l.result.Trace.Result.Reason = pipeline.ReasonGone
		l.tell(t, "gone", "g1")
		l.result.Trace.Result.Reason = ""

		unknown := reconcile("x", 1)
		unknown.SetExtension("partitionkey", nil)
		l.events.add(unknown)
		<-l.handled

		for _, id := range []string{"a", "gone", "b", "x"} {
			l.requeuer.EnqueueChange(id, false)
		}

		if id, _ := l.pass(looksQuiet); id != "a2" {
			t.Errorf("handled %q, want a2", id)
		}

		if id, _ := l.pass(looksQuiet); id != "" {
			t.Errorf("%s is handled, of a resource that nothing is known of", id)
		}
	})
}

// The deletion of an object of a resource that is being deleted causes a requeue with a short delay,
// even after many changes. Other changes keep their delay.
func TestTheEndOfADeletionIsLookedAtSoon(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		deleting, gone bool
		want           time.Duration
	}{
		"gone, of one that is being deleted":  {deleting: true, gone: true, want: goneLook},
		"changed, of one that is":             {deleting: true, want: 4 * firstLook},
		"gone, of one that is to be there":    {gone: true, want: 4 * firstLook},
		"changed, of one that is to be there": {want: 4 * firstLook},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T, l *looked) {
				t.Helper()

				l.result.Deleting = tc.deleting
				l.tell(t, "a", "a1")

				for range 2 {
					l.requeuer.EnqueueChange("a", false)
					l.pass(looksQuiet)
				}

				// A requeue is already scheduled.
				l.requeuer.EnqueueChange("a", false)
				l.requeuer.EnqueueChange("a", tc.gone)

				if id, after := l.pass(looksQuiet); id != "a1" || after != tc.want {
					t.Errorf("handled %q after %s, want a1 after %s", id, after, tc.want)
				}

				if id, _ := l.pass(looksQuiet); id != "" {
					t.Errorf("%s is handled twice", id)
				}

				l.requeuer.EnqueueChange("a", tc.gone)

				if id, _ := l.pass(looksQuiet); id != "a1" {
					t.Errorf("handled %q after quiet, want a1", id)
				}
			})
		})
	}
}

// A requeued event waits until another event of its resource is handled.
func TestLooksWaitForTheEventInWork(t *testing.T) {
	inTime(t, func(t *testing.T, l *looked) {
		t.Helper()

		hold := make(chan struct{})
		l.hold = hold
		l.tell(t, "a", "a1")
		l.requeuer.EnqueueChange("a", false)

		if id, _ := l.pass(2 * firstLook); id != "" {
			t.Fatalf("%s is handled while another event is in progress", id)
		}

		close(hold)

		if id, _ := l.pass(looksQuiet); id != "a1" {
			t.Errorf("handled %q, want a1", id)
		}
	})
}
