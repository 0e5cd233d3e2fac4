// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// Reasons of a Cause, beside those of Explain and of the conditions of pools and claims.
const (
	// CauseHeld: the platform itself holds the job back.
	CauseHeld = "HeldByPlatform"
	// CausePaused: the pool is paused.
	CausePaused = "Paused"
)

// conditionScaling is the condition of a RunnerPool that tells what it does about its
// machines.
const conditionScaling = "Scaling"

// reasonScheduleInvalid is why a pool is not ready that makes machines for jobs all the
// same.
const reasonScheduleInvalid = "ScheduleInvalid"

// waitsFor gives the pool that answers for the job, and what the job waits for.
func (s *scope) waitsFor(ctx context.Context) (string, Cause, error) {
	var pools []Pool

	for _, pool := range s.pools {
		if pool.object.DeletionTimestamp.IsZero() {
			pools = append(pools, pool.Pool)
		}
	}

	pool, ok := Match(s.job.Spec, pools)

	switch {
	case s.job.Spec.State == v1alpha1.JobWaiting:
		return pool.Name, Cause{
			CauseHeld, "the CI platform holds the job back, e.g. for an approval or for jobs before it: look there",
		}, nil
	case s.job.Spec.State != v1alpha1.JobQueued:
		return pool.Name, Cause{}, nil
	case !ok:
		reason, message := Explain(s.job.Spec, pools)

		return "", Cause{reason, message}, nil
	}

	i := slices.IndexFunc(s.pools, func(p readPool) bool { return p.object.Name == pool.Name })
	object := s.pools[i].object

	if cause := poolCause(object); cause.Reason != "" {
		return pool.Name, cause, nil
	}

	cause, err := s.machinesCause(ctx, object)

	return pool.Name, cause, err
}

// machinesCause says why the pool's machines do not come. Where none is in trouble, which is
// the rule, none but those are looked at.
func (s *scope) machinesCause(ctx context.Context, pool *v1alpha1.RunnerPool) (Cause, error) {
	troubled, err := s.claimsBy(ctx, indexTroubledPool, pool.Name)
	if err != nil || len(troubled) == 0 {
		return Cause{}, err
	}

	all, err := s.claimsBy(ctx, indexPool, pool.Name)

	return machinesCause(pool, all), err
}

// poolCause says why a pool makes no machine for a job that waits; zero if it does. The
// sentences hold no counts: they are the same for as long as the cause is.
func poolCause(pool *v1alpha1.RunnerPool) Cause {
	name := "RunnerPool " + pool.Name

	if pool.Spec.Paused {
		return Cause{CausePaused, name + " is paused: set spec.paused to false to go on"}
	}

	ready := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionReady)
	if ready != nil && ready.Status == metav1.ConditionFalse && ready.Reason != reasonScheduleInvalid {
		return Cause{ready.Reason, name + " is not ready: " + ready.Message}
	}

	scaling := meta.FindStatusCondition(pool.Status.Conditions, conditionScaling)

	switch {
	case scaling == nil:
		return Cause{}
	case overfull(pool), scaling.Reason == ReasonAtMaximum, scaling.Reason == ReasonFinishing:
		return Cause{ReasonAtMaximum, fmt.Sprintf("%s has all machines that it may have (scaling.maxReplicas is %d): queued jobs wait "+
			"for others to end; raise it if there is room for more", name, pool.Spec.Scaling.MaxReplicas)}
	case scaling.Reason == ReasonBackingOff:
		return Cause{ReasonBackingOff, "the last machines of " + name + " failed one after the other, and it pauses before the next: " +
			"see the events of the pool's MachineClaims"}
	default:
		return Cause{}
	}
}

// overfull tells whether a pool has more jobs than it may have machines. Whatever it is doing
// at the moment (making one in the place of one that has ended), most of its queued jobs wait
// for others to end: each change of its Scaling condition would be written to all of them.
func overfull(pool *v1alpha1.RunnerPool) bool {
	status := &pool.Status

	return status.QueuedJobs+max(status.BusyReplicas, status.RunningJobs) > pool.Spec.Scaling.MaxReplicas
}

// underWay are the reasons of claims whose machine is being made, and just needs time.
func underWay(reason string) bool {
	return slices.Contains([]string{
		"", "Pending", "Reserved", "Creating", "Running", "Stopped", "Prepared", "Standby", "IDTaken", "WaitingForRunner",
	}, reason)
}

// trouble says what a claim that is on its way to a job waits for; zero if for nothing
// but its time.
func trouble(claim *v1alpha1.MachineClaim) Cause {
	ready := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil || ready.Status == metav1.ConditionTrue || underWay(ready.Reason) || !coming(claim) {
		return Cause{}
	}

	return Cause{ready.Reason, ready.Message}
}

// coming tells whether a claim's machine may yet take a job.
func coming(claim *v1alpha1.MachineClaim) bool {
	times := claim.Status.Times

	return claim.DeletionTimestamp.IsZero() && !claim.Spec.Standby && (times == nil || times.JobStarted == nil && times.Ended == nil)
}

// machinesCause says why the pool's machines do not come, if fewer come than jobs wait and
// no more come than do not: what the one that has waited longest says. Which job waits for
// which machine nobody knows, and one machine in trouble among many is no news for all jobs.
func machinesCause(pool *v1alpha1.RunnerPool, claims []v1alpha1.MachineClaim) Cause {
	var (
		first             *v1alpha1.MachineClaim
		healthy, troubled int32
	)

	for i := range claims {
		claim := &claims[i]
		if ref := claim.Spec.RunnerPoolRef; ref == nil || ref.Name != pool.Name {
			continue
		}

		switch {
		case trouble(claim) != Cause{} || failed(claim):
			troubled++

			if first == nil || claim.CreationTimestamp.Before(&first.CreationTimestamp) {
				first = claim
			}
		case coming(claim):
			healthy++
		}
	}

	if first == nil || healthy > 0 && healthy >= min(pool.Status.QueuedJobs, troubled+1) {
		return Cause{}
	}

	ready := meta.FindStatusCondition(first.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil {
		return Cause{}
	}

	return Cause{ready.Reason, "MachineClaim " + first.Name + ": " + ready.Message}
}

// failed tells whether a claim waits for its pool to replace it.
func failed(claim *v1alpha1.MachineClaim) bool {
	return claim.Status.Phase == v1alpha1.MachineClaimFailed && claim.DeletionTimestamp.IsZero()
}
