// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool

import (
	"time"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// webhookPatience is how long a platform's word that a job was taken may lag behind the
// machine's own. After it the job counts as queued again, until the ledger has asked the
// platform about it.
const webhookPatience = 2 * time.Minute

// unconfirmedStarts remembers the runners whose machines said that they took a job before the
// platform's webhook did. The ledger still has those jobs as queued; without this a
// short job would get a second machine. The zero value is ready to use.
type unconfirmedStarts struct{ runners map[string]time.Time }

// count gives how many of the jobs that the ledger has as queued were taken. byRunner
// holds the state of the job that each runner took, as far as the ledger knows.
func (a *unconfirmedStarts) count(claims []v1alpha1.MachineClaim, byRunner map[string]v1alpha1.JobState, now time.Time) int {
	if a.runners == nil {
		a.runners = map[string]time.Time{}
	}

	for i := range claims {
		if !tookJob(&claims[i]) {
			continue
		}

		runner := claims[i].Status.BootstrapInfo.RunnerName
		if _, known := a.runners[runner]; !known {
			a.runners[runner] = now
		}
	}

	left := 0

	for runner, since := range a.runners {
		switch {
		case byRunner[runner] != "" && !named(claims, runner), now.Sub(since) > webhookPatience && !named(claims, runner):
			delete(a.runners, runner)
		case byRunner[runner] == "" && now.Sub(since) <= webhookPatience:
			left++
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
