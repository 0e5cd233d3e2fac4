// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// ConditionServed is True when the job has its machine. While the job waits, the reason of the
// condition is the cause of the wait.
const ConditionServed = "Served"

// Reasons of the condition Served for a job without a problem.
const (
	// ReasonWaitingForMachine: the pool provides a machine for the job.
	ReasonWaitingForMachine = "WaitingForMachine"
	// ReasonRunning: a runner runs the job.
	ReasonRunning = "Running"
	// ReasonCompleted: the job is completed.
	ReasonCompleted = "Completed"
)

// recordTimeline writes the job's timeline into the status. It runs before the steps that may stop
// the list of steps, because a job that cannot be served needs its timeline most.
func recordTimeline(ctx context.Context, s *scope) step.Result {
	claims, err := s.listClaims(ctx)
	if err != nil {
		return step.Fail(err)
	}

	machine := s.findMachine(claims)
	if machine != nil && s.job.Status.Claim == "" && hasJob(*machine, s.job) {
		s.job.Status.Claim = machine.Name
	}

	s.jobMachine = machine
	s.setTraceID()

	input := TimelineInput{Job: s.job.Spec, Machine: machine, Now: s.Clock.Now()}
	pool := s.job.PoolName()

	if s.job.Spec.State != v1alpha1.JobCompleted {
		if input.Pool, s.cause, err = s.findCause(ctx); err != nil {
			return step.Fail(err)
		}

		input.Cause, pool = s.cause, input.Pool
	}

	input.Before = listPreviousEvents(s.job, pool)
	s.job.Status.Timeline = BuildTimeline(input)

	return step.Done()
}

// listPreviousEvents returns the timeline of the previous reconcile. If the job has none, its pool was selected when the
// operator received the job, perhaps by a process that has ended since.
func listPreviousEvents(job *v1alpha1.RunnerJob, pool string) []v1alpha1.JobEvent {
	isFirst := len(job.Status.Timeline) == 0 && len(job.Status.Conditions) == 0
	if !isFirst || pool == "" || pool != job.Labels[v1alpha1.LabelRunnerPool] || job.Spec.ReceivedAt == nil {
		return job.Status.Timeline
	}

	return []v1alpha1.JobEvent{newJobEvent(v1alpha1.MomentDecided, job.Spec.ReceivedAt.Time, poolMessage(pool))}
}

// listClaims returns the claims that may be the job's: the claim in the job's status, or else the
// claim of the job's runner and the claims that have the job or were created for it. If the job is
// completed and its machine is deleted, it returns none. The claims belong to the cache and must
// not be changed.
func (s *scope) listClaims(ctx context.Context) ([]v1alpha1.MachineClaim, error) {
	if s.job.Spec.State == v1alpha1.JobCompleted && isDestroyed(s.job.Status.Timeline) {
		return nil, nil
	}

	if s.job.Status.Claim != "" {
		return s.getClaim(ctx, s.job.Status.Claim)
	}

	out, err := s.listClaimsBy(ctx, indexJob, s.job.Name)
	if err != nil || s.job.Spec.RunnerName == "" {
		return out, err
	}

	byRunner, err := ListClaimsOfRunner(ctx, s.Client, s.job.Namespace, s.job.Spec.RunnerName)

	return slices.Concat(out, byRunner), err
}

// getClaim returns the claim with a name in the namespace of the job, or none.
func (s *scope) getClaim(ctx context.Context, name string) ([]v1alpha1.MachineClaim, error) {
	claims := make([]v1alpha1.MachineClaim, 1)

	switch err := s.Client.Get(ctx, client.ObjectKey{Namespace: s.job.Namespace, Name: name}, &claims[0]); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get MachineClaim %s/%s: %w", s.job.Namespace, name, err)
	default:
		return claims, nil
	}
}

// findMachine returns the machine that has the job, or else the machine that was created for the
// job. It uses the claim, or the last state of a deleted claim. It returns nil if no machine is
// known.
func (s *scope) findMachine(claims []v1alpha1.MachineClaim) *Machine {
	if s.job.Spec.State == v1alpha1.JobCompleted && isDestroyed(s.job.Status.Timeline) {
		return nil
	}

	var bound *v1alpha1.MachineClaim

	for i := range claims {
		claim := &claims[i]
		machine := NewMachine(claim)

		if hasJob(machine, s.job) {
			return &machine
		}

		if machine.BoundJob == s.job.Name && (bound == nil || claim.CreationTimestamp.After(bound.CreationTimestamp.Time)) {
			bound = claim
		}
	}

	if bound != nil {
		machine := NewMachine(bound)

		return &machine
	}

	if machine, ok := s.deletedMachines.find(s.job, s.Clock.Now()); ok {
		return &machine
	}

	if s.job.Status.Claim == "" {
		return nil
	}

	// The claim was deleted while no operator was running. An earlier process recorded its name.
	return &Machine{Name: s.job.Status.Claim, EndReason: "the machine was already gone", DeletedAt: s.Clock.Now()}
}

