// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"strconv"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/tenancy"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
)

// place reserves an ID and a node for the machine, and records them in the claim's status before the
// machine is created.
func place(ctx context.Context, s *scope) step.Result {
	status := &s.claim.Status
	if status.VMRef != nil {
		return step.Done()
	}

	if result := s.checkBackoff(v1alpha1.ConditionPlaced); !result.IsDone() {
		return result
	}

	if result := s.admit(v1alpha1.ConditionPlaced, s.hypervisorCause()); !result.IsDone() {
		return result
	}

	hasQuota, err := s.checkQuota(ctx)
	if err != nil {
		return connect.NewErrorResult(err, pollInterval, tenancy.ReasonNamespace)
	}

	if hasQuota {
		defer s.placementLock.Unlock()
	}

	reserved, err := s.provider.Reserve(ctx, vmspec.NewMachineSpec(s.claim, s.template, s.names))
	if hypervisor.Is(err, hypervisor.NoCapacity) {
		return connect.NewErrorResult(err, pollInterval, "NoCapacity") // not a failure: the machine waits for free capacity
	}

	if err != nil {
		return s.handleCreateError(v1alpha1.ConditionPlaced, err, "NotPlaced")
	}

	s.recordSuccess(s.hypervisorCause())

	status.VMRef = &v1alpha1.VMReference{
		HypervisorCluster: s.cluster.Name, VMID: strconv.Itoa(reserved.ID), Node: reserved.Node,
		OperatorUID: s.Settings.OperatorUID, Resources: newPlacedResources(s.template),
	}

	if status.NetworkInfo == nil {
		status.NetworkInfo = &v1alpha1.NetworkInfo{} // if it exists, it holds the addresses of the machine
	}

	status.NetworkInfo.Hostname, status.NetworkInfo.FQDN = s.names.Hostname, s.names.FQDN
	status.BootstrapInfo = &v1alpha1.BootstrapInfo{
		RunnerName: vmspec.RunnerName(s.claim), Identity: vmspec.NewMachineIdentity(s.claim, s.template, s.Settings),
	}
	s.times().Placed = s.now()
	status.Phase = v1alpha1.MachineClaimProvisioning

	if hasQuota {
		if err := step.SaveStatus(ctx); err != nil {
			return step.Fail(err)
		}
	}

	return step.Done()
}
