// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

// defaultScaleDownDelay applies to pools that set no delay.
const defaultScaleDownDelay = 5 * time.Minute

// scale activates machines on standby, creates the machines that are then still missing, and deletes the
// surplus ones.
func scale(ctx context.Context, s *scope) step.Result {
	in, scheduleErr := s.newInput()
	decision := demand.Decide(in)
	imageMessage := s.dropUnavailableImages(&decision)
	s.pool.Status.DesiredReplicas = int32(decision.Desired) //nolint:gosec // at most 10000
	s.requeueAfter = step.ChooseSooner(decision.RequeueAfter, s.recheckIn)

	if in.Paused {
		return step.WaitReady(0, decision.Reason, decision.Message)
	}

	quotaMessage := s.applyQuotaBackoff(&decision)
	errs := []error{s.activate(ctx, decision.Activate)}

	err := s.createClaims(ctx, s.planMachines(&decision))
	if errclass.IsOverQuota(err) {
		s.quotaBackoff.record(err.Error(), len(s.view.claims), s.Clock.Now())
		// The quota has rejected the creations. They are removed from the decision, so that
		// reportDecision emits no event for them.
		quotaMessage = s.applyQuotaBackoff(&decision)
		err = nil
	}

	s.requeueIn(s.expectations.nextCheckIn(s.Clock.Now()))

	errs = append(errs, err)

	for _, deletion := range decision.Delete {
		if claim := s.view.findClaim(deletion.Name); claim != nil {
			errs = append(errs, s.deleteClaim(ctx, claim, deletion.Reason, deletion.Message))
		}
	}

	errs = append(errs, s.deleteFailedClaims(ctx))

	if err := errors.Join(errs...); err != nil {
		return step.Fail(err)
	}

	return s.reportDecision(ctx, decision, quotaMessage, imageMessage, scheduleErr)
}

// dropUnavailableImages removes the creation of machines whose image has no usable template from
// the decision. It returns the reason, or "" if it removed nothing.
func (s *scope) dropUnavailableImages(decision *demand.Decision) string {
	message := ""

	for _, size := range s.view.sizes {
		index := slices.IndexFunc(s.sources, func(src source) bool { return src.name == size.Template })
		if index >= 0 && !s.sources[index].isUsable() && decision.CreateBySize[size.Key()] > 0 {
			delete(decision.CreateBySize, size.Key())
			message = "a job waits for its image: " + s.sources[index].unusableReason
		}
	}

	return message
}

// reportDecision emits an event if machines are created or activated, or if a quota begins to prevent that, and returns
// the result of the step. Causes that a person must fix take precedence.
func (s *scope) reportDecision(
	ctx context.Context, decision demand.Decision, quotaMessage, imageMessage string, scheduleErr error,
) step.Result {
	if decision.ShouldCreate() || len(decision.Activate) > 0 {
		s.Recorder.Eventf(newEventSubject(s.pool), nil, corev1.EventTypeNormal, decision.Reason, "Scale", "%s", decision.Message)
	}

	switch {
	case scheduleErr != nil:
		return step.Stall("ScheduleInvalid", scheduleErr.Error())
	case quotaMessage != "":
		const reason = errclass.ReasonQuotaExceeded

		step.OnTransition(ctx, func() {
			s.Recorder.Eventf(newEventSubject(s.pool), nil, corev1.EventTypeWarning, reason, "Scale", "%s", quotaMessage)
		})

		return step.Wait(s.requeueAfter, reason, quotaMessage)
	case imageMessage != "":
		return step.Wait(s.requeueAfter, "TemplateNotReady", imageMessage)
	case s.pool.Status.FailedClaims >= failingThreshold:
		return step.Wait(s.requeueAfter, "MachinesFailing", s.failureMessage())
	default:
		result := step.Done().WithReason(decision.Reason, decision.Message)

		if saved, ok := step.SavedObject(ctx).(*v1alpha1.RunnerPool); ok && canWriteLater(saved, s.pool, result.Reason()) {
			return result.DeferWrite()
		}

		return result
	}
}

// newEventSubject returns the pool without its resource version. So the decisions of a pool with the same reason are one
// event, which counts them. Otherwise each status of the pool would have events of its own, and each job an event.
func newEventSubject(pool *v1alpha1.RunnerPool) *v1alpha1.RunnerPool {
	return &v1alpha1.RunnerPool{ObjectMeta: metav1.ObjectMeta{Namespace: pool.Namespace, Name: pool.Name, UID: pool.UID}}
}

