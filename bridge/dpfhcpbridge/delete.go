// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// reasonDeleting is the reason while the deletion waits for an object to disappear.
const reasonDeleting = "Deleting"

// deleteHostedCluster deletes the HostedCluster and waits until HyperShift has deleted the control
// plane.
func deleteHostedCluster(ctx context.Context, s *scope) step.Result {
	return s.deleteAndWait(ctx, hypershift.HostedClusterKind(), client.ObjectKeyFromObject(s.bridge))
}

// deleteNodePool deletes the NodePool and waits until it is gone. HyperShift has usually deleted it by
// then.
func deleteNodePool(ctx context.Context, s *scope) step.Result {
	return s.deleteAndWait(ctx, hypershift.NodePoolKind(), client.ObjectKeyFromObject(s.bridge))
}

// deletePublishedKubeconfig deletes the Secret with the kubeconfig from the DPUCluster's namespace. The
// DPUCluster still names the Secret, because its spec.kubeconfig cannot be changed.
func deletePublishedKubeconfig(ctx context.Context, s *scope) step.Result {
	key := dpuClusterKey(s.bridge)

	if err := s.deleteSecret(ctx, client.ObjectKey{Namespace: key.Namespace, Name: kubeconfigSecretName(key.Name)}); err != nil {
		return step.Fail(err)
	}

	return step.Done()
}

// deleteAddressPool deletes the bridge's own IPAddressPool and its L2Advertisement. It runs after the
// control plane is deleted, when nothing uses the addresses.
func deleteAddressPool(ctx context.Context, s *scope) step.Result {
	key := client.ObjectKey{Namespace: s.MetalLBNamespace, Name: hypershift.PoolName(s.bridge.Namespace, s.bridge.Name)}

	for _, kind := range []schema.GroupVersionKind{hypershift.L2AdvertisementKind(), hypershift.IPAddressPoolKind()} {
		if result := s.deleteAndWait(ctx, kind, key); !result.IsDone() {
			return result
		}
	}

	return step.Done()
}

// deleteAndWait deletes an object and waits until it is gone.
func (s *scope) deleteAndWait(ctx context.Context, kind schema.GroupVersionKind, key client.ObjectKey) step.Result {
	gone, err := s.deleteObject(ctx, kind, key)
	if err != nil {
		return step.Fail(err)
	}

	if !gone {
		return step.Wait(pollInterval, reasonDeleting, fmt.Sprintf("%s %s is being deleted", kind.Kind, key))
	}

	return step.Done()
}
