// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FinalizerKubevirtNodePool keeps a KubevirtNodePool until its machines are gone.
const FinalizerKubevirtNodePool = "infrastructure.hyperfleet.io/machines"

// Conditions of a KubevirtNodePool, beside Ready.
const (
	// ConditionValidNetworkConfig tells whether the pool's addresses can be given.
	ConditionValidNetworkConfig = "ValidNetworkConfig"
	// ConditionTemplateReady tells whether the pool's template is there.
	ConditionTemplateReady = "TemplateReady"
	// ConditionMachinesScaled tells whether there are as many machines as replicas.
	ConditionMachinesScaled = "MachinesScaled"
	// ConditionMachinesReady tells whether all of them are ready.
	ConditionMachinesReady = "MachinesReady"
	// ConditionIPPoolExhausted is True while machines wait for an address.
	ConditionIPPoolExhausted = "KubevirtIPPoolExhausted"
	// ConditionAddressesFewerThanReplicas warns, with True, of a pool that has fewer
	// addresses than maxReplicas, or replicas, would take.
	ConditionAddressesFewerThanReplicas = "AddressesFewerThanReplicas"
	// ConditionPrefixLengthGuessed warns, with True, that nobody has said the prefix length of
	// the pool's network.
	ConditionPrefixLengthGuessed = "PrefixLengthGuessed"
	// ConditionMachinesDeleted tells, on deletion, whether the machines are gone.
	ConditionMachinesDeleted = "MachinesDeleted"
)

// KubevirtNodePoolSpec says how many machines there are and what they are.
// +kubebuilder:validation:XValidation:rule="has(self.attachDefaultNetwork) && !self.attachDefaultNetwork || !has(self.bootstrapNetworkConfig)",message="bootstrapNetworkConfig needs attachDefaultNetwork: false: static addresses are for the network in the default network's place"
// +kubebuilder:validation:XValidation:rule="!has(self.attachDefaultNetwork) || self.attachDefaultNetwork || (has(self.additionalNetworks) && size(self.additionalNetworks) > 0)",message="attachDefaultNetwork: false needs at least one of additionalNetworks"
// +kubebuilder:validation:XValidation:rule="!has(self.maxReplicas) || self.replicas <= self.maxReplicas",message="replicas must not be more than maxReplicas"
// +kubebuilder:validation:XValidation:rule="has(self.clusterName) == has(oldSelf.clusterName) && (!has(self.clusterName) || self.clusterName == oldSelf.clusterName)",message="clusterName cannot be changed: make another pool"
type KubevirtNodePoolSpec struct {
	// clusterName of the cluster that the machines join, for labels and metrics. Default:
	// the pool's name.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="clusterName must be the name of a cluster: lower-case letters, digits and '-'"
	ClusterName string `json:"clusterName,omitempty"`

	// replicas is how many machines there are.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	Replicas int32 `json:"replicas"`

	// maxReplicas that somebody, such as an autoscaler, may set. It does not scale: it is
	// what the number of addresses is compared with, for a warning.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	MaxReplicas *int32 `json:"maxReplicas,omitempty"`

	// attachDefaultNetwork attaches machines to the pod network.
	// +optional
	// +kubebuilder:default=true
	AttachDefaultNetwork *bool `json:"attachDefaultNetwork,omitempty"`

	// additionalNetworks that machines are attached to.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	AdditionalNetworks []KubevirtNetwork `json:"additionalNetworks,omitempty"`

	// bootstrapNetworkConfig gives machines static addresses on one of
	// additionalNetworks. When it is taken away, new machines ask DHCP, and those that are
	// there keep their addresses.
	// +optional
	BootstrapNetworkConfig *KubevirtBootstrapNetworkConfig `json:"bootstrapNetworkConfig,omitempty"`

	// dns puts the names of the pool's machines into DNS: NAME.DOMAIN for each machine that
	// is ready, with its static addresses. What is changed here counts for machines that are
	// there as well.
	// +optional
	DNS *KubevirtNodePoolDNS `json:"dns,omitempty"`

	// drain has a machine's Node cordoned and drained before the machine goes. Without it, a
	// machine takes along what runs on it.
	// +optional
	Drain *NodeDrain `json:"drain,omitempty"`

	// rootVolume that machines boot from.
	RootVolume KubevirtRootVolume `json:"rootVolume"`

	// compute is what machines are given.
	// +optional
	// +kubebuilder:default={cores: 2, memory: "8Gi"}
	Compute *KubevirtCompute `json:"compute,omitempty"`

	// nodeSelector chooses the nodes that machines run on.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// userDataSecretRef names the Secret with the machines' user data, such as an Ignition
	// configuration, under the key userdata.
	// +optional
	UserDataSecretRef *LocalObjectReference `json:"userDataSecretRef,omitempty"`
}

// KubevirtNodePoolDNS is where the names of a pool's machines are.
type KubevirtNodePoolDNS struct {
	// hypervisorClusterRef names the HypervisorCluster whose dns block holds the DNS service
	// and its zones (dnsProvider), and says whether machines are registered (registerVMs) and
	// looked at from outside (validation, and that of its network block). It has no namespace.
	HypervisorClusterRef LocalObjectReference `json:"hypervisorClusterRef"`
	// domain completes a machine's name to its FQDN. Default: dns.domain of the
	// HypervisorCluster.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?([.][A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$')",message="dns.domain must be a DNS name such as nodes.example.com"
	Domain string `json:"domain,omitempty"`
}

// KubevirtRootVolume is the disk that machines boot from.
type KubevirtRootVolume struct {
	// diskImage that the disk is made from.
	DiskImage KubevirtDiskImage `json:"diskImage"`

	// persistent keeps the disk over stop and restart: CDI imports the image into a
	// PersistentVolumeClaim. Without it, each start begins with the image as it is.
	// +optional
	Persistent *KubevirtPersistentVolume `json:"persistent,omitempty"`
}

