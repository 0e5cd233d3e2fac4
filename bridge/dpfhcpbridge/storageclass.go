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

// noProvisioner is the provisioner of a StorageClass whose volumes a person makes
// (https://kubernetes.io/docs/concepts/storage/storage-classes/#local).
const noProvisioner = "kubernetes.io/no-provisioner"

// storageClassValid looks whether etcd's StorageClass is there and makes volumes by itself.
// That they can be mounted by one node for reading and writing is not in a StorageClass:
// every provisioner of file systems and block devices can.
func storageClassValid(ctx context.Context, s *scope) step.Result {
	name := s.bridge.Spec.EtcdStorageClass

	var class storagev1.StorageClass

	err := s.Client.Get(ctx, client.ObjectKey{Name: name}, &class)

	switch {
	case apierrors.IsNotFound(err):
		return step.Wait(lookAgain, v1alpha1.ReasonNotFound, fmt.Sprintf("StorageClass %s is not there: make it", name))
	case err != nil:
		return step.Fail(fmt.Errorf("get StorageClass %s: %w", name, err))
	case class.Provisioner == noProvisioner:
		return step.Stall(v1alpha1.ReasonNotDynamic,
			fmt.Sprintf("StorageClass %s makes no volumes by itself: make a bridge with one that does", name))
	default:
		return step.Done().WithReason(v1alpha1.ReasonValid, fmt.Sprintf("StorageClass %s makes volumes by %s", name, class.Provisioner))
	}
}
