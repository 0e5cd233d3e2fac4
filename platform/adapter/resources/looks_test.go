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
	// looksQuiet is how long nothing has to change until the next change is looked at soon again.
	looksQuiet = 30 * time.Second
)

// looked is an adapter in a bubble of time, with the events and looks that it has handled.
type looked struct {
	*serve.Looks

	events  *source
	handled chan string
	// result is what becomes of each.
	result pipeline.Result
	// hold keeps an event in work until it is closed.
	hold chan struct{}
}

// inTime runs a test in a bubble of time.
func inTime(t *testing.T, test func(*testing.T, *looked)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &looked{
			Looks: serve.NewLooks(nil), events: newSource(t, platform.Broker{Parallelism: 2}), handled: make(chan string, 100),
			hold: make(chan struct{}),
		}
		close(l.hold)

		options := quietly(l.events, func(_ context.Context, event cloudevents.Event) pipeline.Result {
			hold := l.hold
			l.handled <- event.ID()
			<-hold

			return l.result
		})
		options.Looks = l.Looks

		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)

		go func() { ended <- serve.Run(ctx, options) }()

		test(t, l)
		cancel()

		if err := <-ended; err != nil {
			t.Error(err)
		}

		// Its queues see that they are shut down when they next look.
		time.Sleep(time.Minute)
	})
}

// tell has an event of a resource handled.
func (l *looked) tell(t *testing.T, id, eventID string) {
	t.Helper()

	e := reconcile(id, 1)
	e.SetID(eventID)
	l.events.Add(e)

	if got := <-l.handled; got != eventID {
		t.Fatalf("handled %s, want %s", got, eventID)
	}

	synctest.Wait()
}

// pass lets time pass until a look is handled, and tells which and after how long; nothing
// if none is within the bound.
func (l *looked) pass(bound time.Duration) (string, time.Duration) {
	begin := time.Now()

	select {
	case id := <-l.handled:
		return id, time.Since(begin)
	case <-time.After(bound):
		return "", bound
	}
}

// Changes that follow each other are one look, later and later while they go on, and soon
// again once there was quiet.
func TestLooksArePaced(t *testing.T) {
	inTime(t, func(t *testing.T, l *looked) {
		t.Helper()
		l.tell(t, "a", "a1")

		want := firstLook

		for range 6 {
			l.Changed("a", false)
			l.Changed("a", false)

			if id, after := l.pass(looksQuiet); id != "a1" || after < want {
				t.Fatalf("handled %q after %s, want a1 after %s", id, after, want)
			}

			want = min(2*want, lastLook)
		}

		if id, _ := l.pass(looksQuiet); id != "" {
			t.Errorf("%s is handled without a change", id)
		}

		time.Sleep(time.Second)
		l.Changed("a", false)

		if id, after := l.pass(looksQuiet); id != "a1" || after >= lastLook {
			t.Errorf("after quiet: handled %q after %s", id, after)
		}
	})
}

func TestLooksAreOfTheLastEvent(t *testing.T) {
	inTime(t, func(t *testing.T, l *looked) {
		t.Helper()
		l.Changed("a", false)
		l.tell(t, "a", "a1")
		l.tell(t, "a", "a2")

		l.result.Trace.Result.Reason = pipeline.ReasonGone
		l.tell(t, "gone", "g1")
		l.result.Trace.Result.Reason = ""

		unknown := reconcile("x", 1)
		unknown.SetExtension("partitionkey", nil)
		l.events.Add(unknown)
		<-l.handled

		for _, id := range []string{"a", "gone", "b", "x"} {
			l.Changed(id, false)
		}

		if id, _ := l.pass(looksQuiet); id != "a2" {
			t.Errorf("handled %q, want a2", id)
		}

		if id, _ := l.pass(looksQuiet); id != "" {
			t.Errorf("%s is handled, of a resource that nothing is known of", id)
		}
	})
}

// Whoever deletes a resource waits for its last object: that it is gone is looked at soon,
// however much has changed before. It is so once for each object, and for no others.
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
					l.Changed("a", false)
					l.pass(looksQuiet)
				}

				// One is planned already.
				l.Changed("a", false)
				l.Changed("a", tc.gone)

				if id, after := l.pass(looksQuiet); id != "a1" || after != tc.want {
					t.Errorf("handled %q after %s, want a1 after %s", id, after, tc.want)
				}

				if id, _ := l.pass(looksQuiet); id != "" {
					t.Errorf("%s is handled twice", id)
				}

				l.Changed("a", tc.gone)

				if id, _ := l.pass(looksQuiet); id != "a1" {
					t.Errorf("handled %q after quiet, want a1", id)
				}
			})
		})
	}
}

// A look waits while an event of its resource is in work, and comes after it.
func TestLooksWaitForTheEventInWork(t *testing.T) {
	inTime(t, func(t *testing.T, l *looked) {
		t.Helper()

		hold := make(chan struct{})
		l.hold = hold
		l.tell(t, "a", "a1")
		l.Changed("a", false)

		if id, _ := l.pass(2 * firstLook); id != "" {
			t.Fatalf("%s is handled beside the event in work", id)
		}

		close(hold)

		if id, _ := l.pass(looksQuiet); id != "a1" {
			t.Errorf("handled %q, want a1", id)
		}
	})
}
