// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// ReasonNetworkingOff is the reason if no networking controller allocates an address for the claim's machine.
const ReasonNetworkingOff = "NetworkingOff"

// networkingTimeout is how long the networking controllers may take before they are reported as off. It is
// longer than a leader election takes.
const networkingTimeout = time.Minute

// waitForAddress waits for the machine's addresses if its template has an address pool. The networking area
// writes the addresses to the claim's status, and the reason to the condition AddressAllocated if it has
// none. Only the networking area writes this condition, so the step has no condition. A change of the
// status enqueues the claim.
func waitForAddress(_ context.Context, s *scope) step.Result {
	status := &s.claim.Status

	switch {
	case s.template.Spec.Network.AddressPool() == nil, s.times().Started != nil:
		return step.Done()
	case hasAddresses(status):
		return step.Done()
	}

	allocated := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionAddressAllocated)
	if allocated != nil && allocated.Status != metav1.ConditionTrue {
		return step.Wait(resyncInterval, allocated.Reason, allocated.Message)
	}

	waited := s.waitedForAddress()
	if waited < networkingTimeout {
		return step.Wait(networkingTimeout-waited, "AddressPending", "waiting for an address of the template's pool")
	}

	return step.Wait(resyncInterval, ReasonNetworkingOff,
		"no controller allocates an address of the template's pool for the machine: "+
			"run the operator with controllers: [networking], or remove network.static.pool from HypervisorMachineTemplate "+
			s.template.Name)
}

// hasAddresses reports whether the claim has addresses and the condition AddressAllocated is True.
// Addresses without this condition are out of date.
func hasAddresses(status *v1alpha1.MachineClaimStatus) bool {
	return status.NetworkInfo != nil && len(status.NetworkInfo.Addresses) > 0 &&
		meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionAddressAllocated)
}

// waitedForAddress returns the time since the template was resolved, that is, since the claim can get an
// address.
func (s *scope) waitedForAddress() time.Duration {
	resolved := meta.FindStatusCondition(s.claim.Status.Conditions, v1alpha1.ConditionTemplateResolved)
	if resolved == nil || resolved.Status != metav1.ConditionTrue {
		return 0
	}

	return s.Clock.Since(resolved.LastTransitionTime.Time)
}
