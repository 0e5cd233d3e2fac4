// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/address"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
)

// Indexes of bridges, by what they stand on; that of addresses is of Services and pools as
// well.
const (
	indexDPUCluster   = "bridge.dpuCluster"   // namespace/name
	indexFlavor       = "bridge.flavor"       // namespace/name
	indexSecret       = "bridge.secret"       // namespace/name
	indexStorageClass = "bridge.storageClass" // name
	indexAddress      = "bridge.address"      // IP; of pools: CIDRs
	indexControlPlane = "bridge.controlPlane" // HyperShift's namespace of it
	indexIgnition     = "bridge.ignition"     // that namespace, of those that DPUs boot by
	indexWantsPool    = "bridge.wantsPool"    // "true" of those whose address no pool has
	// indexReady is of nodes: "true".
	indexReady = "bridge.ready"
)

// addIndexes teaches the cache the indexes of kinds that are always there.
func addIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	of := func(read func(*v1alpha1.DPFHCPBridge) []string) client.IndexerFunc {
		return func(obj client.Object) []string {
			bridge, is := obj.(*v1alpha1.DPFHCPBridge)
			if !is {
				return nil
			}

			return read(bridge)
		}
	}

	for name, read := range map[string]func(*v1alpha1.DPFHCPBridge) []string{
		indexDPUCluster: func(b *v1alpha1.DPFHCPBridge) []string { return []string{dpuClusterKey(b).String()} },
		indexFlavor: func(b *v1alpha1.DPFHCPBridge) []string {
			if b.Spec.DPUIgnition == nil {
				return nil
			}

			return []string{b.Spec.DPUClusterRef.Namespace + "/" + b.Spec.DPUIgnition.FlavorName}
		},
		indexSecret: func(b *v1alpha1.DPFHCPBridge) []string {
			return slices.Compact([]string{
				b.Namespace + "/" + b.Spec.SSHKeySecretRef.Name, b.Namespace + "/" + b.Spec.PullSecretRef.Name,
			})
		},
		indexStorageClass: func(b *v1alpha1.DPFHCPBridge) []string { return []string{b.Spec.EtcdStorageClass} },
		indexAddress:      hypershift.VirtualIPs,
		indexControlPlane: func(b *v1alpha1.DPFHCPBridge) []string {
			return []string{hypershift.ControlPlaneNamespace(b.Namespace, b.Name)}
		},
		indexIgnition: func(b *v1alpha1.DPFHCPBridge) []string {
			if b.Spec.DPUIgnition == nil {
				return nil
			}

			return []string{hypershift.ControlPlaneNamespace(b.Namespace, b.Name)}
		},
		indexWantsPool: wantsPool,
	} {
		if err := indexer.IndexField(ctx, &v1alpha1.DPFHCPBridge{}, name, of(read)); err != nil {
			return fmt.Errorf("index bridges by %s: %w", name, err)
		}
	}

	if err := indexer.IndexField(ctx, &corev1.Service{}, indexAddress, addressesOfService); err != nil {
		return fmt.Errorf("index Services by address: %w", err)
	}

	err := indexer.IndexField(ctx, &corev1.Node{}, indexReady, func(obj client.Object) []string {
		if node, is := obj.(*corev1.Node); is && usable(node) {
			return []string{"true"}
		}

		return nil
	})
	if err != nil {
		return fmt.Errorf("index nodes: %w", err)
	}

	return nil
}

// addPoolIndex teaches the cache the index of MetalLB's pools by the CIDRs they consist of.
func addPoolIndex(ctx context.Context, indexer client.FieldIndexer) error {
	err := indexer.IndexField(ctx, hypershift.New(hypershift.IPAddressPoolKind()), indexAddress, func(obj client.Object) []string {
		pool, is := obj.(*unstructured.Unstructured)
		if !is {
			return nil
		}

		return address.Cover(hypershift.Addresses(pool))
	})
	if err != nil {
		return fmt.Errorf("index IPAddressPools by address: %w", err)
	}

	return nil
}

func wantsPool(bridge *v1alpha1.DPFHCPBridge) []string {
	exposure := meta.FindStatusCondition(bridge.Status.Conditions, v1alpha1.ConditionServiceExposureReady)
	if exposure != nil && exposure.Reason == v1alpha1.ReasonVIPNotInPool {
		return []string{"true"}
	}

	return nil
}

// addressesOfService are those that a Service has, and those that it asks for.
func addressesOfService(obj client.Object) []string {
	service, is := obj.(*corev1.Service)
	if !is || service.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil
	}

	var out []string

	add := func(ip string) {
		if ip = strings.TrimSpace(ip); ip != "" && !slices.Contains(out, ip) {
			out = append(out, ip)
		}
	}

	for _, ingress := range service.Status.LoadBalancer.Ingress {
		add(ingress.IP)
	}

	add(service.Spec.LoadBalancerIP)

	for _, annotation := range []string{hypershift.AnnotationAddress, hypershift.AnnotationAddressOld} {
		for ip := range strings.SplitSeq(service.Annotations[annotation], ",") {
			add(ip)
		}
	}

	return out
}
