// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

// confirmAfter is how long a claim that was made may be missing from the cache before the API
// server is asked for it.
const confirmAfter = 10 * time.Second

// expectations are the claims that were made and that the cache has not shown yet.
// Without them a pass right after another would make the same machines again. The zero
// value is ready to use.
type expectations struct {
	mu    sync.Mutex
	pools map[types.NamespacedName]map[string]expected
}

// expected is a claim that was made.
type expected struct {
	made    time.Time
	source  string
	standby bool
	// size as demand.Claim has it.
	size string
}

func (e *expectations) expect(pool types.NamespacedName, claim string, what expected) {
	e.mu.Lock()
	defer e.mu.Unlock()

	if e.pools == nil {
		e.pools = map[types.NamespacedName]map[string]expected{}
	}

	if e.pools[pool] == nil {
		e.pools[pool] = map[string]expected{}
	}

	e.pools[pool][claim] = what
}

func (e *expectations) forget(pool types.NamespacedName) {
	e.mu.Lock()
	defer e.mu.Unlock()

	delete(e.pools, pool)
}

// unseen gives the pool's claims that the cache does not show yet, and forgets those
// that it shows and those that are gone. It also gives how many of them there are by the
// template that they were made from.
func (e *expectations) unseen(
	ctx context.Context, live client.Reader, pool types.NamespacedName, seen []v1alpha1.MachineClaim, now time.Time,
) ([]demand.Claim, map[string]int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()

	for i := range seen {
		delete(e.pools[pool], seen[i].Name)
	}

	out := make([]demand.Claim, 0, len(e.pools[pool]))
	bySource := map[string]int{}

	for name, what := range e.pools[pool] {
		if now.Sub(what.made) > confirmAfter {
			var claim v1alpha1.MachineClaim

			err := live.Get(ctx, types.NamespacedName{Namespace: pool.Namespace, Name: name}, &claim)
			if apierrors.IsNotFound(err) {
				delete(e.pools[pool], name)

				continue
			}

			if err != nil {
				return nil, nil, fmt.Errorf("get claim %s: %w", name, err)
			}
		}

		state := demand.ClaimPending
		if what.standby {
			state = demand.ClaimStandby
		}

		out = append(out, demand.Claim{Name: name, State: state, CreatedAt: what.made, Size: what.size})
		bySource[what.source]++
	}

	return out, bySource, nil
}
