// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// ConditionServed is True when the job has its machine. While it waits, its reason says
// what for.
const ConditionServed = "Served"

// Reasons of the condition Served that are no trouble.
const (
	// ReasonMachineComing: a machine is on its way to the job.
	ReasonMachineComing = "MachineComing"
	// ReasonRunning: a runner has the job.
	ReasonRunning = "Running"
	// ReasonCompleted: the job is over.
	ReasonCompleted = "Completed"
)

// recordTimeline writes the job's timeline. It comes before the steps that may stop the list: above
// all what cannot be served needs its timeline.
func recordTimeline(ctx context.Context, s *scope) step.Result {
	claims, err := s.claims(ctx)
	if err != nil {
		return step.Fail(err)
	}

	machine := s.machine(claims)
	if machine != nil && s.job.Status.Claim == "" && took(*machine, s.job) {
		s.job.Status.Claim = machine.Name
	}

	s.mine = machine
	s.trace()

	input := TimelineInput{Job: s.job.Spec, Before: s.job.Status.Timeline, Machine: machine, Now: s.Clock.Now()}

	if s.job.Spec.State != v1alpha1.JobCompleted {
		if input.Pool, s.cause, err = s.waitsFor(ctx); err != nil {
			return step.Fail(err)
		}

		input.Cause = s.cause
	}

	s.job.Status.Timeline = Timeline(input)

	return step.Done()
}

// claims reads the claims that may be the job's: the one that it is known to have, that of
// its runner, and those that have it or were made for it. They belong to the cache and must
// not be changed.
func (s *scope) claims(ctx context.Context) ([]v1alpha1.MachineClaim, error) {
	if s.job.Spec.State == v1alpha1.JobCompleted && destroyed(s.job.Status.Timeline) {
		return nil, nil
	}

	if s.job.Status.Claim != "" {
		return s.claimsBy(ctx, indexClaimName, s.job.Status.Claim)
	}

	out, err := s.claimsBy(ctx, indexJob, s.job.Name)
	if err != nil || s.job.Spec.RunnerName == "" {
		return out, err
	}

	byRunner, err := s.claimsBy(ctx, IndexRunnerName, s.job.Spec.RunnerName)

	return slices.Concat(out, byRunner), err
}

// machine finds the machine that has the job, or else the one made for it: its claim, or
// what was last seen of the claim before it was gone.
func (s *scope) machine(claims []v1alpha1.MachineClaim) *Machine {
	if s.job.Spec.State == v1alpha1.JobCompleted && destroyed(s.job.Status.Timeline) {
		return nil
	}

	var bound *v1alpha1.MachineClaim

	for i := range claims {
		claim := &claims[i]
		machine := MachineOf(claim)

		if took(machine, s.job) {
			return &machine
		}

		if machine.BoundJob == s.job.Name && (bound == nil || claim.CreationTimestamp.After(bound.CreationTimestamp.Time)) {
			bound = claim
		}
	}

	if bound != nil {
		machine := MachineOf(bound)

		return &machine
	}

	if machine, ok := s.gone.find(s.job); ok {
		return &machine
	}

	if s.job.Status.Claim == "" {
		return nil
	}

	// It went while nobody looked: an earlier process saw it last.
	return &Machine{Name: s.job.Status.Claim, EndReason: "found gone", Gone: s.Clock.Now()}
}

// took tells whether a machine has, or had, the job.
func took(machine Machine, job *v1alpha1.RunnerJob) bool {
	switch {
	case job.Status.Claim != "":
		return machine.Name == job.Status.Claim
	case machine.Job != "":
		return machine.Job == job.Name
	default:
		return machine.Runner != "" && machine.Runner == job.Spec.RunnerName
	}
}

// served sums up what the job waits for.
func served(_ context.Context, s *scope) step.Result {
	switch {
	case s.job.Spec.State == v1alpha1.JobCompleted && s.mine != nil && !destroyed(s.job.Status.Timeline):
		return step.Done().WithReason(ReasonCompleted, "the job is over").Unhurried() // its machine's end is near
	case s.job.Spec.State == v1alpha1.JobCompleted:
		return step.Done().WithReason(ReasonCompleted, "the job is over")
	case s.job.Spec.State == v1alpha1.JobRunning:
		return step.Done().WithReason(ReasonRunning, "runner "+s.job.Spec.RunnerName+" has the job").Unhurried()
	case s.cause.Reason == "":
		return step.Steady(0, ReasonMachineComing, "a machine of RunnerPool "+s.job.Status.Pool+" is on its way")
	default:
		return step.Wait(0, s.cause.Reason, s.cause.Message)
	}
}

// announce counts each new moment, and emits an event for each trouble that the job waits for,
// once it is on record. What goes as it should is in the timeline, and so is the wait for others
// to end: a pool at its maximum says so itself, and its jobs may be a thousand.
func (s *scope) announce() {
	for _, event := range s.job.Status.Timeline {
		if slices.ContainsFunc(s.told, func(before v1alpha1.JobEvent) bool { return same(before, event) }) {
			continue
		}

		s.JobMetrics.note(s.job, event)
		s.tell(event)

		inTurn := s.cause.Reason == ReasonAtMaximum
		if s.Recorder != nil && event.Moment == v1alpha1.MomentWaiting && !inTurn {
			s.Recorder.Eventf(s.job, nil, corev1.EventTypeWarning, string(event.Moment), "Follow", "%s", event.Message)
		}
	}
}

// same tells whether two events are the same news. Causes of waiting are told by their
// time; all other moments come once.
func same(a, b v1alpha1.JobEvent) bool {
	return a.Moment == b.Moment && (a.Moment != v1alpha1.MomentWaiting || a.Time.Time.Equal(b.Time.Time))
}

// destroyed tells whether a timeline has come to its end.
func destroyed(timeline []v1alpha1.JobEvent) bool {
	return slices.ContainsFunc(timeline, func(e v1alpha1.JobEvent) bool { return e.Moment == v1alpha1.MomentDestroyed })
}
