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

// conclusionLost is that of a job whose machine ended in the middle of it, where nobody
// else tells.
const conclusionLost = "lost"

// syncJob tells the ledger what the machine says of the one job that it was made for. For
// a platform that sends webhooks that is sooner; of the jobs of others nobody else tells.
func syncJob(ctx context.Context, s *scope) step.Result {
	info := s.claim.Status.BootstrapInfo
	if info == nil || info.BoundJob == "" {
		return step.Done()
	}

	if over(s.claim) {
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

	ends := s.machineEndsJobs(job.Spec.Platform)

	said, ok := jobUpdate(job.Spec, s.claim, ends, metav1.NewTime(s.Clock.Now()))
	if !ok {
		return step.Done()
	}

	ledger := &demand.Ledger{Client: s.Client, Live: s.Live, Platforms: s.Platforms}
	if _, err := ledger.Record(ctx, job.Namespace, said, s.Clock.Now()); err != nil {
		return step.Fail(fmt.Errorf("sync job of claim %s: %w", s.claim.Name, err))
	}

	return step.Done()
}

// machineEndsJobs says whether a job whose machine is gone has ended.
func (s *scope) machineEndsJobs(platform string) bool {
	known, ok := s.Platforms[platform]

	return ok && known.Traits().MachineEndsJobs
}

// jobUpdate is what a claim tells of its job, and false where it is nothing new. A machine
// that ended before the job began tells nothing: the job goes back to the queue. It is
// pure.
func jobUpdate(
	job v1alpha1.RunnerJobSpec, claim *v1alpha1.MachineClaim, machineEnds bool, now metav1.Time,
) (v1alpha1.RunnerJobSpec, bool) {
	info, times := claim.Status.BootstrapInfo, claim.Status.Times
	phase := guest.Phase(info.GuestPhase)
	ran := phase == guest.PhaseRunning || info.JobResult != "" || (times != nil && times.JobStarted != nil)

	if !ran || job.State == v1alpha1.JobCompleted {
		return job, false
	}

	out := *job.DeepCopy()
	out.RunnerName = info.RunnerName
	over := !claim.DeletionTimestamp.IsZero() || (times != nil && times.Ended != nil)

	switch {
	case info.JobResult != "":
		out.State, out.Conclusion, out.CompletedAt = v1alpha1.JobCompleted, info.JobResult, &now
	case over && machineEnds:
		out.State, out.Conclusion, out.CompletedAt = v1alpha1.JobCompleted, conclusionLost, &now
	case job.State == v1alpha1.JobRunning && job.RunnerName != "":
		return job, false
	default:
		out.State, out.StartedAt = v1alpha1.JobRunning, &now
	}

	return out, true
}
