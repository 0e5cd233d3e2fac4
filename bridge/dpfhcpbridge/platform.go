// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"context"
	"sync/atomic"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// installedProjects holds which projects' kinds are installed and watched.
type installedProjects struct{ hyperShift, metalLB, dpf atomic.Bool }

// checkPlatform checks that the projects that the bridge needs are installed.
func checkPlatform(_ context.Context, s *scope) step.Result {
	switch {
	case !s.installed.dpf.Load():
		return step.Wait(resyncInterval, v1alpha1.ReasonDPFNotInstalled,
			"the CRDs of DPUCluster and DPUFlavor do not exist: install NVIDIA DPF")
	case !s.installed.hyperShift.Load():
		return step.Wait(resyncInterval, v1alpha1.ReasonHyperShiftNotInstalled,
			"the CRDs of HostedCluster and NodePool do not exist: install HyperShift")
	case s.bridge.Spec.ExposeThroughLoadBalancer && !s.installed.metalLB.Load():
		return step.Wait(resyncInterval, v1alpha1.ReasonMetalLBNotInstalled,
			"the CRDs of IPAddressPool and L2Advertisement do not exist: install MetalLB, "+
				"or create a bridge with exposeThroughLoadBalancer: false")
	default:
		return step.Done().WithReason(v1alpha1.ReasonInstalled, "all projects that the bridge needs are installed")
	}
}
