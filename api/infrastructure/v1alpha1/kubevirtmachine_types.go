// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Labels of the objects of a node pool.
const (
	// LabelNodePool is the name of the KubevirtNodePool.
	LabelNodePool = "infrastructure.hyperfleet.io/node-pool"
	// LabelCluster is the name of the cluster that the machines join.
	LabelCluster = "infrastructure.hyperfleet.io/cluster"
	// LabelMachine on a VirtualMachine is the name of its KubevirtMachine.
	LabelMachine = "infrastructure.hyperfleet.io/machine"
)

// AnnotationMachineTemplate on a KubevirtMachine is the name of the KubevirtMachineTemplate from which
// it was created.
const AnnotationMachineTemplate = "infrastructure.hyperfleet.io/machine-template"

// Annotations of a VirtualMachine. The operator reads them back if the status of a KubevirtMachine was lost.
const (
	// AnnotationAddresses on a VirtualMachine has the addresses with which it is configured, separated by
	// commas, each with its prefix length.
	AnnotationAddresses = "infrastructure.hyperfleet.io/addresses"
	// AnnotationNetwork on a VirtualMachine is the network of these addresses, as in
	// status.bootstrapNetwork of its KubevirtMachine.
	AnnotationNetwork = "infrastructure.hyperfleet.io/network"
)

// FinalizerKubevirtMachine prevents the deletion of a KubevirtMachine until its VirtualMachine and its
// DNS records are deleted and its addresses are released.
const FinalizerKubevirtMachine = "infrastructure.hyperfleet.io/virtual-machine"

// Condition types of a KubevirtMachine in addition to Ready.
const (
	// ConditionAddressesAllocated is True if the machine has its static addresses.
	ConditionAddressesAllocated = "AddressesAllocated"
	// ConditionNetworkDataReady is True if the machine's network data is created.
	ConditionNetworkDataReady = "NetworkDataReady"
	// ConditionVMCreated is True if the VirtualMachine exists.
	ConditionVMCreated = "VMCreated"
	// ConditionVMReady is True if the VirtualMachine runs.
	ConditionVMReady = "VMReady"
	// ConditionVMDeleted is True, during deletion, if the VirtualMachine is deleted.
	ConditionVMDeleted = "VMDeleted"
	// ConditionDNSRemoved is True, during deletion, if the machine's DNS records are deleted.
	ConditionDNSRemoved = "DNSRemoved"
	// ConditionAddressesReleased is True, during deletion, if the addresses are released.
	ConditionAddressesReleased = "AddressesReleased"
)

// KubevirtMachinePhase is the phase of a machine's lifecycle.
//
// +kubebuilder:validation:Enum=Pending;Provisioning;Running;Stopped;Draining;Deleting;Failed
type KubevirtMachinePhase string

// Phases of a KubevirtMachine.
const (
	// KubevirtMachinePending means that the VirtualMachine does not exist yet. The machine may wait for
	// an address.
	KubevirtMachinePending KubevirtMachinePhase = "Pending"
	// KubevirtMachineProvisioning means that the VirtualMachine exists but does not run yet.
	KubevirtMachineProvisioning KubevirtMachinePhase = "Provisioning"
	// KubevirtMachineRunning means that the VirtualMachine runs.
	KubevirtMachineRunning KubevirtMachinePhase = "Running"
	// KubevirtMachineStopped means that the VirtualMachine was stopped. The machine keeps its addresses.
	KubevirtMachineStopped KubevirtMachinePhase = "Stopped"
	// KubevirtMachineDraining means that the machine is being deleted and its Node is being drained.
	KubevirtMachineDraining KubevirtMachinePhase = "Draining"
	// KubevirtMachineDeleting means that the machine is being deleted.
	KubevirtMachineDeleting KubevirtMachinePhase = "Deleting"
	// KubevirtMachineFailed means that the machine needs a person. Its conditions say why.
	KubevirtMachineFailed KubevirtMachinePhase = "Failed"
)

// KubevirtMachineSpec defines a machine.
// +kubebuilder:validation:XValidation:rule="has(self.bootstrapNetworkConfig) == has(oldSelf.bootstrapNetworkConfig) && (!has(self.bootstrapNetworkConfig) || self.bootstrapNetworkConfig == oldSelf.bootstrapNetworkConfig)",message="bootstrapNetworkConfig cannot be changed: delete the machine and create a new one"
type KubevirtMachineSpec struct {
	// virtualMachineTemplate is the template of the VirtualMachine (kubevirt.io/v1): the labels and
	// annotations of its metadata, and its spec. It is used once. To change the machine later, change the
	// VirtualMachine. In the name of a Secret with user data, $(machine) is replaced with the machine's
	// name.
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	VirtualMachineTemplate runtime.RawExtension `json:"virtualMachineTemplate"`

	// bootstrapNetworkConfig defines the static addresses of the machine. If it is not set, the machine
	// uses DHCP.
	// +optional
	BootstrapNetworkConfig *VirtualMachineBootstrapNetworkConfig `json:"bootstrapNetworkConfig,omitempty"`
}

// KubevirtMachineStatus is the observed state of a machine.
type KubevirtMachineStatus struct {
	// observedGeneration is the generation of the spec that the status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// phase is the phase of the machine's lifecycle.
	// +optional
	Phase KubevirtMachinePhase `json:"phase,omitempty"`
	// ready is true if the VirtualMachine runs and is ready.
	// +optional
	Ready bool `json:"ready,omitempty"`
	// allocatedBootstrapAddresses are the machine's static addresses with their prefix lengths, by
	// interface: {"eno101": ["10.10.0.42/24", "fd41:1234::932/64"]}. They are recorded before the
	// VirtualMachine is created, until it is deleted. The operator rebuilds the state of the address
	// pools from them.
	// +optional
	AllocatedBootstrapAddresses map[string][]string `json:"allocatedBootstrapAddresses,omitempty"`
	// bootstrapNetwork is the network of the addresses, as NAMESPACE/NAME of its
	// NetworkAttachmentDefinition. It is recorded together with the addresses.
	// +optional
	BootstrapNetwork string `json:"bootstrapNetwork,omitempty"`
	// nodeName is the node on which the VirtualMachine runs or last ran.
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// drain is the state of the drain of the machine's Node. It is empty before the drain begins.
	// +optional
	Drain *NodeDrainStatus `json:"drain,omitempty"`
	// providerID is the provider ID of the machine's Node.
	// +optional
	ProviderID string `json:"providerID,omitempty"`
	// conditions are the conditions of the machine.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// KubevirtMachine is a machine: a VirtualMachine of KubeVirt with its static addresses.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=kvm,categories=hyperfleet
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.metadata.labels.infrastructure\.hyperfleet\.io/node-pool`
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.status.allocatedBootstrapAddresses.*`
// +kubebuilder:printcolumn:name="Since",type=date,priority=1,JSONPath=`.status.conditions[?(@.type=="AddressesAllocated")].lastTransitionTime`,description="Since when the machine has its addresses or waits for them"
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.nodeName`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name must have at most 63 characters, because it is the name of the VirtualMachine and the host name"
type KubevirtMachine struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec defines the machine.
	Spec KubevirtMachineSpec `json:"spec"`
	// status is the observed state of the machine.
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

// StatusConditions returns a pointer to the conditions, for kit/step.
func (m *KubevirtMachine) StatusConditions() *[]metav1.Condition { return &m.Status.Conditions }

// SetObservedGeneration records the generation that the status describes.
func (m *KubevirtMachine) SetObservedGeneration(generation int64) {
	m.Status.ObservedGeneration = generation
}