// hasJob reports whether a machine has or had the job.
func hasJob(machine Machine, job *v1alpha1.RunnerJob) bool {
	switch {
	case job.Status.Claim != "":
		return machine.Name == job.Status.Claim
	case machine.Job != "":
		return machine.Job == job.Name
	default:
		return machine.Runner != "" && machine.Runner == job.Spec.RunnerName
	}
}

// reportServed sets the condition Served from the job's state and the cause of its wait.
func reportServed(ctx context.Context, s *scope) step.Result {
	switch {
	case s.job.Spec.State == v1alpha1.JobCompleted && s.jobMachine != nil && !isDestroyed(s.job.Status.Timeline):
		return step.Done().WithReason(ReasonCompleted, "the job is completed").
			DeferWriteAtEnd() // the machine's deletion follows soon, and the spec has the result
	case s.job.Spec.State == v1alpha1.JobCompleted:
		return step.Done().WithReason(ReasonCompleted, "the job is completed")
	case s.job.Spec.State == v1alpha1.JobRunning:
		return step.Done().WithReason(ReasonRunning, "runner "+s.job.Spec.RunnerName+" runs the job").DeferWrite()
	case s.cause.Reason == "":
		return s.deferWait(ctx, step.WaitReady(0, ReasonWaitingForMachine, WaitingMessage(s.job.Status.Pool)))
	case s.cause.Reason == ReasonAtMaximum: // other jobs end soon, and the pool has this reason, too
		return s.deferWait(ctx, step.Wait(0, s.cause.Reason, s.cause.Message))
	default:
		return step.Wait(0, s.cause.Reason, s.cause.Message)
	}
}

// deferWait returns the result for a job whose pool provides a machine, now or when other jobs end, with the permission to
// write it later if nobody has to know it now.
func (s *scope) deferWait(ctx context.Context, result step.Result) step.Result {
	saved, ok := step.SavedObject(ctx).(*v1alpha1.RunnerJob)
	if !ok || s.confirmation != nil {
		return result
	}

	isFirst := len(saved.Status.Conditions) == 0

	switch {
	case isFirst && saved.PoolName() == s.job.Status.Pool && s.cause.Reason == "":
		return result.DeferWriteFor(step.ProgressWriteDelay) // the status says nothing that RunnerJob.PoolName does not say
	case isFirst && saved.PoolName() == s.job.Status.Pool:
		return result.DeferWrite()
	}

	switch last := meta.FindStatusCondition(saved.Status.Conditions, ConditionServed); {
	case last == nil:
		return result
	case last.Reason == ReasonWaitingForMachine: // only the machine has progressed
		return result.DeferWrite()
	case last.Reason == ReasonAtMaximum: // the job starts soon, or its pool is full again
		return result.DeferWriteFor(step.ProgressWriteDelay)
	default:
		return result
	}
}

// WaitingMessage returns the message of ReasonWaitingForMachine.
func WaitingMessage(pool string) string {
	return "RunnerPool " + pool + " provides a machine for the job"
}

// maxStatusDelay is how long a job with a pool may have no status.
const maxStatusDelay = time.Minute

// IsStatusDelayed reports whether the status of a job is not written yet because it would only say that its pool provides a
// machine. After maxStatusDelay, no operator reconciles the job.
func IsStatusDelayed(job *v1alpha1.RunnerJob, now time.Time) bool {
	return len(job.Status.Conditions) == 0 && job.PoolName() != "" && now.Sub(job.CreationTimestamp.Time) < maxStatusDelay
}

// publishNewEvents counts each new event and emits a Kubernetes warning for each new cause of the wait,
// after the status is written. It emits nothing for events without a problem, because the timeline
// has them. It emits nothing for a pool at its maximum either: the pool's condition reports it, and
// a thousand jobs may wait for the pool.
func (s *scope) publishNewEvents() {
	for _, event := range s.job.Status.Timeline {
		if slices.ContainsFunc(s.timelineBefore, func(previous v1alpha1.JobEvent) bool { return isSameEvent(previous, event) }) {
			continue
		}

		s.JobMetrics.observe(s.job, event)
		s.recordSpans(event)

		isAtMaximum := s.cause.Reason == ReasonAtMaximum
		if s.Recorder != nil && event.Moment == v1alpha1.MomentWaiting && !isAtMaximum {
			s.Recorder.Eventf(s.job, nil, corev1.EventTypeWarning, string(event.Moment), "Follow", "%s", event.Message)
		}
	}
}

// isSameEvent reports whether two timeline events are the same. Waiting events differ by their
// times. All other kinds of events occur once.
func isSameEvent(a, b v1alpha1.JobEvent) bool {
	return a.Moment == b.Moment && (a.Moment != v1alpha1.MomentWaiting || a.Time.Time.Equal(b.Time.Time))
}

// isDestroyed reports whether a timeline has its last event, Destroyed.
func isDestroyed(timeline []v1alpha1.JobEvent) bool {
	return slices.ContainsFunc(timeline, func(e v1alpha1.JobEvent) bool { return e.Moment == v1alpha1.MomentDestroyed })
}
