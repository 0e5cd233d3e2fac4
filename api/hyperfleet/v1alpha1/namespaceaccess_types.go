// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "k8s.io/apimachinery/pkg/api/resource"

// NamespaceAccess lets namespaces have machines made on a HypervisorCluster. What is left out
// of it is not limited; a list that is there has all that may be named.
// +kubebuilder:validation:XValidation:rule="has(self.names) != has(self.selector)",message="choose the namespaces by exactly one of names and selector"
type NamespaceAccess struct {
	// names of namespaces.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Names []string `json:"names,omitempty"`
	// selector picks namespaces by their labels. Who may label namespaces decides.
	// +optional
	Selector *NamespaceSelector `json:"selector,omitempty"`
	// templates that machines may be made from: names and ids on Proxmox VE; on KubeVirt
	// images, and namespace/name of DataSources and PersistentVolumeClaims.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	Templates []string `json:"templates,omitempty"`
	// storages, or storage classes on KubeVirt, that templates may name. The cluster's
	// defaults may always be used.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	Storages []string `json:"storages,omitempty"`
	// networks that templates may name: bridges, or NetworkAttachmentDefinitions on KubeVirt.
	// The cluster's default may always be used.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=317
	Networks []string `json:"networks,omitempty"`
	// vlans that templates may name. Machines without a VLAN are not limited by it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	VLANs []VLANRange `json:"vlans,omitempty"`
	// addresses that static addresses and pools have to lie in: CIDRs, and ranges such as
	// 192.168.9.1-192.168.9.5.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=90
	// +kubebuilder:validation:items:Pattern=`^[0-9A-Fa-f:.]+(/[0-9]{1,3}| ?- ?[0-9A-Fa-f:.]+)$`
	Addresses []string `json:"addresses,omitempty"`
	// domains that machines may have their names in, those below them included. The cluster's own
	// dns.domain is allowed only where it is listed.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?([.][A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$`
	Domains []string `json:"domains,omitempty"`
	// quota of each of the namespaces.
	// +optional
	Quota *NamespaceQuota `json:"quota,omitempty"`
}

// NamespaceSelector picks namespaces by their labels; an empty one picks all.
type NamespaceSelector struct {
	// matchLabels are labels that a namespace has to have, each with its value.
	// +optional
	// +kubebuilder:validation:MaxProperties=8
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
}

// VLANRange is an inclusive range of VLANs.
// +kubebuilder:validation:XValidation:rule="self.min <= self.max",message="vlans: min must not be above max"
type VLANRange struct {
	// min is the lowest VLAN.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4094
	Min int32 `json:"min"`
	// max is the highest VLAN.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4094
	Max int32 `json:"max"`
}

// NamespaceQuota bounds what the machines of one namespace take on the cluster together,
// those on standby included.
type NamespaceQuota struct {
	// machines at a time.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Machines *int32 `json:"machines,omitempty"`
	// cpu in cores.
	// +optional
	// +kubebuilder:validation:Minimum=0
	CPU *int32 `json:"cpu,omitempty"`
	// memory, e.g. 64Gi.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$`
	Memory *resource.Quantity `json:"memory,omitempty"`
}
