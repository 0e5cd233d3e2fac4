// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// reconcileAddressPool creates an IPAddressPool with the bridge's addresses and its L2Advertisement if
// no other pool has them. MetalLB does not allow two pools with the same address.
func reconcileAddressPool(ctx context.Context, s *scope) step.Result {
	if s.pool != "" {
		return step.Done()
	}

	for _, desired := range []*unstructured.Unstructured{
		hypershift.NewAddressPool(s.bridge, s.MetalLBNamespace), hypershift.NewAdvertisement(s.bridge, s.MetalLBNamespace),
	} {
		existing, err := s.getObject(ctx, s.Cache, desired.GroupVersionKind(), client.ObjectKeyFromObject(desired))
		if err == nil {
			_, err = s.applyObject(ctx, existing, desired, v1alpha1.ReasonServiceCreationFailed)
		}

		if err != nil {
			result := step.FromError(err, resyncInterval)

			return result.WithCondition(v1alpha1.ConditionServiceExposureReady, metav1.ConditionFalse, result.Reason(), result.Message())
		}
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
