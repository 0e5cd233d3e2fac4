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

// HyperShift is the module with HostedCluster and NodePool.
func HyperShift() gomod.Module {
	return gomod.Module{
		Path: "github.com/openshift/hypershift", Version: "v0.1.82",
		Sum: "h1:iIzHGjWKSCrAstypC+qZrlEROGFrvsuvo4SL/p9VP38=",
	}
}

// MetalLB is the module with IPAddressPool and L2Advertisement.
func MetalLB() gomod.Module {
	return gomod.Module{
		Path: "go.universe.tf/metallb", Version: "v0.16.2",
		Sum: "h1:RCSAGoZmqcvTg0e56+Okbwz8iTuQVX30JpKX5mYEPUM=",
	}
}

// InstallHyperShift gives an API server HostedCluster and NodePool.
func InstallHyperShift(ctx context.Context, config *rest.Config) error {
	const folder = "cmd/install/assets/crds/hypershift-operator/zz_generated.crd-manifests"

	return install(ctx, config, HyperShift(), folder, "hostedclusters-Hypershift-Default.crd.yaml", "nodepools-Default.crd.yaml")
}

// InstallMetalLB gives an API server IPAddressPool and L2Advertisement.
func InstallMetalLB(ctx context.Context, config *rest.Config) error {
	return install(ctx, config, MetalLB(), "config/crd/bases", "metallb.io_ipaddresspools.yaml", "metallb.io_l2advertisements.yaml")
}

// InstallDPUCluster gives an API server DPUCluster and DPUFlavor.
func InstallDPUCluster(ctx context.Context, config *rest.Config) error {
	if err := installDefinition(ctx, config, dpuCluster()); err != nil {
		return err
	}

	return installDefinition(ctx, config, dpuFlavor())
}

// InstallDPU gives an API server DPU.
func InstallDPU(ctx context.Context, config *rest.Config) error {
	return installDefinition(ctx, config, dpu())
}

// Install gives an API server all of them.
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
	dir, err := module.Dir(ctx)
	if err != nil {
		return err
	}

	paths := make([]string, 0, len(files))
	for _, file := range files {
		paths = append(paths, filepath.Join(dir, filepath.FromSlash(folder), file))
	}

	return kubeproc.Apply(ctx, config, paths...)
}
