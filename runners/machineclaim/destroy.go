// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"cmp"
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// destroy removes the machine and its cloud-init ISO, and waits until both are gone.
func destroy(ctx context.Context, s *scope) step.Result {
	status := &s.claim.Status
	if status.VMRef == nil {
		return step.Done()
	}

	status.Phase = v1alpha1.MachineClaimTerminating

	provider, ok := s.Clusters.Get(status.VMRef.HypervisorCluster)
	if !ok {
		return step.Wait(lookAgain, "ClusterNotConnected",
			"HypervisorCluster "+status.VMRef.HypervisorCluster+" is not connected: VM "+status.VMRef.VMID+
				" is removed once it is")
	}

	if result, waits := s.backingOff(v1alpha1.ConditionVMCleanedUp); waits {
		return result
	}

	err := provider.Delete(ctx, s.ref())

	switch {
	case hypervisor.Is(err, hypervisor.NotFound):
		return step.Done().WithReason("VMGone", "VM "+status.VMRef.VMID+" and its cloud-init ISO are gone")
	case hypervisor.Is(err, hypervisor.NotOwned):
		return s.leave(ctx, err)
	case err != nil:
		return s.failed(v1alpha1.ConditionVMCleanedUp, err, "DestroyFailed")
	default:
		return step.Wait(lookAgain, "Destroying", "VM "+status.VMRef.VMID+" is being removed").Unhurried()
	}
}

// leave has a VM that bears another owner's mark stay. That is on record before the claim
// goes: what its job's timeline says of the machine is read there.
func (s *scope) leave(ctx context.Context, why error) step.Result {
	result := step.Done().WithReason("NotOwned", why.Error())
	s.leftBehind = true

	if s.claim.Status.EndReason == v1alpha1.EndReasonLeftBehind {
		return result
	}

	s.claim.Status.EndReason = v1alpha1.EndReasonLeftBehind
	if err := step.SaveAs(ctx, result); err != nil {
		return step.Fail(err)
	}

	return result
}

// emitDestroyed tells, once the claim is gone, that nothing is left.
func emitDestroyed(ctx context.Context, s *scope) step.Result {
	status := &s.claim.Status
	if status.VMRef == nil && status.EndReason == "" {
		return step.Done()
	}

	reason := cmp.Or(status.EndReason, reasonDeleted)
	stopped, took := s.times().Stopped, s.since(s.times().Stopped)

	step.OnFinalized(ctx, func() {
		s.Metrics.ended(s.claim, reason)
		s.tellLife(reason)

		if stopped != nil {
			s.Metrics.phase(s.claim, "destroyed", took)
		}
	})

	if status.VMRef == nil {
		return step.Done()
	}

	told := notice(corev1.EventTypeNormal, "Destroyed", "Destroy", "VM %s is gone: %s", status.VMRef.VMID, reason)
	if s.leftBehind {
		told = notice(corev1.EventTypeWarning, "LeftBehind", "Destroy",
			"VM %s on node %s of HypervisorCluster %s is not this claim's by its notes, and was left as it is: look at it, "+
				"and remove it by hand if nobody needs it", status.VMRef.VMID, status.VMRef.Node, status.VMRef.HypervisorCluster)
	}

	step.OnFinalized(ctx, told.Emit(ctx))

	return step.Done()
}

// reasonDeleted is that of a machine that was deleted in good order, such as a surplus one.
const reasonDeleted = "Deleted"
