// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Labels of what belongs to a node pool.
const (
	// LabelNodePool is the name of the KubevirtNodePool.
	LabelNodePool = "infrastructure.hyperfleet.io/node-pool"
	// LabelCluster is the name of the cluster that the machines join.
	LabelCluster = "infrastructure.hyperfleet.io/cluster"
	// LabelMachine is the name of the KubevirtMachine, on its VirtualMachine.
	LabelMachine = "infrastructure.hyperfleet.io/machine"
)

// AnnotationMachineTemplate on a KubevirtMachine is the KubevirtMachineTemplate that it
// was made from.
const AnnotationMachineTemplate = "infrastructure.hyperfleet.io/machine-template"

// FinalizerKubevirtMachine keeps a KubevirtMachine until its VirtualMachine and its DNS
// records are gone and its addresses are free.
const FinalizerKubevirtMachine = "infrastructure.hyperfleet.io/virtual-machine"

// Conditions of a KubevirtMachine, beside Ready.
const (
	// ConditionAddressesAllocated tells whether the machine has its static addresses.
	ConditionAddressesAllocated = "AddressesAllocated"
	// ConditionNetworkDataReady tells whether its network data are made.
	ConditionNetworkDataReady = "NetworkDataReady"
	// ConditionVMCreated tells whether its VirtualMachine is there.
	ConditionVMCreated = "VMCreated"
	// ConditionVMReady tells whether its VirtualMachine runs.
	ConditionVMReady = "VMReady"
	// ConditionVMDeleted tells, on deletion, whether the VirtualMachine is gone.
	ConditionVMDeleted = "VMDeleted"
	// ConditionDNSRemoved tells, on deletion, whether its records are out of DNS.
	ConditionDNSRemoved = "DNSRemoved"
	// ConditionAddressesReleased tells, on deletion, whether the addresses are free.
	ConditionAddressesReleased = "AddressesReleased"
)

// KubevirtMachinePhase says in one word where a machine is in its life.
//
// +kubebuilder:validation:Enum=Pending;Provisioning;Running;Stopped;Draining;Deleting;Failed
type KubevirtMachinePhase string

// The phases.
const (
	// KubevirtMachinePending has no VirtualMachine yet; it may wait for an address.
	KubevirtMachinePending KubevirtMachinePhase = "Pending"
	// KubevirtMachineProvisioning has a VirtualMachine that does not run yet.
	KubevirtMachineProvisioning KubevirtMachinePhase = "Provisioning"
	// KubevirtMachineRunning runs.
	KubevirtMachineRunning KubevirtMachinePhase = "Running"
	// KubevirtMachineStopped was stopped; it keeps its addresses.
	KubevirtMachineStopped KubevirtMachinePhase = "Stopped"
	// KubevirtMachineDraining is to be deleted, and its Node is being drained.
	KubevirtMachineDraining KubevirtMachinePhase = "Draining"
	// KubevirtMachineDeleting is being deleted.
	KubevirtMachineDeleting KubevirtMachinePhase = "Deleting"
	// KubevirtMachineFailed needs a person; its conditions say why.
	KubevirtMachineFailed KubevirtMachinePhase = "Failed"
)

// KubevirtMachineSpec says what a machine is.
// +kubebuilder:validation:XValidation:rule="has(self.bootstrapNetworkConfig) == has(oldSelf.bootstrapNetworkConfig) && (!has(self.bootstrapNetworkConfig) || self.bootstrapNetworkConfig == oldSelf.bootstrapNetworkConfig)",message="bootstrapNetworkConfig cannot be changed: delete the machine and make a new one"
type KubevirtMachineSpec struct {
	// virtualMachineTemplate is the kubevirt.io/v1 VirtualMachine to make: its metadata's
	// labels and annotations, and its spec. It is used once; later changes are made to the
	// VirtualMachine.
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	VirtualMachineTemplate runtime.RawExtension `json:"virtualMachineTemplate"`

	// bootstrapNetworkConfig gives the machine static addresses. Without it, the machine
	// asks DHCP.
	// +optional
	BootstrapNetworkConfig *VirtualMachineBootstrapNetworkConfig `json:"bootstrapNetworkConfig,omitempty"`
}

// KubevirtMachineStatus is what is known of a machine.
type KubevirtMachineStatus struct {
	// observedGeneration is the generation of the spec that the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// phase of the machine, in one word.
	// +optional
	Phase KubevirtMachinePhase `json:"phase,omitempty"`
	// ready says whether the VirtualMachine runs and is ready.
	// +optional
	Ready bool `json:"ready,omitempty"`
	// allocatedBootstrapAddresses are the machine's static addresses, by interface, each
	// with its prefix length: {"eno101": ["10.10.0.42/24", "fd41:1234::932/64"]}. They are
	// on record here before the VirtualMachine is made and until it is gone; the pools of
	// addresses are rebuilt from them.
	// +optional
	AllocatedBootstrapAddresses map[string][]string `json:"allocatedBootstrapAddresses,omitempty"`
	// bootstrapNetwork is the network that the addresses are on, as NAMESPACE/NAME of its
	// NetworkAttachmentDefinition. It is on record with them.
	// +optional
	BootstrapNetwork string `json:"bootstrapNetwork,omitempty"`
	// nodeName is where the VirtualMachine runs, or ran last.
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// drain is how the draining of the machine's Node went; empty before it begins.
	// +optional
	Drain *NodeDrainStatus `json:"drain,omitempty"`
	// providerID as a Node of the cluster has it.
	// +optional
	ProviderID string `json:"providerID,omitempty"`
	// conditions of the machine.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// KubevirtMachine is one machine: a VirtualMachine of KubeVirt with its static addresses.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=kvm,categories=hyperfleet
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.metadata.labels.infrastructure\.hyperfleet\.io/node-pool`
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.status.allocatedBootstrapAddresses.*`
// +kubebuilder:printcolumn:name="Since",type=date,priority=1,JSONPath=`.status.conditions[?(@.type=="AddressesAllocated")].lastTransitionTime`,description="Since when it has its addresses, or waits for them"
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.nodeName`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name must have at most 63 characters, for it is the VirtualMachine's and a host's"
type KubevirtMachine struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the machine is.
	Spec KubevirtMachineSpec `json:"spec"`
	// status is what is known of it.
	// +optional
	Status KubevirtMachineStatus `json:"status,omitempty"`
}

// KubevirtMachineList is a list of KubevirtMachine.
//
// +kubebuilder:object:root=true
type KubevirtMachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []KubevirtMachine `json:"items"`
}

// StatusConditions gives the conditions to whoever reports on the object.
func (m *KubevirtMachine) StatusConditions() *[]metav1.Condition { return &m.Status.Conditions }

// SetObservedGeneration notes the generation that the status speaks of.
func (m *KubevirtMachine) SetObservedGeneration(generation int64) {
	m.Status.ObservedGeneration = generation
}
