// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package serve_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	corev1 "k8s.io/api/core/v1"

	"github.com/hyperfleet/hyperfleet/platform/adapter/serve"
)

// looked is a Looks in a bubble of time, with what it has handled.
type looked struct {
	*serve.Looks

	handled chan string
}

// inTime runs a test in a bubble of time.
func inTime(t *testing.T, test func(*testing.T, *looked)) {
	t.Helper()

	synctest.Test(t, func(t *testing.T) {
		l := &looked{Looks: serve.NewLooks(nil), handled: make(chan string, 100)}

		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})

		go func() {
			defer close(ended)

			l.Run(ctx, func(_ context.Context, event cloudevents.Event) { l.handled <- event.ID() })
		}()

		test(t, l)
		cancel()
		<-ended

		// Its queue sees that it is shut down when it next looks.
		time.Sleep(time.Minute)
	})
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

func about(id, eventID string) *cloudevents.Event {
	e := event(id, 1)
	e.SetID(eventID)

	return &e
}

// Changes that follow each other are one look, later and later while they go on, and soon
// again once there was quiet.
func TestLooksArePaced(t *testing.T) {
	t.Parallel()
	inTime(t, func(t *testing.T, l *looked) {
		t.Helper()

		l.Begin(about("a", "a1"))(false, false)

		want := serve.FirstLook

		for range 6 {
			l.Changed("a", false)
			l.Changed("a", false)

			if id, after := l.pass(serve.Quiet); id != "a1" || after < want {
				t.Fatalf("handled %q after %s, want a1 after %s", id, after, want)
			}

			want = min(2*want, serve.LastLook)
		}

		if id, _ := l.pass(serve.Quiet); id != "" {
			t.Errorf("%s is handled without a change", id)
		}

		time.Sleep(time.Second)
		l.Changed("a", false)

		if id, after := l.pass(serve.Quiet); id != "a1" || after >= serve.LastLook {
			t.Errorf("after quiet: handled %q after %s", id, after)
		}
	})
}

func TestLooksAreOfTheLastEvent(t *testing.T) {
	t.Parallel()
	inTime(t, func(t *testing.T, l *looked) {
		t.Helper()

		l.Changed("a", false)
		l.Begin(about("a", "a1"))(false, false)
		l.Begin(about("a", "a2"))(false, false)
		l.Begin(about("gone", "g1"))(true, false)

		unknown := event("x", 1)
		unknown.SetExtension("partitionkey", nil)
		l.Begin(&unknown)(false, false)

		for _, id := range []string{"a", "gone", "b", "x"} {
			l.Changed(id, false)
		}

		if id, _ := l.pass(serve.Quiet); id != "a2" {
			t.Errorf("handled %q, want a2", id)
		}

		if id, _ := l.pass(serve.Quiet); id != "" {
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
		"gone, of one that is being deleted":  {deleting: true, gone: true, want: serve.GoneLook},
		"changed, of one that is":             {deleting: true, want: 4 * serve.FirstLook},
		"gone, of one that is to be there":    {gone: true, want: 4 * serve.FirstLook},
		"changed, of one that is to be there": {want: 4 * serve.FirstLook},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inTime(t, func(t *testing.T, l *looked) {
				t.Helper()

				l.Begin(about("a", "a1"))(false, tc.deleting)

				for range 2 {
					l.Changed("a", false)
					l.pass(serve.Quiet)
				}

				// One is planned already.
				l.Changed("a", false)
				l.Changed("a", tc.gone)

				if id, after := l.pass(serve.Quiet); id != "a1" || after != tc.want {
					t.Errorf("handled %q after %s, want a1 after %s", id, after, tc.want)
				}

				if id, _ := l.pass(serve.Quiet); id != "" {
					t.Errorf("%s is handled twice", id)
				}

				l.Changed("a", tc.gone)

				if id, _ := l.pass(serve.Quiet); id != "a1" {
					t.Errorf("handled %q after quiet, want a1", id)
				}
			})
		})
	}
}

// A look waits while an event of its resource is in work, and comes after it.
func TestLooksWaitForTheEventInWork(t *testing.T) {
	t.Parallel()
	inTime(t, func(t *testing.T, l *looked) {
		t.Helper()

		end := l.Begin(about("a", "a1"))
		l.Changed("a", false)

		if id, _ := l.pass(2 * serve.FirstLook); id != "" {
			t.Fatalf("%s is handled beside the event in work", id)
		}

		end(false, false)

		if id, _ := l.pass(serve.Quiet); id != "a1" {
			t.Errorf("handled %q, want a1", id)
		}
	})
}

// No event but the first is sent in these: what comes after it is seen by the watches.
func TestObjectsThatChangeAreLookedAt(t *testing.T) {
	w := newWorld(t, env.Namespace(t))
	w.start()

	cluster := w.cluster(`{"tier":"gold","refuse":"no"}`)
	w.send(cluster.Id, 1)
	w.eventually("the report", func() bool { return w.available(cluster.Id) == "True" })

	// Somebody removes it.
	first := w.object(cluster.Id)
	if err := env.Client.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}

	w.eventually("it is made again", func() bool {
		now := w.object(cluster.Id)

		return now != nil && now.UID != first.UID
	})
	w.eventually("a look is counted", func() bool {
		return !strings.Contains(metricsText(t, w), `looks_total{adapter_name="landing",status="success"} 0`)
	})

	// Its deletion takes its time.
	made := w.object(cluster.Id)
	made.Finalizers = []string{"example.com/slow"}

	if err := env.Client.Update(t.Context(), made); err != nil {
		t.Fatal(err)
	}

	w.call(http.MethodDelete, "/clusters/"+cluster.Id, "")
	w.send(cluster.Id, 2)

	var going *corev1.ConfigMap

	w.eventually("the deletion is asked for", func() bool {
		going = w.object(cluster.Id)

		return going != nil && going.DeletionTimestamp != nil
	})

	going.Finalizers = nil
	if err := env.Client.Update(t.Context(), going); err != nil {
		t.Fatal(err)
	}

	w.eventually("the end is reported", func() bool {
		_, err := w.api.Get(t.Context(), cluster.Id)

		return err != nil
	})
}
