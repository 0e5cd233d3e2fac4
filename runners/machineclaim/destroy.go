// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/connect"
)

// destroy removes the machine and its medium, and waits until both are gone.
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

	err := provider.Delete(ctx, s.ref())

	switch {
	case hypervisor.Is(err, hypervisor.NotFound):
		return step.Done().WithReason("VMGone", "VM "+status.VMRef.VMID+" and its medium are gone")
	case hypervisor.Is(err, hypervisor.NotOwned):
		return step.Done().WithReason("NotOwned", err.Error())
	case err != nil:
		return connect.Outcome(err, lookAgain, "DestroyFailed")
	default:
		return step.Wait(lookAgain, "Destroying", "VM "+status.VMRef.VMID+" is being removed")
	}
}

// emitDestroyed tells once that nothing is left.
func emitDestroyed(_ context.Context, s *scope) step.Result {
	if stopped := s.times().Stopped; stopped != nil {
		s.Metrics.phase("destroyed", s.since(stopped))
	}

	if s.claim.Status.VMRef != nil {
		s.eventf(corev1.EventTypeNormal, "Destroyed", "Destroy", "VM %s is gone", s.claim.Status.VMRef.VMID)
	}

	return step.Done()
}