// KubevirtDiskImage is where a disk's content comes from.
type KubevirtDiskImage struct {
	// containerDiskImage is a container image that holds the disk.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9][A-Za-z0-9._:/@-]*$')",message="containerDiskImage must be the name of a container image such as quay.io/containerdisks/fedora:42"
	ContainerDiskImage string `json:"containerDiskImage"`
}

// KubevirtPersistentVolume is the PersistentVolumeClaim of a disk.
type KubevirtPersistentVolume struct {
	// size of the disk.
	// +optional
	// +kubebuilder:default="32Gi"
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? int(self) >= 1048576 : (string(self).matches('^[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$') && quantity(string(self)).compareTo(quantity('1Mi')) >= 0)",message="size must be at least 1Mi; write it with a unit such as 32Gi"
	Size resource.Quantity `json:"size,omitempty"`
	// storageClass of the claim. Default: the cluster's.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="storageClass must be the name of a StorageClass"
	StorageClass string `json:"storageClass,omitempty"`
	// accessModes of the claim; ReadWriteMany lets machines be migrated live.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:items:Enum=ReadWriteOnce;ReadWriteMany;ReadOnlyMany;ReadWriteOncePod
	AccessModes []string `json:"accessModes,omitempty"`
	// volumeMode of the claim.
	// +optional
	// +kubebuilder:validation:Enum=Filesystem;Block
	VolumeMode string `json:"volumeMode,omitempty"`
}

// KubevirtCompute is what machines are given.
type KubevirtCompute struct {
	// cores of the machine.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=512
	Cores int32 `json:"cores,omitempty"`
	// memory of the machine.
	// +optional
	// +kubebuilder:default="8Gi"
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? int(self) >= 67108864 : (string(self).matches('^[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$') && quantity(string(self)).compareTo(quantity('64Mi')) >= 0)",message="memory must be at least 64Mi; write it with a unit such as 8Gi"
	Memory resource.Quantity `json:"memory,omitempty"`
	// hugepages that the memory is made of.
	// +optional
	// +kubebuilder:validation:Enum="2Mi";"1Gi"
	Hugepages string `json:"hugepages,omitempty"`
	// qosClass Guaranteed reserves all of cores and memory for the machine.
	// +optional
	// +kubebuilder:default=Burstable
	// +kubebuilder:validation:Enum=Burstable;Guaranteed
	QosClass string `json:"qosClass,omitempty"`
}

// PoolAddresses is how a pool's addresses stand.
type PoolAddresses struct {
	// network that they are on, as NAMESPACE/NAME of its NetworkAttachmentDefinition.
	// +optional
	Network string `json:"network,omitempty"`
	// machines is how many machines the addresses suffice for. A number too large for this
	// field is shown as the largest that fits.
	Machines int64 `json:"machines"`
	// free is how many more machines they suffice for.
	Free int64 `json:"free"`
	// waiting is how many machines wait for an address.
	Waiting int32 `json:"waiting"`
}

// KubevirtNodePoolStatus is how a pool stands.
type KubevirtNodePoolStatus struct {
	// observedGeneration is the generation of the spec that the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// replicas is how many machines there are, without those being deleted.
	// +optional
	Replicas int32 `json:"replicas"`
	// readyReplicas is how many of them are ready.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas"`
	// drainingReplicas is how many machines are leaving whose Nodes are being drained.
	// +optional
	DrainingReplicas int32 `json:"drainingReplicas,omitempty"`
	// selector of the machines, for the scale subresource.
	// +optional
	Selector string `json:"selector,omitempty"`
	// machineTemplate that new machines are made from.
	// +optional
	MachineTemplate string `json:"machineTemplate,omitempty"`
	// addresses of the pool, if it has static ones.
	// +optional
	Addresses *PoolAddresses `json:"addresses,omitempty"`
	// conditions of the pool.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// KubevirtNodePool keeps a number of KubeVirt machines, with static addresses where DHCP is
// not wanted.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:resource:shortName=kvnp,categories=hyperfleet
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="Current",type=integer,JSONPath=`.status.replicas`
// +kubebuilder:printcolumn:name="Machines-ready",type=integer,JSONPath=`.status.readyReplicas`
// +kubebuilder:printcolumn:name="Draining",type=integer,priority=1,JSONPath=`.status.drainingReplicas`
// +kubebuilder:printcolumn:name="Free",type=integer,JSONPath=`.status.addresses.free`
// +kubebuilder:printcolumn:name="Addresses",type=integer,priority=1,JSONPath=`.status.addresses.machines`,description="How many machines its addresses suffice for"
// +kubebuilder:printcolumn:name="Waiting",type=integer,priority=1,JSONPath=`.status.addresses.waiting`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 54 && !self.metadata.name.contains('.')",message="the name must have at most 54 characters and no dot: machines' names, which are hosts' names, begin with it"
type KubevirtNodePool struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what is wanted.
	Spec KubevirtNodePoolSpec `json:"spec"`
	// status is how the pool stands.
	// +optional
	Status KubevirtNodePoolStatus `json:"status,omitempty"`
}

// KubevirtNodePoolList is a list of KubevirtNodePool.
//
// +kubebuilder:object:root=true
type KubevirtNodePoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []KubevirtNodePool `json:"items"`
}

// StatusConditions gives the conditions to whoever reports on the object.
func (p *KubevirtNodePool) StatusConditions() *[]metav1.Condition { return &p.Status.Conditions }

// SetObservedGeneration notes the generation that the status speaks of.
func (p *KubevirtNodePool) SetObservedGeneration(generation int64) {
	p.Status.ObservedGeneration = generation
}
