// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"cmp"
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// destroy deletes the VM and its cloud-init ISO, and waits until both are deleted.
func destroy(ctx context.Context, s *scope) step.Result {
	status := &s.claim.Status
	if status.VMRef == nil {
		return step.Done()
	}

	status.Phase = v1alpha1.MachineClaimTerminating

	provider, ok := s.Clusters.Get(status.VMRef.HypervisorCluster)
	if !ok {
		return step.Wait(pollInterval, "ClusterNotConnected",
			"HypervisorCluster "+status.VMRef.HypervisorCluster+" is not connected: VM "+status.VMRef.VMID+
				" is deleted as soon as it is connected")
	}

	if result := s.checkBackoff(v1alpha1.ConditionVMCleanedUp); !result.IsDone() {
		return result
	}

	err := provider.Delete(ctx, s.machineRef())

	switch {
	case hypervisor.Is(err, hypervisor.NotFound):
		return step.Done().WithReason("VMGone", "VM "+status.VMRef.VMID+" and its cloud-init ISO are deleted")
	case hypervisor.Is(err, hypervisor.NotOwned):
		return s.leaveVM(ctx, err)
	case err != nil:
		return s.handleError(v1alpha1.ConditionVMCleanedUp, err, "DestroyFailed")
	default:
		return step.Wait(pollInterval, "Destroying", "VM "+status.VMRef.VMID+" is being deleted").DeferWriteAtEnd()
	}
}

// leaveVM does not delete a VM that has another owner. It writes the end reason to the status before the
// claim is deleted, because the timeline of the job reads the end of the machine from the claim.
func (s *scope) leaveVM(ctx context.Context, cause error) step.Result {
	result := step.Done().WithReason("NotOwned", cause.Error())
	s.isVMNotDeleted = true

	if v1alpha1.CurrentReason(s.claim.Status.EndReason) == v1alpha1.EndReasonVMNotDeleted {
		return result
	}

	s.claim.Status.EndReason = v1alpha1.EndReasonVMNotDeleted
	if err := step.SaveStatusWithResult(ctx, result); err != nil {
		return step.Fail(err)
	}

	return result
}

// emitDestroyed emits the final event, metrics and trace of the machine after the finalizer is removed from
// the claim. A machine of a pool whose job is done has no event, because nobody has to act on it.
func emitDestroyed(ctx context.Context, s *scope) step.Result {
	status := &s.claim.Status
	if status.VMRef == nil && status.EndReason == "" {
		return step.Done()
	}

	if err := s.restoreEnd(ctx); err != nil {
		return step.Fail(err)
	}

	if s.Ends != nil {
		s.Ends.RecordEnd(s.claim)
	}

	reason := cmp.Or(status.EndReason, reasonDeleted)
	stopped, duration := s.times().Stopped, s.elapsedSince(s.times().Stopped)

	step.OnFinalized(ctx, func() {
		s.Metrics.countEnded(s.claim, reason)
		s.traceMachine(reason)

		if stopped != nil {
			s.Metrics.observePhase(s.claim, "destroyed", duration)
		}
	})

	if status.VMRef == nil {
		return step.Done()
	}

	event := newNotice(corev1.EventTypeNormal, "Destroyed", "Destroy", "VM %s is deleted: %s", status.VMRef.VMID, reason)
	if s.isVMNotDeleted {
		event = newNotice(corev1.EventTypeWarning, "VMNotDeleted", "Destroy",
			"VM %s on node %s of HypervisorCluster %s has another owner according to its ownership record, "+
				"and was not deleted: check the VM, and delete it by hand if it is no longer needed",
			status.VMRef.VMID, status.VMRef.Node, status.VMRef.HypervisorCluster)
	}

	if reason == guest.ReasonJobDone && s.claim.PoolName() != "" {
		step.OnFinalized(ctx, event.LogFunc(ctx)) // the timeline of the job has it

		return step.Done()
	}

	step.OnFinalized(ctx, event.EmitFunc(ctx))

	return step.Done()
}

// restoreEnd sets the end reason of a machine whose job is done, if the process that has seen the end did not write it; see
// isEndRecorded.
func (s *scope) restoreEnd(ctx context.Context) error {
	info := s.claim.Status.BootstrapInfo
	if s.claim.Status.EndReason != "" || info == nil || info.RunnerName == "" {
		return nil
	}

	if err := s.recordTakenJob(ctx); err != nil {
		return err
	}

	if hasReportedJobDone(info) || s.hasCompletedJob(ctx) {
		s.claim.Status.EndReason = guest.ReasonJobDone
	}

	return nil
}

// reasonDeleted is the end reason of a machine that was deleted without an error, for example because the
// pool was scaled down.
const reasonDeleted = "Deleted"
