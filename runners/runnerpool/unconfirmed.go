// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool

import (
	"time"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

// webhookPatience is how long a platform's word that a job was taken may lag behind the
// machine's own. After it the job counts as queued again, until the ledger has asked the
// platform about it.
const webhookPatience = 2 * time.Minute

// unconfirmedStarts remembers the runners whose machines said that they took a job before the
// platform's webhook did. The ledger still has those jobs as queued; without this a
// short job would get a second machine. The zero value is ready to use.
type unconfirmedStarts struct{ runners map[string]unconfirmedStart }

// unconfirmedStart is when a machine said so first, and its size.
type unconfirmedStart struct {
	since time.Time
	size  string
}

// count gives how many of the jobs that the ledger has as queued were taken, by the size of
// their machines. byRunner holds the state of the job that each runner took, as far as the
// ledger knows.
func (a *unconfirmedStarts) count(
	claims []v1alpha1.MachineClaim, byRunner map[string]v1alpha1.JobState, now time.Time,
) map[string]int {
	if a.runners == nil {
		a.runners = map[string]unconfirmedStart{}
	}

	for i := range claims {
		if !tookJob(&claims[i]) {
			continue
		}

		runner := claims[i].Status.BootstrapInfo.RunnerName
		if _, known := a.runners[runner]; !known {
			a.runners[runner] = unconfirmedStart{now, demand.SizeKey(claims[i].Spec.Size)}
		}
	}

	left := map[string]int{}

	for runner, start := range a.runners {
		switch {
		case byRunner[runner] != "" && !named(claims, runner), now.Sub(start.since) > webhookPatience && !named(claims, runner):
			delete(a.runners, runner)
		case byRunner[runner] == "" && now.Sub(start.since) <= webhookPatience:
			left[start.size]++
		}
	}

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
