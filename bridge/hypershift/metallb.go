// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
)

// Annotations with which a Service requests addresses from MetalLB
// (https://metallb.io/usage/#requesting-specific-ips). MetalLB before 0.14.9 reads only the deprecated one. Later
// versions prefer the other one if a Service has both.
const (
	AnnotationAddress           = "metallb.io/loadBalancerIPs"
	AnnotationAddressDeprecated = "metallb.universe.tf/loadBalancerIPs"
)

// PoolName returns the name of a bridge's own IPAddressPool and L2Advertisement. It contains the
// bridge's namespace, because the objects of all bridges are in MetalLB's namespace.
func PoolName(namespace, name string) string { return namespace + "-" + name }

// VirtualIPs returns the addresses at which a bridge's API server is exposed: none, one, or one of each
// family.
func VirtualIPs(bridge *v1alpha1.DPFHCPBridge) []string {
	if bridge.Spec.MetalLBVirtualIP == "" {
		return nil
	}

	return strings.Split(bridge.Spec.MetalLBVirtualIP, ",")
}

// NewAddressPool returns an IPAddressPool that has only the bridge's addresses and serves only its
// control plane's namespace.
func NewAddressPool(bridge *v1alpha1.DPFHCPBridge, namespace string) *unstructured.Unstructured {
	object := setPoolMetadata(NewObject(IPAddressPoolKind()), bridge, namespace)

	var addresses list

	for _, vip := range VirtualIPs(bridge) {
		length := "/32"
		if strings.Contains(vip, ":") {
			length = "/128"
		}

		addresses = append(addresses, vip+length)
	}

	object.Object["spec"] = fields{
		"addresses":  addresses,
		"autoAssign": true,
		"serviceAllocation": fields{
			"namespaces": list{ControlPlaneNamespace(bridge.Namespace, bridge.Name)},
		},
	}

	return object
}

// NewAdvertisement returns the L2Advertisement of a bridge's own IPAddressPool.
func NewAdvertisement(bridge *v1alpha1.DPFHCPBridge, namespace string) *unstructured.Unstructured {
	object := setPoolMetadata(NewObject(L2AdvertisementKind()), bridge, namespace)
	object.Object["spec"] = fields{"ipAddressPools": list{PoolName(bridge.Namespace, bridge.Name)}}

	return object
}

func setPoolMetadata(
	object *unstructured.Unstructured, bridge *v1alpha1.DPFHCPBridge, namespace string,
) *unstructured.Unstructured {
	object.SetNamespace(namespace)
	object.SetName(PoolName(bridge.Namespace, bridge.Name))
	object.SetLabels(BridgeLabels(bridge))

	return object
}

// PoolAddresses returns the entries of an IPAddressPool.
func PoolAddresses(pool *unstructured.Unstructured) []string {
	entries, _, _ := unstructured.NestedStringSlice(pool.Object, "spec", "addresses")

	return entries
}

// CanServe returns whether an IPAddressPool may allocate addresses for Services of the namespace. A pool
// without a list of namespaces may. If the pool also selects namespaces by labels, CanServe returns true
// and leaves the decision to MetalLB.
func CanServe(pool *unstructured.Unstructured, namespace string) bool {
	names, _, _ := unstructured.NestedStringSlice(pool.Object, "spec", "serviceAllocation", "namespaces")
	selectors, _, _ := unstructured.NestedSlice(pool.Object, "spec", "serviceAllocation", "namespaceSelectors")

	return len(names) == 0 || len(selectors) > 0 || slices.Contains(names, namespace)
}

// IsAvoided returns whether an IPAddressPool has an address but never assigns it: avoidBuggyIPs excludes the IPv4
// addresses that end in 0 or 255 (MetalLB, internal/allocator, poolFor).
func IsAvoided(pool *unstructured.Unstructured, ip string) bool {
	avoids, _, _ := unstructured.NestedBool(pool.Object, "spec", "avoidBuggyIPs")

	return avoids && (strings.HasSuffix(ip, ".0") || strings.HasSuffix(ip, ".255"))
}

// SelectsService returns whether an IPAddressPool may allocate addresses for a Service with the labels. A pool without
// selectors of Services may. A selector that is not valid selects nothing, because MetalLB rejects its pool.
func SelectsService(pool *unstructured.Unstructured, serviceLabels map[string]string) bool {
	selectors, _, _ := unstructured.NestedSlice(pool.Object, "spec", "serviceAllocation", "serviceSelectors")

	for _, raw := range selectors {
		var parsed metav1.LabelSelector

		text, ok := raw.(fields)
		if !ok || runtime.DefaultUnstructuredConverter.FromUnstructured(text, &parsed) != nil {
			continue
		}

		selector, err := metav1.LabelSelectorAsSelector(&parsed)
		if err == nil && selector.Matches(labels.Set(serviceLabels)) {
			return true
		}
	}

	return len(selectors) == 0
}
