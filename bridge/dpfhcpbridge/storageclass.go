// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"context"
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// noProvisioner is the provisioner of a StorageClass without dynamic provisioning
// (https://kubernetes.io/docs/concepts/storage/storage-classes/#local).
const noProvisioner = "kubernetes.io/no-provisioner"

// validateStorageClass checks that etcd's StorageClass exists and provisions volumes dynamically. A
// StorageClass does not declare that its volumes support ReadWriteOnce. Every provisioner of file
// systems and block devices supports it.
func validateStorageClass(ctx context.Context, s *scope) step.Result {
	name := s.bridge.Spec.EtcdStorageClass

	var class storagev1.StorageClass

	err := s.Client.Get(ctx, client.ObjectKey{Name: name}, &class)

	switch {
	case apierrors.IsNotFound(err):
		return step.Wait(resyncInterval, v1alpha1.ReasonNotFound, fmt.Sprintf("StorageClass %s does not exist: create it", name))
	case err != nil:
		return step.Fail(fmt.Errorf("get StorageClass %s: %w", name, err))
	case class.Provisioner == noProvisioner:
		return step.Stall(v1alpha1.ReasonNotDynamic,
			fmt.Sprintf("StorageClass %s does not provision volumes: create a bridge with a StorageClass that does", name))
	default:
		return step.Done().WithReason(v1alpha1.ReasonValid,
			fmt.Sprintf("StorageClass %s provisions volumes with %s", name, class.Provisioner))
	}
}
