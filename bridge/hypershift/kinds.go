// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// HostedClusterKind returns the kind of HyperShift's hosted clusters.
func HostedClusterKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "hypershift.openshift.io", Version: "v1beta1", Kind: "HostedCluster"}
}

// NodePoolKind returns the kind of HyperShift's sets of workers.
func NodePoolKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "hypershift.openshift.io", Version: "v1beta1", Kind: "NodePool"}
}

// IPAddressPoolKind returns the kind of MetalLB's address pools.
func IPAddressPoolKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "metallb.io", Version: "v1beta1", Kind: "IPAddressPool"}
}

// L2AdvertisementKind returns the kind with which MetalLB announces the addresses of pools on the local
// network.
func L2AdvertisementKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "metallb.io", Version: "v1beta1", Kind: "L2Advertisement"}
}

// DPUClusterKind returns the kind of DPF's clusters of DPUs.
func DPUClusterKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "provisioning.dpu.nvidia.com", Version: "v1alpha1", Kind: "DPUCluster"}
}

// DPUFlavorKind returns the kind of DPF's DPU configurations.
func DPUFlavorKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "provisioning.dpu.nvidia.com", Version: "v1alpha1", Kind: "DPUFlavor"}
}

// NewObject returns an empty object of the kind.
func NewObject(kind schema.GroupVersionKind) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)

	return object
}

// stringField returns the string at a path, and the empty string if there is none.
func stringField(object *unstructured.Unstructured, path ...string) string {
	value, _, _ := unstructured.NestedString(object.Object, path...)

	return value
}

// intField returns the integer at a path, and false if there is none.
func intField(object *unstructured.Unstructured, path ...string) (int64, bool) {
	value, found, err := unstructured.NestedInt64(object.Object, path...)

	return value, found && err == nil
}
