// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FinalizerKubevirtNodePool prevents the deletion of a KubevirtNodePool until its machines are deleted.
const FinalizerKubevirtNodePool = "infrastructure.hyperfleet.io/machines"

// Condition types of a KubevirtNodePool in addition to Ready.
const (
	// ConditionValidNetworkConfig is True if the pool's addresses can be allocated.
	ConditionValidNetworkConfig = "ValidNetworkConfig"
	// ConditionTemplateReady is True if the pool's template exists.
	ConditionTemplateReady = "TemplateReady"
	// ConditionMachinesScaled is True if the number of machines equals replicas.
	ConditionMachinesScaled = "MachinesScaled"
	// ConditionMachinesReady is True if all machines are ready.
	ConditionMachinesReady = "MachinesReady"
	// ConditionIPPoolExhausted is True while machines wait for an address.
	ConditionIPPoolExhausted = "KubevirtIPPoolExhausted"
	// ConditionAddressesFewerThanReplicas warns, with True, that the pool's addresses do not suffice for
	// maxReplicas machines, or for replicas machines if maxReplicas is not set.
	ConditionAddressesFewerThanReplicas = "AddressesFewerThanReplicas"
	// ConditionPrefixLengthGuessed warns, with True, that the prefix length of the pool's network is not
	// configured and was guessed.
	ConditionPrefixLengthGuessed = "PrefixLengthGuessed"
	// ConditionMachinesDeleted is True, during deletion, if the machines are deleted.
	ConditionMachinesDeleted = "MachinesDeleted"
)

// KubevirtNodePoolSpec defines the number of machines and their template.
// +kubebuilder:validation:XValidation:rule="has(self.attachDefaultNetwork) && !self.attachDefaultNetwork || !has(self.bootstrapNetworkConfig)",message="bootstrapNetworkConfig needs attachDefaultNetwork: false, because static addresses are for a network that replaces the default network"
// +kubebuilder:validation:XValidation:rule="!has(self.attachDefaultNetwork) || self.attachDefaultNetwork || (has(self.additionalNetworks) && size(self.additionalNetworks) > 0)",message="attachDefaultNetwork: false needs at least one network in additionalNetworks"
// +kubebuilder:validation:XValidation:rule="!has(self.maxReplicas) || self.replicas <= self.maxReplicas",message="replicas must not be more than maxReplicas"
// +kubebuilder:validation:XValidation:rule="has(self.clusterName) == has(oldSelf.clusterName) && (!has(self.clusterName) || self.clusterName == oldSelf.clusterName)",message="clusterName cannot be changed: create another pool"
// +kubebuilder:validation:XValidation:rule="!has(self.userDataSecrets) || has(self.userDataSecretRef)",message="userDataSecrets needs userDataSecretRef: set it, because the Secrets are named after it"
type KubevirtNodePoolSpec struct {
	// clusterName is the name of the cluster that the machines join. It is used in labels and metrics.
	// Default: the pool's name.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="clusterName must be the name of a cluster: lower-case letters, digits and '-'"
	ClusterName string `json:"clusterName,omitempty"`

	// replicas is the desired number of machines.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	Replicas int32 `json:"replicas"`

	// maxReplicas is the maximum of replicas, for example for an autoscaler. It does not scale the pool.
	// The operator warns if the pool has fewer addresses than maxReplicas machines need.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	MaxReplicas *int32 `json:"maxReplicas,omitempty"`

	// attachDefaultNetwork attaches machines to the pod network.
	// +optional
	// +kubebuilder:default=true
	AttachDefaultNetwork *bool `json:"attachDefaultNetwork,omitempty"`

	// additionalNetworks are the additional networks that machines are attached to.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	AdditionalNetworks []KubevirtNetwork `json:"additionalNetworks,omitempty"`

	// bootstrapNetworkConfig defines the static addresses of machines in one of additionalNetworks. If it
	// is removed, new machines use DHCP, and existing machines keep their addresses.
	// +optional
	BootstrapNetworkConfig *KubevirtBootstrapNetworkConfig `json:"bootstrapNetworkConfig,omitempty"`

	// dns registers each ready machine in DNS as NAME.DOMAIN with its static addresses. Changes also
	// apply to existing machines.
	// +optional
	DNS *KubevirtNodePoolDNS `json:"dns,omitempty"`

	// drain defines how the Node of a machine is cordoned and drained before the machine is deleted.
	// Without drain, the workloads on a deleted machine are lost.
	// +optional
	Drain *NodeDrain `json:"drain,omitempty"`

	// rootVolume is the volume that machines boot from.
	RootVolume KubevirtRootVolume `json:"rootVolume"`

	// compute defines the CPU and memory of machines.
	// +optional
	// +kubebuilder:default={cores: 2, memory: "8Gi"}
	Compute *KubevirtCompute `json:"compute,omitempty"`

	// nodeSelector selects by labels the nodes on which machines run.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// userDataSecretRef names the Secret with the machines' user data, such as an Ignition configuration,
	// in the key userdata.
	// +optional
	UserDataSecretRef *LocalObjectReference `json:"userDataSecretRef,omitempty"`

	// userDataSecrets defines which Secrets hold the user data. With Shared, all machines use the Secret
	// in userDataSecretRef. With PerMachine, each machine uses its own Secret NAME-MACHINE, such as
	// workers-user-data-workers-x7k2p. You, or another controller, must create that Secret after the
	// KubevirtMachine was created, with the KubevirtMachine as owner, so that both are deleted together.
	// KubeVirt starts the machine when the Secret exists. The operator does not read the Secrets.
	// Default: Shared.
	// +optional
	UserDataSecrets UserDataSecrets `json:"userDataSecrets,omitempty"`
}

