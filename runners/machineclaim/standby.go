// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// End reasons of a machine on standby.
const (
	// ReasonVMNotFound means that the VM no longer exists, although the operator has not deleted it.
	ReasonVMNotFound = "VMNotFound"
	// ReasonStartedByHand means that a person or another program has started the VM, without its cloud-init ISO.
	ReasonStartedByHand = "StartedByHand"
)

// checkStandby checks a machine that is created and not started. The machine has no credential: its
// credential and cloud-init ISO are created when spec.standby is set to false. Only the limit maxLifetime
// applies; the other limits start when the machine starts.
func (s *scope) checkStandby(ctx context.Context) step.Result {
	machine, err := s.provider.Get(ctx, s.machineRef())

	switch {
	case hypervisor.Is(err, hypervisor.NotFound):
		return s.endMachine(ctx, ReasonVMNotFound, "the VM was deleted while it was on standby")
	case err != nil:
		return waitForHypervisor(err)
	case machine.State == hypervisor.StateRunning, machine.State == hypervisor.StateStopped:
		return s.endMachine(ctx, ReasonStartedByHand,
			"the VM was started while it was on standby; it cannot be used, because it has no cloud-init ISO")
	}

	s.claim.Status.VMRef.Node = machine.Node

	standbyLimits := lifetimeLimits{maxLifetime: limitsOf(s.claim).maxLifetime}

	expiry := checkLimits(standbyLimits, s.milestones(), s.Clock.Now())
	if expiry.reason != "" {
		return s.endMachine(ctx, expiry.reason, expiry.message)
	}

	next := resyncInterval
	if expiry.remaining > 0 {
		next = min(next, expiry.remaining)
	}

	return step.Wait(next, "Standby", "the VM is created; it starts when spec.standby is set to false")
}

// recordActivation records the time at which a machine on standby was requested to start, and returns
// whether it has recorded it now. A generation above 1 shows the request, because spec.standby is the only
// mutable field of the claim's spec.
func (s *scope) recordActivation() bool {
	if s.claim.Spec.Standby || s.claim.Generation <= 1 || s.times().Activated != nil {
		return false
	}

	s.times().Activated = s.now()

	return true
}

// requestedAt returns when the running machine was requested: when it was activated, or else when it was
// placed.
func (s *scope) requestedAt() *metav1.MicroTime {
	if s.times().Activated != nil {
		return s.times().Activated
	}

	return s.times().Placed
}
