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

// reasonDeleting stops the deletion list while something is going.
const reasonDeleting = "Deleting"

// hostedClusterGone deletes the HostedCluster and waits until HyperShift has taken the
// control plane down.
func hostedClusterGone(ctx context.Context, s *scope) step.Result {
	return s.waitGone(ctx, hypershift.HostedClusterKind(), client.ObjectKeyFromObject(s.bridge))
}

// nodePoolGone does the same with the NodePool, which HyperShift has mostly deleted by then.
func nodePoolGone(ctx context.Context, s *scope) step.Result {
	return s.waitGone(ctx, hypershift.NodePoolKind(), client.ObjectKeyFromObject(s.bridge))
}

// handedOverGone removes the kubeconfig from the DPUCluster's namespace. The DPUCluster goes
// on naming it: it allows no change.
func handedOverGone(ctx context.Context, s *scope) step.Result {
	key := dpuClusterKey(s.bridge)

	if err := s.removeSecret(ctx, client.ObjectKey{Namespace: key.Namespace, Name: handedOverName(key.Name)}); err != nil {
		return step.Fail(err)
	}

	return step.Done()
}

// poolGone removes the bridge's own pool, once nothing has its address, and what announces it.
func poolGone(ctx context.Context, s *scope) step.Result {
	key := client.ObjectKey{Namespace: s.MetalLBNamespace, Name: hypershift.PoolName(s.bridge.Namespace, s.bridge.Name)}

	for _, kind := range []schema.GroupVersionKind{hypershift.L2AdvertisementKind(), hypershift.IPAddressPoolKind()} {
		if result := s.waitGone(ctx, kind, key); !result.IsDone() {
			return result
		}
	}

	return step.Done()
}

// waitGone deletes an object, and waits until there is none.
func (s *scope) waitGone(ctx context.Context, kind schema.GroupVersionKind, key client.ObjectKey) step.Result {
	gone, err := s.gone(ctx, kind, key)
	if err != nil {
		return step.Fail(err)
	}

	if !gone {
		return step.Wait(lookSoon, reasonDeleting, fmt.Sprintf("%s %s is going", kind.Kind, key))
	}

	return step.Done()
}
