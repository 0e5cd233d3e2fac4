// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

// confirmAfter is how long a new claim may be missing from the cache before the API server is asked
// for it.
const confirmAfter = 10 * time.Second

// expectations holds the created claims, and those that may have been created, that the cache does not have yet.
// Without them, a reconcile soon after another one would create the same machines again. The zero value is ready to
// use.
type expectations struct {
	mu     sync.Mutex // a reconcile creates claims concurrently
	claims map[string]expectedClaim
}

// expectedClaim is a created claim that the cache does not have yet.
type expectedClaim struct {
	createdAt time.Time
	source    string
	isStandby bool
	// size is the Size of demand.Claim.
	size string
	// isUncertain is true if the API server did not say whether it created the claim.
	isUncertain bool
}

func (e *expectations) expect(claim string, expectation expectedClaim) {
	e.mu.Lock()
	defer e.mu.Unlock()

	if e.claims == nil {
		e.claims = map[string]expectedClaim{}
	}

	e.claims[claim] = expectation
}

// markUncertain records that the API server did not say whether it created the claim.
func (e *expectations) markUncertain(claim string) {
	e.mu.Lock()
	defer e.mu.Unlock()

	expectation := e.claims[claim]
	expectation.isUncertain = true
	e.claims[claim] = expectation
}

// forget deletes the expectation of a claim that was not created.
func (e *expectations) forget(claim string) {
	e.mu.Lock()
	defer e.mu.Unlock()

	delete(e.claims, claim)
}

// nextCheckIn returns the time until the API server must be asked for a claim that it may have created, or 0 if there is
// none. No event announces that a claim was not created.
func (e *expectations) nextCheckIn(now time.Time) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()

	var out time.Duration

	for _, expectation := range e.claims {
		if !expectation.isUncertain {
			continue
		}

		remaining := expectation.createdAt.Add(confirmAfter).Sub(now)
		if remaining <= 0 {
			remaining = confirmAfter // the API server has the claim, and the cache is late
		}

		out = step.ChooseSooner(out, remaining)
	}

	return out
}

// listNotCached returns the pool's claims that the cache does not have yet, and their number by the
// template that they were created from. It deletes the expectations of claims that the cache has, of
// claims that do not exist, and of claims of others that have the same name.
func (e *expectations) listNotCached(
	ctx context.Context, live client.Reader, pool *v1alpha1.RunnerPool, cached []v1alpha1.MachineClaim, now time.Time,
) ([]demand.Claim, map[string]int, error) {
	for i := range cached {
		delete(e.claims, cached[i].Name)
	}

	out := make([]demand.Claim, 0, len(e.claims))
	bySource := map[string]int{}

	for name, expectation := range e.claims {
		if now.Sub(expectation.createdAt) >= confirmAfter {
			var claim v1alpha1.MachineClaim

			err := live.Get(ctx, types.NamespacedName{Namespace: pool.Namespace, Name: name}, &claim)
			if apierrors.IsNotFound(err) || err == nil && !metav1.IsControlledBy(&claim, pool) {
				delete(e.claims, name)

				continue
			}

			if err != nil {
				return nil, nil, fmt.Errorf("get claim %s: %w", name, err)
			}
		}

		state := demand.ClaimPending
		if expectation.isStandby {
			state = demand.ClaimStandby
		}

		out = append(out, demand.Claim{Name: name, State: state, CreatedAt: expectation.createdAt, Size: expectation.size})
		bySource[expectation.source]++
	}

	return out, bySource, nil
}
