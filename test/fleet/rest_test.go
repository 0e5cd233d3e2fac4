// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// writeRecorder records the writes of an operator to the API server.
type writeRecorder struct {
	mu   sync.Mutex
	seen []string
}

// wrapTransport returns a transport that records writes.
func (w *writeRecorder) wrapTransport(next http.RoundTripper) http.RoundTripper {
	return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodGet {
			w.mu.Lock()
			w.seen = append(w.seen, r.Method+" "+r.URL.Path)
			w.mu.Unlock()
		}

		return next.RoundTrip(r)
	})
}

// take returns the writes since its last call.
func (w *writeRecorder) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()

	out := w.seen
	w.seen = nil

	return out
}

// TestIdleOperatorWritesNothing checks that an operator whose machines wait for jobs writes nothing to the API
// server for a quarter of an hour, which is longer than all resync intervals. The fleet has no Lease for the
// leader election.
func TestIdleOperatorWritesNothing(t *testing.T) {
	t.Parallel()

	const (
		faster = 60
		calm   = 2 * time.Minute
		quiet  = 15 * time.Minute
	)

	f := fleet.New(t, env, fleet.Options{Clock: conformance.FastClock(t, faster)})
	seen := &writeRecorder{}
	f.WrapTransport = seen.wrapTransport

	pool := f.NewPool(2)
	pool.Spec.Scaling.MinReplicas = 1

	createAndStart(f, f.NewTemplate(), pool)

	idle := func() (name string) {
		f.Eventually("one machine being idle", func() (bool, string) {
			claims := listClaims(f)
			if len(claims) != 1 {
				return false, fmt.Sprintf("%d claims", len(claims))
			}

			name = claims[0].Name

			return step.IsReady(&claims[0]), f.Describe()
		})

		return name
	}

	machine := idle()
	if len(seen.take()) == 0 {
		t.Fatal("no write was recorded before the pause: the recorder does not work")
	}

	// If the host of this test stalls for a second, a minute of the fast clock passes and the operator may replace
	// the machine. Such an attempt does not count.
	for tries := 5; tries > 0; tries-- {
		time.Sleep(calm / faster)
		seen.take()
		time.Sleep(quiet / faster)

		at, now := seen.take(), idle()

		switch {
		case len(at) == 0:
			return
		case now == machine:
			t.Fatalf("%d writes in a quarter of an hour without work: %q", len(at), at)
		}

		machine = now
	}

	t.Error("the machine was replaced in each attempt")
}
