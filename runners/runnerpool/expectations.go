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
	mu     sync.Mutex // a pass makes claims side by side
	claims map[string]expected
}

// expected is a claim that was made.
type expected struct {
	made    time.Time
	source  string
	standby bool
	// size as demand.Claim has it.
	size string
}

func (e *expectations) expect(claim string, what expected) {
	e.mu.Lock()
	defer e.mu.Unlock()

	if e.claims == nil {
		e.claims = map[string]expected{}
	}

	e.claims[claim] = what
}

// unseen gives the pool's claims that the cache does not show yet, and forgets those
// that it shows and those that are gone. It also gives how many of them there are by the
// template that they were made from.
func (e *expectations) unseen(
	ctx context.Context, live client.Reader, namespace string, seen []v1alpha1.MachineClaim, now time.Time,
) ([]demand.Claim, map[string]int, error) {
	for i := range seen {
		delete(e.claims, seen[i].Name)
	}

	out := make([]demand.Claim, 0, len(e.claims))
	bySource := map[string]int{}

	for name, what := range e.claims {
		if now.Sub(what.made) > confirmAfter {
			var claim v1alpha1.MachineClaim

			err := live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &claim)
			if apierrors.IsNotFound(err) {
				delete(e.claims, name)

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
