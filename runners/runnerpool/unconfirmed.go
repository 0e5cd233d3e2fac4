// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// webhookPatience is how long a platform's word that a job was taken may lag behind the
// machine's own. After it the job counts as queued again, until the ledger has asked the
// platform about it.
const webhookPatience = 2 * time.Minute

// unconfirmedStarts remembers the runners whose machines said that they took a job before the
// platform's webhook did. The ledger still has those jobs as queued; without this a
// short job would get a second machine. The zero value is ready to use.
type unconfirmedStarts struct {
	mu    sync.Mutex
	pools map[types.NamespacedName]map[string]time.Time
}

// count gives how many of the jobs that the ledger has as queued were taken. byRunner
// holds the state of the job that each runner took, as far as the ledger knows.
func (a *unconfirmedStarts) count(
	pool types.NamespacedName, claims []v1alpha1.MachineClaim, byRunner map[string]v1alpha1.JobState, now time.Time,
) int {
	a.mu.Lock()
	defer a.mu.Unlock()

	taken := a.pools[pool]
	if taken == nil {
		taken = map[string]time.Time{}
	}

	for i := range claims {
		if !tookJob(&claims[i]) {
			continue
		}

		runner := claims[i].Status.BootstrapInfo.RunnerName
		if _, known := taken[runner]; !known {
			taken[runner] = now
		}
	}

	left := 0

	for runner, since := range taken {
		switch {
		case byRunner[runner] != "" && !named(claims, runner), now.Sub(since) > webhookPatience && !named(claims, runner):
			delete(taken, runner)
		case byRunner[runner] == "" && now.Sub(since) <= webhookPatience:
			left++
		}
	}

	if a.pools == nil {
		a.pools = map[types.NamespacedName]map[string]time.Time{}
	}

	a.pools[pool] = taken

	return left
}

// named says whether one of the claims has the runner: then it would only be remembered
// again.
func named(claims []v1alpha1.MachineClaim, runner string) bool {
	for i := range claims {
		if info := claims[i].Status.BootstrapInfo; info != nil && info.RunnerName == runner {
			return true
		}
	}

	return false
}

func (a *unconfirmedStarts) forget(pool types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()

	delete(a.pools, pool)
}
