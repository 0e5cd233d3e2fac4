// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"context"
	"sync/atomic"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// installed says which projects' kinds the API server has, and the controller watches.
type installed struct{ hyperShift, metalLB, dpf atomic.Bool }

// platformThere looks whether the projects that a bridge works with are installed.
func platformThere(_ context.Context, s *scope) step.Result {
	switch {
	case !s.installed.dpf.Load():
		return step.Wait(lookAgain, v1alpha1.ReasonDPFNotInstalled,
			"the kinds DPUCluster and DPUFlavor are not there: install NVIDIA DPF")
	case !s.installed.hyperShift.Load():
		return step.Wait(lookAgain, v1alpha1.ReasonHyperShiftNotInstalled,
			"the kinds HostedCluster and NodePool are not there: install HyperShift")
	case s.bridge.Spec.ExposeThroughLoadBalancer && !s.installed.metalLB.Load():
		return step.Wait(lookAgain, v1alpha1.ReasonMetalLBNotInstalled,
			"the kinds IPAddressPool and L2Advertisement are not there: install MetalLB, "+
				"or make a bridge with exposeThroughLoadBalancer false")
	default:
		return step.Done().WithReason(v1alpha1.ReasonInstalled, "all that the bridge works with is installed")
	}
}
