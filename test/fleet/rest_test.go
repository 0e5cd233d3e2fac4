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

	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/kit/retry"
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
	f.Eventually("the machine being idle", func() (bool, string) {
		if err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(pool), pool); err != nil {
			return false, err.Error()
		}

		return pool.Status.ReadyReplicas == 1, fmt.Sprintf("%d are ready", pool.Status.ReadyReplicas)
	})

	time.Sleep(calm / faster)

	if len(seen.take()) == 0 {
		t.Fatal("no write was seen: nothing can be told of")
	}

	time.Sleep(quiet / faster)

	if at := seen.take(); len(at) > 0 {
		t.Errorf("%d writes in half an hour at rest: %q", len(at), at)
	}
}
