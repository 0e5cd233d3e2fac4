// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package crds

import (
	"context"
	"path/filepath"

	"k8s.io/client-go/rest"

	"github.com/hyperfleet/hyperfleet/kit/gomod"
	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
)

// HyperShiftModule returns the Go module that contains the CRDs HostedCluster and NodePool.
func HyperShiftModule() gomod.Module {
	return gomod.Module{
		Path: "github.com/openshift/hypershift", Version: "v0.1.82",
		Sum: "h1:iIzHGjWKSCrAstypC+qZrlEROGFrvsuvo4SL/p9VP38=",
	}
}

// MetalLBModule returns the Go module that contains the CRDs IPAddressPool and L2Advertisement.
func MetalLBModule() gomod.Module {
	return gomod.Module{
		Path: "go.universe.tf/metallb", Version: "v0.16.2",
		Sum: "h1:RCSAGoZmqcvTg0e56+Okbwz8iTuQVX30JpKX5mYEPUM=",
	}
}

// InstallHyperShift installs the CRDs HostedCluster and NodePool on an API server.
func InstallHyperShift(ctx context.Context, config *rest.Config) error {
	const folder = "cmd/install/assets/crds/hypershift-operator/zz_generated.crd-manifests"

	return install(ctx, config, HyperShiftModule(), folder,
		"hostedclusters-Hypershift-Default.crd.yaml", "nodepools-Default.crd.yaml")
}

// InstallMetalLB installs the CRDs IPAddressPool and L2Advertisement on an API server.
func InstallMetalLB(ctx context.Context, config *rest.Config) error {
	return install(ctx, config, MetalLBModule(), "config/crd/bases",
		"metallb.io_ipaddresspools.yaml", "metallb.io_l2advertisements.yaml")
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

func install(ctx context.Context, config *rest.Config, module gomod.Module, folder string, files ...string) error {
	dir, err := module.Download(ctx)
	if err != nil {
		return err
	}

	paths := make([]string, 0, len(files))
	for _, file := range files {
		paths = append(paths, filepath.Join(dir, filepath.FromSlash(folder), file))
	}

	return kubeproc.Apply(ctx, config, paths...)
}
