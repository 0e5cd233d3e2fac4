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

// ReasonNetworkingOff says that nobody gives the claim's machine an address.
const ReasonNetworkingOff = "NetworkingOff"

// networkingPatience is how long the networking area may take until it is said to be off:
// longer than a new leader takes.
const networkingPatience = time.Minute

// address waits for the machine's addresses where its template has a pool. The networking
// area writes them into the claim's status, and into the condition AddressAllocated why
// there are none: it alone does, so the step has no condition of its own. A change of the
// status brings the claim back.
func address(_ context.Context, s *scope) step.Result {
	status := &s.claim.Status

	switch {
	case s.template.Spec.Network.AddressPool() == nil, s.times().Started != nil:
		return step.Done()
	case hasAddresses(status):
		return step.Done()
	}

	said := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionAddressAllocated)
	if said != nil && said.Status != metav1.ConditionTrue {
		return step.Wait(safety, said.Reason, said.Message)
	}

	waited := s.waitedForAddress()
	if waited < networkingPatience {
		return step.Wait(networkingPatience-waited, "AddressPending", "an address of the template's pool is asked for")
	}

	return step.Wait(safety, ReasonNetworkingOff, "nobody gives the machine an address of its template's pool: "+
		"run the operator with controllers: [networking], or give HypervisorMachineTemplate "+s.template.Name+" no network.static.pool")
}

// hasAddresses says whether the addresses are the networking area's word, and not what is
// left of it.
func hasAddresses(status *v1alpha1.MachineClaimStatus) bool {
	return status.NetworkInfo != nil && len(status.NetworkInfo.Addresses) > 0 &&
		meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionAddressAllocated)
}

// waitedForAddress is the time since the claim could have an address.
func (s *scope) waitedForAddress() time.Duration {
	resolved := meta.FindStatusCondition(s.claim.Status.Conditions, v1alpha1.ConditionTemplateResolved)
	if resolved == nil || resolved.Status != metav1.ConditionTrue {
		return 0
	}

	return s.Clock.Since(resolved.LastTransitionTime.Time)
}
