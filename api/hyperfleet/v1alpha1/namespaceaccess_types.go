// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "k8s.io/apimachinery/pkg/api/resource"

// NamespaceAccess allows namespaces to create machines on a HypervisorCluster. A field that is not set
// does not limit anything. A list that is set contains everything that the namespaces may use.
// +kubebuilder:validation:XValidation:rule="has(self.names) != has(self.selector)",message="choose the namespaces by exactly one of names and selector"
type NamespaceAccess struct {
	// names are the names of the namespaces.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Names []string `json:"names,omitempty"`
	// selector selects the namespaces by their labels. Everyone who can label a namespace can therefore
	// give it access.
	// +optional
	Selector *NamespaceSelector `json:"selector,omitempty"`
	// templates are the templates that machines may be created from. On Proxmox VE, these are names and IDs. On
	// libvirt, these are names of volumes and domains. On both, tags in alphabetical order are allowed, too, such
	// as tags:ci-runner,released. On KubeVirt, these are images, and namespace/name of DataSources and
	// PersistentVolumeClaims. For an external provider, these are the names of its templates.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	Templates []string `json:"templates,omitempty"`
	// storages are the storages, or on KubeVirt the storage classes, that templates may name. The
	// defaults of the cluster are always allowed.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	Storages []string `json:"storages,omitempty"`
	// networks are the bridges, the virtual networks of libvirt hosts, or on KubeVirt the
	// NetworkAttachmentDefinitions, that machines may be attached to. The default of the cluster is
	// always allowed. A template on libvirt that names no bridge needs the networks of all hosts. On
	// Proxmox VE and with an external provider, a template must name a bridge if the cluster has no
	// default.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=317
	Networks []string `json:"networks,omitempty"`
	// vlans are the VLANs that templates may name. A template without a VLAN is always allowed, except on
	// Proxmox VE if neither the template nor the cluster names a bridge, because Proxmox VE then keeps the
	// VLAN of its own template.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	VLANs []VLANRange `json:"vlans,omitempty"`
	// addresses are the CIDRs and ranges (such as 192.168.9.1-192.168.9.5) that must contain the static
	// addresses and pools of templates.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=90
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[0-9A-Fa-f:.]+(/[0-9]{1,3}| ?- ?[0-9A-Fa-f:.]+)$')",message="write a CIDR such as 192.168.9.0/24, or a first and a last address such as 192.168.9.1-192.168.9.5"
	Addresses []string `json:"addresses,omitempty"`
	// domains are the DNS domains, including their subdomains, in which machines may have names. The
	// cluster's dns.domain is allowed only if it is listed.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?([.][A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$')",message="write a DNS name without a trailing dot, such as ci.example.com"
	Domains []string `json:"domains,omitempty"`
	// devices are the devices that templates may name in resources.devices.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	Devices []string `json:"devices,omitempty"`
	// quota limits the resources of each namespace.
	// +optional
	Quota *NamespaceQuota `json:"quota,omitempty"`
}

// NamespaceSelector selects namespaces by their labels. An empty selector selects all namespaces.
type NamespaceSelector struct {
	// matchLabels are the labels and values that a namespace must have.
	// +optional
	// +kubebuilder:validation:MaxProperties=8
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
}

// VLANRange is a range of VLANs, both ends included.
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

// NamespaceQuota limits the resources of all machines of one namespace on the cluster together,
// including machines on standby.
type NamespaceQuota struct {
	// machines is the maximum number of machines.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Machines *int32 `json:"machines,omitempty"`
	// cpu is the maximum number of CPU cores.
	// +optional
	// +kubebuilder:validation:Minimum=0
	CPU *int32 `json:"cpu,omitempty"`
	// memory is the maximum amount of memory: a number and the unit Mi, Gi or Ti, e.g. 64Gi.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$`
	Memory *resource.Quantity `json:"memory,omitempty"`
}
