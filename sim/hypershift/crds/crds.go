// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package crds

import (
	"context"

	"k8s.io/client-go/rest"

	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
)

// HyperShiftModule returns the Go module that contains the CRDs HostedCluster and NodePool.
func HyperShiftModule() kubeproc.Module {
	return kubeproc.Module{
		Path: "github.com/openshift/hypershift", Version: "v0.1.82",
		Sum: "h1:iIzHGjWKSCrAstypC+qZrlEROGFrvsuvo4SL/p9VP38=",
	}
}

// MetalLBModule returns the Go module that contains the CRDs IPAddressPool and L2Advertisement.
func MetalLBModule() kubeproc.Module {
	return kubeproc.Module{
		Path: "go.universe.tf/metallb", Version: "v0.16.2",
		Sum: "h1:RCSAGoZmqcvTg0e56+Okbwz8iTuQVX30JpKX5mYEPUM=",
	}
}

// InstallHyperShift installs the CRDs HostedCluster and NodePool on an API server.
func InstallHyperShift(ctx context.Context, config *rest.Config) error {
	const folder = "cmd/install/assets/crds/hypershift-operator/zz_generated.crd-manifests/"

	return HyperShiftModule().Apply(ctx, config,
		folder+"hostedclusters-Hypershift-Default.crd.yaml", folder+"nodepools-Default.crd.yaml")
}

// InstallMetalLB installs the CRDs IPAddressPool and L2Advertisement on an API server.
func InstallMetalLB(ctx context.Context, config *rest.Config) error {
	return MetalLBModule().Apply(ctx, config,
		"config/crd/bases/metallb.io_ipaddresspools.yaml", "config/crd/bases/metallb.io_l2advertisements.yaml")
}

// InstallDPUCluster installs the CRDs DPUCluster and DPUFlavor on an API server.
func InstallDPUCluster(ctx context.Context, config *rest.Config) error {
	if err := installDefinition(ctx, config, newDPUClusterCRD()); err != nil {
		return err
	}

	return installDefinition(ctx, config, newDPUFlavorCRD())
}

// InstallDPU installs the CRD DPU on an API server.
func InstallDPU(ctx context.Context, config *rest.Config) error {
	return installDefinition(ctx, config, newDPUCRD())
}

// Install installs all CRDs of this package on an API server.
func Install(ctx context.Context, config *rest.Config) error {
	for _, install := range []func(context.Context, *rest.Config) error{
		InstallHyperShift, InstallMetalLB, InstallDPUCluster, InstallDPU,
	} {
		if err := install(ctx, config); err != nil {
			return err
		}
	}

	return nil
}
