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
	// CauseHeld: the platform does not release the job yet.
	CauseHeld = "HeldByPlatform"
	// CausePaused: the pool is paused.
	CausePaused = "Paused"
)

// conditionScaling is the condition of a RunnerPool that reports how it scales.
const conditionScaling = "Scaling"

// reasonScheduleInvalid is the reason of a pool that is not ready and still creates machines for
// jobs.
const reasonScheduleInvalid = "ScheduleInvalid"

// findCause returns the name of the pool that serves the job, and what the job waits for.
func (s *scope) findCause(ctx context.Context) (poolName string, cause Cause, err error) {
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
			CauseHeld, "the CI platform has not released the job, which may need an approval or the end of other jobs: " +
				"open the job at the platform",
		}, nil
	case s.job.Spec.State != v1alpha1.JobQueued:
		return pool.Name, Cause{}, nil
	case !ok && s.isAwaitingLabels():
		return "", Cause{}, nil
	case !ok:
		reason, message := Explain(s.job.Spec, pools)

		return "", Cause{reason, message}, nil
	}

	i := slices.IndexFunc(s.pools, func(p loadedPool) bool { return p.object.Name == pool.Name })
	object := s.pools[i].object

	if cause := findPoolCause(object); cause.Reason != "" {
		return pool.Name, cause, nil
	}

	cause, err = s.loadMachinesCause(ctx, object)

	return pool.Name, cause, err
}

// loadMachinesCause returns why jobs wait for the pool's machines. If none of the pool's claims is
// failing, which is the usual case, it reads no other claims.
func (s *scope) loadMachinesCause(ctx context.Context, pool *v1alpha1.RunnerPool) (Cause, error) {
	failing, err := s.listClaimsBy(ctx, indexFailingPool, pool.Name)
	if err != nil || len(failing) == 0 {
		return Cause{}, err
	}

	all, err := s.listClaimsBy(ctx, indexPool, pool.Name)

	return findMachinesCause(pool, all), err
}

// findPoolCause returns why a pool creates no machine for a waiting job. It returns no cause if the pool
// creates machines. The messages contain no counts that change while the cause is the same.
func findPoolCause(pool *v1alpha1.RunnerPool) Cause {
	name := "RunnerPool " + pool.Name

	if pool.Spec.Paused {
		return Cause{CausePaused, name + " is paused: set spec.paused to false to resume"}
	}

	ready := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionReady)
	if ready != nil && ready.Status == metav1.ConditionFalse && ready.Reason != reasonScheduleInvalid {
		return Cause{ready.Reason, name + " is not ready: " + ready.Message}
	}

	scaling := meta.FindStatusCondition(pool.Status.Conditions, conditionScaling)

	switch {
	case scaling == nil:
		return Cause{}
	case isOverfull(pool), scaling.Reason == ReasonAtMaximum,
		v1alpha1.CurrentReason(scaling.Reason) == ReasonWaitingForDeletion:
		return Cause{ReasonAtMaximum, fmt.Sprintf("%s has all machines that scaling.maxReplicas allows (%d): queued jobs wait until "+
			"other jobs end; raise maxReplicas if there is capacity for more", name, pool.Spec.Scaling.MaxReplicas)}
	case scaling.Reason == ReasonBackingOff:
		return Cause{ReasonBackingOff, "the last machines of " + name + " failed in a row, and the pool waits before it creates " +
			"the next one: see the events of the pool's MachineClaims"}
	default:
		return Cause{}
	}
}

// HasSameCause reports whether a change of a pool changes nothing that its queued jobs report as the cause of their wait.
func HasSameCause(previous, current *v1alpha1.RunnerPool) bool {
	return findPoolCause(previous) == findPoolCause(current)
}

// isOverfull reports whether a pool has more jobs than it may have machines. Most of its queued
// jobs then wait until other jobs end, whatever the pool does at this time (for example, it may
// replace one machine). Without this check each change of the pool's condition Scaling would be
// written to all these jobs.
func isOverfull(pool *v1alpha1.RunnerPool) bool {
	status := &pool.Status

	return status.QueuedJobs+max(status.BusyReplicas, status.RunningJobs) > pool.Spec.Scaling.MaxReplicas
}

// isInProgress reports whether a claim with this reason has no problem and only needs time.
func isInProgress(reason string) bool {
	return slices.Contains([]string{
		"", "Pending", "Reserved", "Creating", "Running", "Stopped", "Prepared", "Standby", "IDTaken", "WaitingForRunner",
	}, reason)
}

// findClaimCause returns the problem of a claim whose machine may still take a job. It returns no cause
// if the claim only needs time.
func findClaimCause(claim *v1alpha1.MachineClaim) Cause {
	ready := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil || ready.Status == metav1.ConditionTrue || isInProgress(ready.Reason) || !canTakeJob(claim) {
		return Cause{}
	}

	return Cause{ready.Reason, ready.Message}
}

// canTakeJob reports whether a claim's machine may still take a job.
func canTakeJob(claim *v1alpha1.MachineClaim) bool {
	times := claim.Status.Times

	return claim.DeletionTimestamp.IsZero() && !claim.Spec.Standby && (times == nil || times.JobStarted == nil && times.Ended == nil)
}

// findMachinesCause returns why jobs wait for the pool's machines: the problem of the oldest failing claim.
// It returns no cause if there are enough healthy machines: at least one for each queued job, or more than
// failing ones. Nobody knows which job gets which machine, so one failing machine among many is not the
// cause for all jobs.
func findMachinesCause(pool *v1alpha1.RunnerPool, claims []v1alpha1.MachineClaim) Cause {
	var (
		oldest           *v1alpha1.MachineClaim
		healthy, failing int32
	)

	for i := range claims {
		claim := &claims[i]
		if claim.PoolName() != pool.Name {
			continue
		}

		switch {
		case findClaimCause(claim) != Cause{} || hasFailed(claim):
			failing++

			if oldest == nil || claim.CreationTimestamp.Before(&oldest.CreationTimestamp) {
				oldest = claim
			}
		case canTakeJob(claim):
			healthy++
		}
	}

	hasEnoughHealthy := healthy > 0 && (healthy >= pool.Status.QueuedJobs || healthy > failing)
	if oldest == nil || hasEnoughHealthy {
		return Cause{}
	}

	ready := meta.FindStatusCondition(oldest.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil {
		return Cause{}
	}

	return Cause{ready.Reason, "MachineClaim " + oldest.Name + ": " + ready.Message}
}

// hasFailed reports whether a claim has failed and its pool is to replace it.
func hasFailed(claim *v1alpha1.MachineClaim) bool {
	return claim.Status.Phase == v1alpha1.MachineClaimFailed && claim.DeletionTimestamp.IsZero()
}