// UserDataSecrets defines which Secrets hold the user data of machines.
//
// +kubebuilder:validation:Enum=Shared;PerMachine
type UserDataSecrets string

// Values of UserDataSecrets.
const (
	// UserDataShared means that all machines use one Secret.
	UserDataShared UserDataSecrets = "Shared"
	// UserDataPerMachine means that each machine uses its own Secret.
	UserDataPerMachine UserDataSecrets = "PerMachine"
)

// KubevirtNodePoolDNS defines the DNS registration of a pool's machines.
type KubevirtNodePoolDNS struct {
	// hypervisorClusterRef names the HypervisorCluster, which is cluster-scoped, with the DNS settings.
	// Its dns block defines the DNS service and the zones (dnsProvider), whether machines are registered
	// (registerVMs) and how their records are checked (validation). Its network block defines how their
	// reachability is tested (validation).
	HypervisorClusterRef LocalObjectReference `json:"hypervisorClusterRef"`
	// domain is appended to a machine's name to build its FQDN. Default: dns.domain of the
	// HypervisorCluster.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?([.][A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$')",message="dns.domain must be a DNS name such as nodes.example.com"
	Domain string `json:"domain,omitempty"`
}

// KubevirtRootVolume is the disk that machines boot from.
type KubevirtRootVolume struct {
	// diskImage is the source of the disk.
	DiskImage KubevirtDiskImage `json:"diskImage"`

	// persistent keeps the disk when a machine stops or restarts. CDI imports the image into a
	// PersistentVolumeClaim. If it is not set, each start begins with the original image.
	// +optional
	Persistent *KubevirtPersistentVolume `json:"persistent,omitempty"`
}

// KubevirtDiskImage is the source of a disk.
type KubevirtDiskImage struct {
	// containerDiskImage is the name of a container image that contains the disk.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9][A-Za-z0-9._:/@-]*$')",message="containerDiskImage must be the name of a container image such as quay.io/containerdisks/fedora:42"
	ContainerDiskImage string `json:"containerDiskImage"`
}

// KubevirtPersistentVolume defines the PersistentVolumeClaim of a disk.
type KubevirtPersistentVolume struct {
	// size is the size of the disk.
	// +optional
	// +kubebuilder:default="32Gi"
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? int(self) >= 1048576 : (string(self).matches('^[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$') && quantity(string(self)).compareTo(quantity('1Mi')) >= 0)",message="size must be at least 1Mi: write a number and the unit Mi, Gi or Ti, such as 32Gi"
	Size resource.Quantity `json:"size,omitempty"`
	// storageClass is the StorageClass of the claim. Default: the default StorageClass of the cluster.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="storageClass must be the name of a StorageClass"
	StorageClass string `json:"storageClass,omitempty"`
	// accessModes are the access modes of the claim. ReadWriteMany allows live migration of machines.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:items:Enum=ReadWriteOnce;ReadWriteMany;ReadOnlyMany;ReadWriteOncePod
	AccessModes []string `json:"accessModes,omitempty"`
	// volumeMode is the volume mode of the claim.
	// +optional
	// +kubebuilder:validation:Enum=Filesystem;Block
	VolumeMode string `json:"volumeMode,omitempty"`
}

