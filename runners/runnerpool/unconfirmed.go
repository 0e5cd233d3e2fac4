// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool

import (
	"time"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

// webhookGracePeriod is how long the platform's webhook that a job started may come after the
// machine's own report. After it, the job counts as queued again, until the operator has asked the
// platform about it.
const webhookGracePeriod = 2 * time.Minute

// unconfirmedStarts holds the runners whose machines reported the start of a job before the
// platform's webhook arrived. The ledger still has those jobs as queued, so a short job would
// otherwise get a second machine. The zero value is ready to use.
type unconfirmedStarts struct{ runners map[string]unconfirmedStart }

// unconfirmedStart is the time of a machine's first report of its job, and the size of the machine.
type unconfirmedStart struct {
	since time.Time
	size  string
}

// count returns how many of the jobs that are queued in the ledger already have a machine, by the size of the
// machine. decreasesIn is the time after which this number decreases without an event. byRunner is the state of
// each runner's job in the ledger. count also records new starts and deletes the records that are no longer
// needed.
func (a *unconfirmedStarts) count(
	claims []v1alpha1.MachineClaim, byRunner map[string]v1alpha1.JobState, now time.Time,
) (taken map[string]int, decreasesIn time.Duration) {
	if a.runners == nil {
		a.runners = map[string]unconfirmedStart{}
	}

	for i := range claims {
		if !hasTakenJob(&claims[i]) {
			continue
		}

		runner := claims[i].Status.BootstrapInfo.RunnerName
		if _, isRecorded := a.runners[runner]; !isRecorded {
			a.runners[runner] = unconfirmedStart{now, demand.SizeKey(claims[i].Spec.Size)}
		}
	}

	taken = map[string]int{}

	for runner, start := range a.runners {
		isConfirmed, isOverdue := byRunner[runner] != "", now.Sub(start.since) > webhookGracePeriod

		switch {
		case (isConfirmed || isOverdue) && !hasRunner(claims, runner):
			delete(a.runners, runner)
		case !isConfirmed && !isOverdue:
			taken[start.size]++
			decreasesIn = step.ChooseSooner(decreasesIn, start.since.Add(webhookGracePeriod).Sub(now)+time.Second)
		}
	}

	return taken, decreasesIn
}

// hasRunner reports whether one of the claims has the runner. If one has, a deleted record would be
// created again.
func hasRunner(claims []v1alpha1.MachineClaim, runner string) bool {
	for i := range claims {
		if info := claims[i].Status.BootstrapInfo; info != nil && info.RunnerName == runner {
			return true
		}
	}

	return false
}
