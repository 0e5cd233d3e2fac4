// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/workload"
)

// busyInterval is how often the state of a busy runner is polled.
const busyInterval = 10 * time.Second

// conditionDeregistered is the condition of the step that removes the runner.
const conditionDeregistered = "Deregistered"

// deregister removes the runner from the CI platform before the VM is deleted. A busy runner delays the
// deletion until its job is done, unless the VM is already off or the machine has exceeded a limit that the
// user has set.
func deregister(ctx context.Context, s *scope) step.Result {
	status := &s.claim.Status
	if status.BootstrapInfo == nil || status.BootstrapInfo.RunnerName == "" || s.claim.Spec.Standby {
		return step.Done() // on standby there is no runner yet
	}

	status.Phase = v1alpha1.MachineClaimDraining

	if s.deregistered.has(s.claim) {
		return step.Done()
	}

	if result := s.checkBackoff(conditionDeregistered); !result.IsDone() {
		return result
	}

	switch result := s.load(ctx); {
	case s.template != nil: // the cluster is not needed
	case result.Reason() != reasonTemplateNotFound:
		return result
	default:
		return step.Done().WithReason("TemplateGone", "the runner was not removed from the CI platform: "+result.Message())
	}

	provider, err := s.Workloads.ProviderToRelease(ctx, s.template, s.claim.Spec.WorkloadConfig)
	if errclass.ClassOf(err) == errclass.Configuration {
		message := fmt.Sprintf("runner %s was not removed, because the operator no longer has the credentials of the CI platform: "+
			"delete the runner there if it still exists (%s)", status.BootstrapInfo.RunnerName, errclass.ReasonOf(err, "CredentialsGone"))
		s.transitionEventf(ctx, corev1.EventTypeWarning, "RunnerNotRemoved", "Deregister", "%s", message)

		return step.Done().WithReason("CredentialsGone", message)
	}

	if err != nil {
		return s.handleError(conditionDeregistered, err, "CredentialsUnavailable")
	}

	return s.removeRunner(ctx, provider)
}

// removeRunner removes the claim's runner from the CI platform. While the runner runs a job, it waits. If
// the platform rejects the removal, or still lists the runner as busy although its machine has ended, the
// runner stays and the step is done.
func (s *scope) removeRunner(ctx context.Context, provider workload.Provider) step.Result {
	info := s.claim.Status.BootstrapInfo

	if result := s.waitForSharedList(); !result.IsDone() {
		return result
	}

	runner, err := s.findRunner(ctx, provider)

	switch {
	case workload.Is(err, workload.NotFound):
		return s.completeDeregistration()
	case workload.Is(err, workload.Rejected):
		s.transitionEventf(ctx, corev1.EventTypeWarning, "RunnerNotRemoved", "Deregister", "runner %s was not removed: %s",
			info.RunnerName, err.Error())

		return step.Done().WithReason("RunnerNotRemoved", err.Error())
	case err != nil:
		return s.handleError(conditionDeregistered, err, "RunnerUnknown")
	}

	err = provider.Deregister(ctx, runner.ID)

	switch {
	case err == nil, workload.Is(err, workload.NotFound):
		return s.completeDeregistration()
	case workload.Is(err, workload.RunnerBusy) && s.canInterrupt(ctx):
		return step.Done().WithReason("BusyRunnerNotRemoved",
			fmt.Sprintf("runner %s is listed as busy, but its machine has ended; the runner is removed when its job is removed",
				info.RunnerName))
	case workload.Is(err, workload.RunnerBusy):
		return step.Wait(busyInterval, "RunnerBusy",
			fmt.Sprintf("runner %s runs a job; its VM is deleted when the job is done", info.RunnerName))
	default:
		return s.handleError(conditionDeregistered, err, "DeregistrationFailed")
	}
}

// completeDeregistration records in memory that the runner no longer exists, so that later reconciles do
// not search for it.
func (s *scope) completeDeregistration() step.Result {
	s.deregistered.add(s.claim)

	return step.Done()
}

// findRunner finds the claim's runner by its name, which is derived from the claim's name and UID. If the
// runner is bound to a job and the platform identifies runners only by their job, findRunner finds it by
// the job ID. It does not trust the runner name and the job in the claim's status without a check, because
// a person can write both.
func (s *scope) findRunner(ctx context.Context, provider workload.Provider) (workload.Runner, error) {
	named, err := provider.FindRunner(ctx, vmspec.RunnerName(s.claim), s.maxListAge())
	info := s.claim.Status.BootstrapInfo

	if !workload.Is(err, workload.NotFound) || info.BoundJob == "" || !s.mayHaveCredential() {
		return named, err
	}

	var job v1alpha1.RunnerJob

	getErr := s.Client.Get(ctx, types.NamespacedName{Namespace: s.claim.Namespace, Name: info.BoundJob}, &job)
	if apierrors.IsNotFound(getErr) {
		return named, err
	}

	if getErr != nil {
		return workload.Runner{}, fmt.Errorf("get job %s: %w", info.BoundJob, getErr)
	}

	if taken := job.Spec.RunnerName; taken != "" && taken != vmspec.RunnerName(s.claim) {
		return named, err // the job was bound to another machine later
	}

	bound, findErr := provider.FindRunner(ctx, job.Spec.ID, s.maxListAge())
	if findErr == nil && !strings.EqualFold(bound.ID, job.Spec.ID) {
		return named, err
	}

	return bound, findErr
}

// mayHaveCredential reports whether a credential of the claim's runner may have been issued. The ID of the runner is
// written with the progress of the machine. If the process ended before that, the machine may run nevertheless.
func (s *scope) mayHaveCredential() bool {
	return s.claim.Status.BootstrapInfo.RunnerID != "" || s.times().CloneStarted != nil
}

// maxListAge returns the maximum age of a list of runners. The list must be newer than the stop of the
// machine. If the machine has not stopped, maxListAge returns 0.
func (s *scope) maxListAge() time.Duration {
	if stopped := s.times().Stopped; stopped != nil {
		return s.elapsedSince(stopped)
	}

	return 0
}

// waitForSharedList delays a claim whose machine stopped shortly after the last list of runners. So
// machines that stop one after the other share a list. Otherwise each of them would cause a list.
// waitForSharedList returns Done if the claim can use a list or start one.
func (s *scope) waitForSharedList() step.Result {
	stopped := s.times().Stopped
	if stopped == nil {
		return step.Done()
	}

	remaining := s.runnerLists.reserve(s.platformCause(), stopped.Time, s.Clock.Now())
	if remaining == 0 {
		return step.Done()
	}

	return step.Wait(remaining, "WaitingForRunnerList", fmt.Sprintf(
		"searching for runner %s together with the runners of other stopped machines",
		s.claim.Status.BootstrapInfo.RunnerName)).DeferWriteAtEnd()
}

// canInterrupt reports whether a machine may be deleted although its runner is listed as busy: the machine
// is off, or it has exceeded a limit that the user has set.
func (s *scope) canInterrupt(ctx context.Context) bool {
	switch s.claim.Status.EndReason {
	case ReasonMaxLifetime, ReasonJobTimeout:
		return true
	}

	if s.times().Stopped != nil {
		return true
	}

	if s.provider == nil || s.claim.Status.VMRef == nil {
		return false
	}

	isGone, err := s.observeMachine(ctx)

	return isGone && err == nil
}
