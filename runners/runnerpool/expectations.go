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

// doubt is how long a claim that was made may be missing from the cache before the API
// server is asked for it.
const doubt = 10 * time.Second

// expectations are the claims that were made and that the cache has not shown yet.
// Without them a pass right after another would make the same machines again. The zero
// value is ready to use.
type expectations struct {
	mu    sync.Mutex
	pools map[types.NamespacedName]map[string]time.Time
}

func (e *expectations) expect(pool types.NamespacedName, claim string, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()

	if e.pools == nil {
		e.pools = map[types.NamespacedName]map[string]time.Time{}
	}

	if e.pools[pool] == nil {
		e.pools[pool] = map[string]time.Time{}
	}

	e.pools[pool][claim] = now
}

func (e *expectations) forget(pool types.NamespacedName) {
	e.mu.Lock()
	defer e.mu.Unlock()

	delete(e.pools, pool)
}

// unseen gives the pool's claims that the cache does not show yet, and forgets those
// that it shows and those that are gone.
func (e *expectations) unseen(
	ctx context.Context, live client.Reader, pool types.NamespacedName, seen []v1alpha1.MachineClaim, now time.Time,
) ([]demand.Claim, error) {
	e.mu.Lock()
	defer e.mu.Unlock()

	for i := range seen {
		delete(e.pools[pool], seen[i].Name)
	}

	out := make([]demand.Claim, 0, len(e.pools[pool]))

	for name, made := range e.pools[pool] {
		if now.Sub(made) > doubt {
			var claim v1alpha1.MachineClaim

			err := live.Get(ctx, types.NamespacedName{Namespace: pool.Namespace, Name: name}, &claim)
			if apierrors.IsNotFound(err) {
				delete(e.pools[pool], name)

				continue
			}

			if err != nil {
				return nil, fmt.Errorf("get claim %s: %w", name, err)
			}
		}

		out = append(out, demand.Claim{Name: name, State: demand.ClaimPending, CreatedAt: made})
	}

	return out, nil
}
