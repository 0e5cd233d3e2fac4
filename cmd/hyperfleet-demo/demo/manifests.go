// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"
	"io/fs"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/deploy"
)

// serviceAccount is the operator's ServiceAccount in deploy/base.
const serviceAccount = "hyperfleet-runners"

// manifests returns the CRDs, RBAC roles and ServiceAccount that the operator needs in a cluster.
func manifests() []fs.FS { return []fs.FS{deploy.CRDs, deploy.RBAC, deploy.Account} }

// createObjects creates the objects in order.
func (s *stack) createObjects(ctx context.Context, objects ...client.Object) error {
	for _, obj := range objects {
		if err := s.client.Create(ctx, obj); err != nil {
			return fmt.Errorf("create %T %s: %w", obj, obj.GetName(), err)
		}
	}

	return nil
}