// KubevirtCompute defines the CPU and memory of machines.
type KubevirtCompute struct {
	// cores is the number of CPU cores.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=512
	Cores int32 `json:"cores,omitempty"`
	// memory is the amount of memory.
	// +optional
	// +kubebuilder:default="8Gi"
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? int(self) >= 67108864 : (string(self).matches('^[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$') && quantity(string(self)).compareTo(quantity('64Mi')) >= 0)",message="memory must be at least 64Mi: write a number and the unit Mi, Gi or Ti, such as 8Gi"
	Memory resource.Quantity `json:"memory,omitempty"`
	// hugepages is the size of the huge pages that back the memory.
	// +optional
	// +kubebuilder:validation:Enum="2Mi";"1Gi"
	Hugepages string `json:"hugepages,omitempty"`
	// qosClass is the QoS class of machines. Guaranteed reserves all cores and all memory for the
	// machine.
	// +optional
	// +kubebuilder:default=Burstable
	// +kubebuilder:validation:Enum=Burstable;Guaranteed
	QosClass string `json:"qosClass,omitempty"`
}

// PoolAddresses is the usage of a pool's addresses.
type PoolAddresses struct {
	// network is the network of the addresses, as NAMESPACE/NAME of its NetworkAttachmentDefinition.
	// +optional
	Network string `json:"network,omitempty"`
	// machines is the number of machines for which the addresses suffice. A number that is too large for
	// this field is shown as the largest number that fits.
	Machines int64 `json:"machines"`
	// free is the number of additional machines for which the addresses suffice.
	Free int64 `json:"free"`
	// waiting is the number of machines that wait for an address.
	Waiting int32 `json:"waiting"`
}

// KubevirtNodePoolStatus is the observed state of a pool.
type KubevirtNodePoolStatus struct {
	// observedGeneration is the generation of the spec that the status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// replicas is the number of machines, without machines that are being deleted.
	// +optional
	Replicas int32 `json:"replicas"`
	// readyReplicas is the number of these machines that are ready.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas"`
	// drainingReplicas is the number of machines that are being deleted and whose Nodes are being
	// drained.
	// +optional
	DrainingReplicas int32 `json:"drainingReplicas,omitempty"`
	// selector is the label selector of the machines, for the scale subresource.
	// +optional
	Selector string `json:"selector,omitempty"`
	// machineTemplate is the name of the template from which new machines are created.
	// +optional
	MachineTemplate string `json:"machineTemplate,omitempty"`
	// addresses is the usage of the pool's addresses, if the pool has static addresses.
	// +optional
	Addresses *PoolAddresses `json:"addresses,omitempty"`
	// conditions are the conditions of the pool.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// KubevirtNodePool is a pool of KubeVirt machines, which can have static addresses instead of DHCP.
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
// +kubebuilder:printcolumn:name="Addresses",type=integer,priority=1,JSONPath=`.status.addresses.machines`,description="The number of machines for which the addresses suffice"
// +kubebuilder:printcolumn:name="Waiting",type=integer,priority=1,JSONPath=`.status.addresses.waiting`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 54 && !self.metadata.name.contains('.')",message="the name must have at most 54 characters and no dot, because the names of machines, which are host names, begin with it"
type KubevirtNodePool struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state of the pool.
	Spec KubevirtNodePoolSpec `json:"spec"`
	// status is the observed state of the pool.
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

// StatusConditions returns a pointer to the conditions, for kit/step.
func (p *KubevirtNodePool) StatusConditions() *[]metav1.Condition { return &p.Status.Conditions }

// SetObservedGeneration records the generation that the status describes.
func (p *KubevirtNodePool) SetObservedGeneration(generation int64) {
	p.Status.ObservedGeneration = generation
}
