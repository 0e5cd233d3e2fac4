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
	// Version of the module whose schemas these are.
	Version = "v1.3.0"

	folder = "work/v1"

	works   = "0000_00_work.open-cluster-management.io_manifestworks.crd.yaml"
	applied = "0000_01_work.open-cluster-management.io_appliedmanifestworks.crd.yaml"
)

// InstallHub gives the API server of a hub the kind ManifestWork.
func InstallHub(ctx context.Context, config *rest.Config) error { return install(ctx, config, works) }

// InstallSpoke gives the API server of a spoke the kind AppliedManifestWork.
func InstallSpoke(ctx context.Context, config *rest.Config) error {
	return install(ctx, config, applied)
}

func install(ctx context.Context, config *rest.Config, file string) error {
	dir, err := module().Dir(ctx)
	if err != nil {
		return err
	}

	return kubeproc.Apply(ctx, config, filepath.Join(dir, folder, file))
}

// module is OCM's.
func module() gomod.Module {
	return gomod.Module{
		Path: "open-cluster-management.io/api", Version: Version, Sum: "h1:Q3miH38BE3N5+PesHQ0kcFi5nhX5350m7OJWapZcVqY=",
	}
}
