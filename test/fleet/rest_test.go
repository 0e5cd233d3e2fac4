// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
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
	return retry.RoundTripper(func(r *http.Request) (*http.Response, error) {
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

// An operator whose machines wait for jobs writes nothing for half an hour, but for the lease by
// which it leads, which the fleet has none of.
func TestAtRestNothingIsWritten(t *testing.T) {
	t.Parallel()

	const (
		faster = 60
		calm   = 5 * time.Minute
		quiet  = 30 * time.Minute
	)

	f := fleet.New(t, env, fleet.Options{Clock: conformance.FastClock(t, faster)})
	seen := &writes{}
	f.Watch = seen.watch

	pool := f.NewPool(2)
	pool.Spec.Scaling.MinReplicas = 1

	f.CreateCluster(f.NewCluster())
	f.Create(f.NewTemplate())
	f.Create(pool)
	f.Start()

	idle := func() (name string) {
		f.Eventually("one machine being idle", func() (bool, string) {
			var claims v1alpha1.MachineClaimList
			if err := f.Client.List(t.Context(), &claims, client.InNamespace(f.Namespace)); err != nil || len(claims.Items) != 1 {
				return false, fmt.Sprintf("%d claims, error %v", len(claims.Items), err)
			}

			name = claims.Items[0].Name

			return step.IsReady(&claims.Items[0]), f.Describe()
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
			t.Fatalf("%d writes in half an hour at rest: %q", len(at), at)
		}

		machine = now
	}

	t.Error("no machine has lasted for half an hour")
}
