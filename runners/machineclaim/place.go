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

// place reserves an id and a node. They are put on record before anything is made.
func place(ctx context.Context, s *scope) step.Result {
	status := &s.claim.Status
	if status.VMRef != nil {
		return step.Done()
	}

	if result, backingOff := s.backingOff(v1alpha1.ConditionPlaced); backingOff {
		return result
	}

	if result, ok := s.admitted(v1alpha1.ConditionPlaced, s.hypervisorCause()); !ok {
		return result
	}

	counted, err := s.withinQuota(ctx)
	if err != nil {
		return connect.Outcome(err, lookAgain, tenancy.ReasonNamespace)
	}

	if counted {
		defer s.placing.Unlock()
	}

	reserved, err := s.provider.Reserve(ctx, vmspec.Spec(s.claim, s.template, s.names))
	if hypervisor.Is(err, hypervisor.NoCapacity) {
		return connect.Outcome(err, lookAgain, "NoCapacity") // nothing failed: it waits for room
	}

	if err != nil {
		return s.makingFailed(v1alpha1.ConditionPlaced, err, "NotPlaced")
	}

	s.worked(s.hypervisorCause())

	status.VMRef = &v1alpha1.VMReference{
		HypervisorCluster: s.cluster.Name, VMID: strconv.Itoa(reserved.ID), Node: reserved.Node,
		OperatorUID: s.Settings.OperatorUID, Resources: placed(s.template),
	}

	if status.NetworkInfo == nil {
		status.NetworkInfo = &v1alpha1.NetworkInfo{} // else it has the machine's addresses
	}

	status.NetworkInfo.Hostname, status.NetworkInfo.FQDN = s.names.Hostname, s.names.FQDN
	status.BootstrapInfo = &v1alpha1.BootstrapInfo{
		RunnerName: vmspec.RunnerName(s.claim), Identity: vmspec.Identity(s.claim, s.template, s.Settings),
	}
	s.times().Placed = s.micro()
	status.Phase = v1alpha1.MachineClaimProvisioning

	if counted {
		if err := step.Save(ctx); err != nil {
			return step.Fail(err)
		}
	}

	return step.Done()
}
