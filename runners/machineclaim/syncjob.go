// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

// conclusionLost is the conclusion of a job whose machine ended while the job ran, if the CI platform
// reports no conclusion.
const conclusionLost = "lost"

// syncJob records in the RunnerJob what the machine reports about its bound job. If the CI platform sends
// webhooks, the report arrives earlier than the webhook. If it does not, the report is the only source.
func syncJob(ctx context.Context, s *scope) step.Result {
	info := s.claim.Status.BootstrapInfo
	if info == nil || info.BoundJob == "" {
		return step.Done()
	}

	if isOver(s.claim) {
		s.bindings.release(s.claim)
	}

	var job v1alpha1.RunnerJob

	err := s.Client.Get(ctx, types.NamespacedName{Namespace: s.claim.Namespace, Name: info.BoundJob}, &job)
	if apierrors.IsNotFound(err) {
		return step.Done()
	}

	if err != nil {
		return step.Fail(fmt.Errorf("get job %s: %w", info.BoundJob, err))
	}

	machineEndsJob := s.machineEndsJobs(job.Spec.Platform)

	update, ok := newJobUpdate(job.Spec, s.claim, machineEndsJob, metav1.NewTime(s.Clock.Now()))
	if !ok {
		return step.Done()
	}

	ledger := &demand.Ledger{Client: s.Client, Live: s.Live, Platforms: s.Platforms}
	if _, err := ledger.Update(ctx, &job, update, s.Clock.Now()); err != nil {
		return step.Fail(fmt.Errorf("sync job of claim %s: %w", s.claim.Name, err))
	}

	return step.Done()
}

// machineEndsJobs reports whether a job of the platform has ended when its machine has ended.
func (s *scope) machineEndsJobs(platform string) bool {
	known, ok := s.Platforms[platform]

	return ok && known.Traits().NeedsMachineForJobEnd
}

// newJobUpdate returns the new state of the claim's job, and false if the state has not changed. If the
// machine ended before the job started, the state does not change: the job stays queued. newJobUpdate is
// pure.
func newJobUpdate(
	job v1alpha1.RunnerJobSpec, claim *v1alpha1.MachineClaim, machineEndsJob bool, now metav1.Time,
) (v1alpha1.RunnerJobSpec, bool) {
	info, times := claim.Status.BootstrapInfo, claim.Status.Times
	phase := guest.Phase(info.GuestPhase)
	// After a restart, only the job may say that the machine has run it, because the claim's status is written later.
	isOwn := job.State == v1alpha1.JobRunning && job.RunnerName != "" && job.RunnerName == info.RunnerName
	hasRun := isOwn || phase == guest.PhaseRunning || info.JobResult != "" || (times != nil && times.JobStarted != nil)

	if !hasRun || job.State == v1alpha1.JobCompleted {
		return job, false
	}

	out := *job.DeepCopy()
	out.RunnerName = info.RunnerName
	hasEnded := !claim.DeletionTimestamp.IsZero() || (times != nil && times.Ended != nil)

	switch {
	case info.JobResult != "":
		out.State, out.Conclusion, out.CompletedAt = v1alpha1.JobCompleted, info.JobResult, &now
	case hasEnded && machineEndsJob:
		out.State, out.Conclusion, out.CompletedAt = v1alpha1.JobCompleted, conclusionLost, &now
	case job.State == v1alpha1.JobRunning && job.RunnerName != "":
		return job, false
	default:
		out.State, out.StartedAt = v1alpha1.JobRunning, &now
	}

	return out, true
}
