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

const (
	// Version is the version of OCM's module with the CRDs.
	Version = "v1.3.0"

	folder = "work/v1"

	manifestWorksFile        = "0000_00_work.open-cluster-management.io_manifestworks.crd.yaml"
	appliedManifestWorksFile = "0000_01_work.open-cluster-management.io_appliedmanifestworks.crd.yaml"
)

// InstallHub installs the CRD ManifestWork on the API server of a hub.
func InstallHub(ctx context.Context, config *rest.Config) error {
	return install(ctx, config, manifestWorksFile)
}

// InstallSpoke installs the CRD AppliedManifestWork on the API server of a spoke.
func InstallSpoke(ctx context.Context, config *rest.Config) error {
	return install(ctx, config, appliedManifestWorksFile)
}

func install(ctx context.Context, config *rest.Config, file string) error {
	dir, err := ocmModule().Download(ctx)
	if err != nil {
		return err
	}

	return kubeproc.Apply(ctx, config, filepath.Join(dir, folder, file))
}

// ocmModule returns the Go module of OCM that contains the CRDs.
func ocmModule() gomod.Module {
	return gomod.Module{
		Path: "open-cluster-management.io/api", Version: Version, Sum: "h1:Q3miH38BE3N5+PesHQ0kcFi5nhX5350m7OJWapZcVqY=",
	}
}
