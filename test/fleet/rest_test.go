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

// writes are what an operator asks the API server to change.
type writes struct {
	mu   sync.Mutex
	seen []string
}

// watch sees what goes by.
func (w *writes) watch(next http.RoundTripper) http.RoundTripper {
	return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodGet {
			w.mu.Lock()
			w.seen = append(w.seen, r.Method+" "+r.URL.Path)
			w.mu.Unlock()
		}

		return next.RoundTrip(r)
	})
}

// take gives what was seen since it was last asked.
func (w *writes) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()

	out := w.seen
	w.seen = nil

	return out
}

// An operator whose machines wait for jobs writes nothing for a quarter of an hour, longer than anything is done every so often, but for the lease by
// which it leads, which the fleet has none of.
func TestAtRestNothingIsWritten(t *testing.T) {
	t.Parallel()

	const (
		faster = 60
		calm   = 2 * time.Minute
		quiet  = 15 * time.Minute
	)

	f := fleet.New(t, env, fleet.Options{Clock: conformance.FastClock(t, faster)})
	seen := &writes{}
	f.WrapTransport = seen.watch

	pool := f.NewPool(2)
	pool.Spec.Scaling.MinReplicas = 1

	begin(f, f.NewTemplate(), pool)

	idle := func() (name string) {
		f.Eventually("one machine being idle", func() (bool, string) {
			claims := claims(f)
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
		t.Fatal("no write was seen: nothing can be told of")
	}

	// On a machine that stands still for a second a minute passes, in which runners are lost: one that
	// is replaced is no rest.
	for tries := 5; tries > 0; tries-- {
		time.Sleep(calm / faster)
		seen.take()
		time.Sleep(quiet / faster)

		at, now := seen.take(), idle()

		switch {
		case len(at) == 0:
			return
		case now == machine:
			t.Fatalf("%d writes in a quarter of an hour at rest: %q", len(at), at)
		}

		machine = now
	}

	t.Error("no machine has lasted for a quarter of an hour")
}
