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

// Indexes of bridges by the objects that they depend on. indexAddress is also an index of Services and
// IPAddressPools.
const (
	indexDPUCluster   = "bridge.dpuCluster"   // namespace/name
	indexFlavor       = "bridge.flavor"       // namespace/name
	indexSecret       = "bridge.secret"       // namespace/name
	indexStorageClass = "bridge.storageClass" // name
	indexAddress      = "bridge.address"      // IP address; for pools: CIDRs
	indexControlPlane = "bridge.controlPlane" // the namespace of the control plane
	indexIgnition     = "bridge.ignition"     // the same namespace, only for bridges with dpuIgnition
	indexMissingPool  = "bridge.wantsPool"    // "true" for bridges whose address no pool has
	// indexReady is an index of nodes: "true" for nodes that are usable.
	indexReady = "bridge.ready"
)

// addIndexes adds the indexes of kinds that are always installed to the cache.
func addIndexes(ctx context.Context, fieldIndexer client.FieldIndexer) error {
	indexer := func(read func(*v1alpha1.DPFHCPBridge) []string) client.IndexerFunc {
		return func(obj client.Object) []string {
			bridge, ok := obj.(*v1alpha1.DPFHCPBridge)
			if !ok {
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
		indexMissingPool: missingPoolValues,
	} {
		if err := fieldIndexer.IndexField(ctx, &v1alpha1.DPFHCPBridge{}, name, indexer(read)); err != nil {
			return fmt.Errorf("index bridges by %s: %w", name, err)
		}
	}

	if err := fieldIndexer.IndexField(ctx, &corev1.Service{}, indexAddress, serviceAddresses); err != nil {
		return fmt.Errorf("index Services by address: %w", err)
	}

	err := fieldIndexer.IndexField(ctx, &corev1.Node{}, indexReady, func(obj client.Object) []string {
		if node, ok := obj.(*corev1.Node); ok && isUsable(node) {
			return []string{"true"}
		}

		return nil
	})
	if err != nil {
		return fmt.Errorf("index nodes: %w", err)
	}

	return nil
}

// addPoolIndex adds an index to the cache, which finds IPAddressPools by the CIDRs of their addresses.
func addPoolIndex(ctx context.Context, indexer client.FieldIndexer) error {
	pools := hypershift.NewObject(hypershift.IPAddressPoolKind())

	err := indexer.IndexField(ctx, pools, indexAddress, func(obj client.Object) []string {
		pool, ok := obj.(*unstructured.Unstructured)
		if !ok {
			return nil
		}

		return address.SplitIntoCIDRs(hypershift.PoolAddresses(pool))
	})
	if err != nil {
		return fmt.Errorf("index IPAddressPools by address: %w", err)
	}

	return nil
}

// missingPoolValues returns the values of indexMissingPool.
func missingPoolValues(bridge *v1alpha1.DPFHCPBridge) []string {
	exposure := meta.FindStatusCondition(bridge.Status.Conditions, v1alpha1.ConditionServiceExposureReady)
	if exposure != nil && exposure.Reason == v1alpha1.ReasonVIPNotInPool {
		return []string{"true"}
	}

	return nil
}

// serviceAddresses returns the addresses that a Service of type LoadBalancer has or requests.
func serviceAddresses(obj client.Object) []string {
	service, ok := obj.(*corev1.Service)
	if !ok || service.Spec.Type != corev1.ServiceTypeLoadBalancer {
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

	for _, annotation := range []string{hypershift.AnnotationAddress, hypershift.AnnotationAddressDeprecated} {
		for ip := range strings.SplitSeq(service.Annotations[annotation], ",") {
			add(ip)
		}
	}

	return out
}
