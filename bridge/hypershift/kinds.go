// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// HostedClusterKind is HyperShift's hosted control plane.
func HostedClusterKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "hypershift.openshift.io", Version: "v1beta1", Kind: "HostedCluster"}
}

// NodePoolKind is HyperShift's set of workers.
func NodePoolKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "hypershift.openshift.io", Version: "v1beta1", Kind: "NodePool"}
}

// IPAddressPoolKind is MetalLB's pool of addresses.
func IPAddressPoolKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "metallb.io", Version: "v1beta1", Kind: "IPAddressPool"}
}

// L2AdvertisementKind is how MetalLB announces addresses of pools on the local network.
func L2AdvertisementKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "metallb.io", Version: "v1beta1", Kind: "L2Advertisement"}
}

// DPUClusterKind is DPF's cluster of DPUs.
func DPUClusterKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "provisioning.dpu.nvidia.com", Version: "v1alpha1", Kind: "DPUCluster"}
}

// DPUFlavorKind is how DPUs of a kind are set up.
func DPUFlavorKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "provisioning.dpu.nvidia.com", Version: "v1alpha1", Kind: "DPUFlavor"}
}

// New is an empty object of a kind.
func New(kind schema.GroupVersionKind) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)

	return object
}

// text reads a string at a path; what is not there, or is something else, is empty.
func text(object *unstructured.Unstructured, path ...string) string {
	value, _, _ := unstructured.NestedString(object.Object, path...)

	return value
}

// number reads an integer at a path.
func number(object *unstructured.Unstructured, path ...string) (int64, bool) {
	value, found, err := unstructured.NestedInt64(object.Object, path...)

	return value, found && err == nil
}
