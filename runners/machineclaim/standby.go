// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// Reasons that end a machine on standby.
const (
	// ReasonVanished: the VM is gone though nobody here removed it.
	ReasonVanished = "VMVanished"
	// ReasonStartedByHand: somebody else has started the VM, without its cloud-init ISO.
	ReasonStartedByHand = "StartedByHand"
)

// standBy keeps a machine that is made and not started. It holds no credential: that is
// made, with the cloud-init ISO, when the claim's standby is made false. Of the limits of its
// life only the longest one counts; the others begin when it starts.
func (s *scope) standBy(ctx context.Context) step.Result {
	seen, err := s.provider.Get(ctx, s.ref())

	switch {
	case hypervisor.Is(err, hypervisor.NotFound):
		return s.end(ctx, ReasonVanished, "the VM was removed while it was on standby")
	case err != nil:
		return step.Wait(lookAgain, "HypervisorUnavailable", err.Error())
	case seen.State == hypervisor.StateRunning, seen.State == hypervisor.StateStopped:
		return s.end(ctx, ReasonStartedByHand, "the VM was started while it was on standby: it has no cloud-init ISO and is of no use")
	}

	s.claim.Status.VMRef.Node = seen.Node

	life := limit{maxLifetime: limits(s.claim).maxLifetime}

	verdict := deadline(life, s.moments(), s.Clock.Now())
	if verdict.reason != "" {
		return s.end(ctx, verdict.reason, verdict.message)
	}

	next := safety
	if verdict.next > 0 {
		next = min(next, verdict.next)
	}

	return step.Wait(next, "Standby", "the VM is made, and started as soon as spec.standby is made false")
}

// activated notes when a machine on standby was told to start, and tells whether that is
// news. That is the only change that the spec of a claim takes.
func (s *scope) activated() bool {
	if s.claim.Spec.Standby || s.claim.Generation <= 1 || s.times().Activated != nil {
		return false
	}

	s.times().Activated = s.micro()

	return true
}

// asked is when a running machine was asked for.
func (s *scope) asked() *metav1.MicroTime {
	if s.times().Activated != nil {
		return s.times().Activated
	}

	return s.times().Placed
}
