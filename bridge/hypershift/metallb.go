// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
)

// AnnotationAddress asks MetalLB for an address of a Service
// (https://metallb.io/usage/#requesting-specific-ips).
const AnnotationAddress = "metallb.io/loadBalancerIPs"

// AnnotationAddressOld is the same of MetalLB before 0.14.
const AnnotationAddressOld = "metallb.universe.tf/loadBalancerIPs"

// PoolName is the name of a bridge's own IPAddressPool and L2Advertisement. They are in
// MetalLB's namespace, with those of other bridges, hence both parts.
func PoolName(namespace, name string) string { return namespace + "-" + name }

// VirtualIPs are the addresses that a bridge's API server is exposed at: none, one, or one of
// each family.
func VirtualIPs(bridge *v1alpha1.DPFHCPBridge) []string {
	if bridge.Spec.MetalLBVirtualIP == "" {
		return nil
	}

	return strings.Split(bridge.Spec.MetalLBVirtualIP, ",")
}

// Pool is a pool of a bridge's addresses alone, for its control plane alone.
func Pool(bridge *v1alpha1.DPFHCPBridge, namespace string) *unstructured.Unstructured {
	object := metalLB(New(IPAddressPoolKind()), bridge, namespace)

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

// Advertisement announces a bridge's own pool.
func Advertisement(bridge *v1alpha1.DPFHCPBridge, namespace string) *unstructured.Unstructured {
	object := metalLB(New(L2AdvertisementKind()), bridge, namespace)
	object.Object["spec"] = fields{"ipAddressPools": list{PoolName(bridge.Namespace, bridge.Name)}}

	return object
}

func metalLB(object *unstructured.Unstructured, bridge *v1alpha1.DPFHCPBridge, namespace string) *unstructured.Unstructured {
	object.SetNamespace(namespace)
	object.SetName(PoolName(bridge.Namespace, bridge.Name))
	object.SetLabels(Labels(bridge))

	return object
}

// Addresses are the entries of an IPAddressPool.
func Addresses(pool *unstructured.Unstructured) []string {
	entries, _, _ := unstructured.NestedStringSlice(pool.Object, "spec", "addresses")

	return entries
}

// Serves says whether an IPAddressPool may give addresses to Services of a namespace. A pool
// that selects namespaces or Services by labels is taken at its word: MetalLB decides.
func Serves(pool *unstructured.Unstructured, namespace string) bool {
	names, _, _ := unstructured.NestedStringSlice(pool.Object, "spec", "serviceAllocation", "namespaces")
	selectors, _, _ := unstructured.NestedSlice(pool.Object, "spec", "serviceAllocation", "namespaceSelectors")

	return len(names) == 0 || len(selectors) > 0 || slices.Contains(names, namespace)
}