// canWriteLater reports whether the status of a pool with a new reason of the condition Scaling may be written later,
// because no job waits for another cause than before. saved is the pool as the API server has it.
func canWriteLater(saved, current *v1alpha1.RunnerPool, reason string) bool {
	last := meta.FindStatusCondition(saved.Status.Conditions, conditionScaling)
	if last == nil || last.Status != metav1.ConditionTrue {
		return false
	}

	next := &v1alpha1.RunnerPool{ObjectMeta: current.ObjectMeta, Spec: current.Spec, Status: current.Status}
	next.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue},
		{Type: conditionScaling, Status: metav1.ConditionTrue, Reason: reason},
	}

	return last.Reason == reason || demand.HasSameCause(saved, next)
}

// failingThreshold is the number of failures in a row after which a pool is not ready. Its jobs
// wait, and the pool continues to create machines one at a time.
const failingThreshold = 3

func (s *scope) failureMessage() string {
	status := &s.pool.Status
	text := fmt.Sprintf("the last %d machines failed", status.FailedClaims)

	if last := status.LastFailure; last != nil {
		text += fmt.Sprintf(", the last one of MachineClaim %s: %s",
			last.Claim, strings.TrimSuffix(last.Reason+": "+last.Message, ": "))
	}

	return text + ". The pool creates one machine at a time, with an increasing delay"
}

// applyQuotaBackoff removes the creation of machines from the decision while the namespace's quota
// is used up. It returns the API server's message, or "" if it removed nothing.
func (s *scope) applyQuotaBackoff(decision *demand.Decision) string {
	remaining, message := s.quotaBackoff.remaining(len(s.view.claims), s.Clock.Now())
	if remaining <= 0 || !decision.ShouldCreate() {
		return ""
	}

	decision.Create, decision.CreateStandby, decision.CreateBySize = 0, 0, nil
	s.requeueIn(remaining)

	return message
}

// requeueIn makes the next reconcile run after the delay, unless an earlier one is scheduled.
func (s *scope) requeueIn(remaining time.Duration) {
	s.requeueAfter = step.ChooseSooner(s.requeueAfter, remaining)
}

// newInput returns the input of the decision. The error names the invalid schedules; the other
// schedules are used.
func (s *scope) newInput() (demand.Input, error) {
	spec, status, now := &s.pool.Spec, &s.pool.Status, s.Clock.Now()
	scheduled, boundary, scheduleErr := demand.FindScheduledMin(spec.Scaling.Schedules, spec.Scaling.MaxReplicas, now)
	in := demand.Input{
		Min: max(int(spec.Scaling.MinReplicas), scheduled), Max: int(spec.Scaling.MaxReplicas),
		Queued: s.view.count.Queued, Claims: s.view.states, Paused: spec.Paused,
		Now: now, Boundary: boundary, ScaleDownDelay: defaultScaleDownDelay,
		Failures: int(status.FailedClaims),
	}

	for _, size := range s.view.sizes {
		in.Sizes = append(in.Sizes, size.Key())
	}

	if warm := spec.Scaling.Warm; warm != nil {
		s.addWarm(&in, warm)
	}

	if spec.Scaling.ScaleDownDelay != nil {
		in.ScaleDownDelay = spec.Scaling.ScaleDownDelay.Duration
	}

	if status.LastFailureTime != nil {
		in.LastFailure = status.LastFailureTime.Time
	}

	if l := spec.Lifecycle; l != nil {
		if l.IdleTimeout != nil {
			in.IdleTimeout = l.IdleTimeout.Duration
		}

		if l.MaxLifetime != nil {
			in.MaxLifetime = l.MaxLifetime.Duration
		}
	}

	return in, scheduleErr
}

// addWarm adds the numbers of warm machines, which are ready before a job comes, to the input.
func (s *scope) addWarm(in *demand.Input, warm *v1alpha1.Warm) {
	var maxIdle *int

	if warm.MaxIdle != nil {
		n := int(*warm.MaxIdle)
		maxIdle = &n
	}

	startup := s.startups.median()

	var decreasesAt time.Time

	in.WarmStopped = int(warm.Stopped)
	in.WarmIdle, decreasesAt = demand.CountWarmIdle(int(warm.Idle), maxIdle, s.view.arrivals, startup, in.Now)

	if !decreasesAt.IsZero() && (in.Boundary.IsZero() || decreasesAt.Before(in.Boundary)) {
		in.Boundary = decreasesAt
	}
}
