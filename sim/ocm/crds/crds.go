// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package crds

import (
	"context"

	"k8s.io/client-go/rest"

	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
)

const (
	// Version is the version of OCM's module with the CRDs.
	Version = "v1.3.0"

	manifestWorksFile        = "work/v1/0000_00_work.open-cluster-management.io_manifestworks.crd.yaml"
	appliedManifestWorksFile = "work/v1/0000_01_work.open-cluster-management.io_appliedmanifestworks.crd.yaml"
)

// InstallHub installs the CRD ManifestWork on the API server of a hub.
func InstallHub(ctx context.Context, config *rest.Config) error {
	return ocmModule().Apply(ctx, config, manifestWorksFile)
}

// InstallSpoke installs the CRD AppliedManifestWork on the API server of a spoke.
func InstallSpoke(ctx context.Context, config *rest.Config) error {
	return ocmModule().Apply(ctx, config, appliedManifestWorksFile)
}

// ocmModule returns the Go module of OCM that contains the CRDs.
func ocmModule() kubeproc.Module {
	return kubeproc.Module{
		Path: "open-cluster-management.io/api", Version: Version, Sum: "h1:Q3miH38BE3N5+PesHQ0kcFi5nhX5350m7OJWapZcVqY=",
	}
}
