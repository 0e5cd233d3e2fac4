// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Conditions that say of a machine how its name stands. The networking area writes them on
// MachineClaims, whose status is otherwise the runners area's, and on KubevirtMachines.
const (
	// ConditionDNSRegistered tells whether the machine's records are in DNS.
	ConditionDNSRegistered = "DNSRegistered"
	// ConditionNetworkValidated tells what the last look-ups and tests of the machine found.
	ConditionNetworkValidated = "NetworkValidated"
)

// Kinds of machines that may be in DNS.
const (
	KindMachineClaim    = "MachineClaim"
	KindKubevirtMachine = "KubevirtMachine"
)

// DNSRegistrationClaim is the MachineClaim or the KubevirtMachine that a registration is
// for.
type DNSRegistrationClaim struct {
	// kind of the machine's object.
	// +optional
	// +kubebuilder:default=MachineClaim
	// +kubebuilder:validation:Enum=MachineClaim;KubevirtMachine
	Kind string `json:"kind,omitempty"`
	// namespace of the machine's object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// name of the machine's object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// uid of the machine's object. It is on the marks of the records.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid"`
}

// DNSRegistrationSpec is what a machine is to be found by.
// +kubebuilder:validation:XValidation:rule="self.claim == oldSelf.claim && self.hypervisorCluster == oldSelf.hypervisorCluster",message="claim and hypervisorCluster of a DNSRegistration cannot be changed: its records would be left behind"
type DNSRegistrationSpec struct {
	// claim is the machine's object.
	Claim DNSRegistrationClaim `json:"claim"`
	// hypervisorCluster is the HypervisorCluster whose dns.dnsProvider holds the records.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	HypervisorCluster string `json:"hypervisorCluster"`
	// fqdn of the machine, without a dot at the end.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	FQDN string `json:"fqdn"`
	// addresses of the machine.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a))",message="addresses must be IP addresses"
	Addresses []string `json:"addresses"`
}

// DNSRecord is one record in DNS.
type DNSRecord struct {
	// zone that holds the record.
	Zone string `json:"zone"`
	// name of the record, in full.
	Name string `json:"name"`
	// type of the record: A, AAAA or PTR.
	Type string `json:"type"`
	// value of the record: an address or, for PTR, a name.
	Value string `json:"value"`
}

// DNSRegistrationStatus is what was done for the machine.
type DNSRegistrationStatus struct {
	// observedGeneration is the generation of the spec that the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions of the registration.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// records that are in DNS, or may be. They are written here before they are written
	// there, and leave here after they have left there.
	// +optional
	// +listType=atomic
	Records []DNSRecord `json:"records,omitempty"`
	// registeredAt is when all records of the spec were first seen to.
	// +optional
	RegisteredAt *metav1.MicroTime `json:"registeredAt,omitempty"`
}

// DNSRegistration is the memory of a machine's DNS records. The operator makes it when a
// machine is Ready and deletes it with the machine; it stays until its records are gone,
// so that neither a dead operator nor a dead DNS server leaves any behind.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=dnsreg,categories=hyperfleet
// +kubebuilder:printcolumn:name="FQDN",type=string,JSONPath=`.spec.fqdn`
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.spec.addresses`
// +kubebuilder:printcolumn:name="Kind",type=string,priority=1,JSONPath=`.spec.claim.kind`
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.claim.namespace`
// +kubebuilder:printcolumn:name="Claim",type=string,JSONPath=`.spec.claim.name`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type DNSRegistration struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the machine is to be found by.
	Spec DNSRegistrationSpec `json:"spec"`
	// status is what was done.
	// +optional
	Status DNSRegistrationStatus `json:"status,omitempty"`
}

// DNSRegistrationList is a list of DNSRegistration.
//
// +kubebuilder:object:root=true
type DNSRegistrationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []DNSRegistration `json:"items"`
}

// StatusConditions gives the conditions to whoever reports on the object.
func (r *DNSRegistration) StatusConditions() *[]metav1.Condition { return &r.Status.Conditions }

// SetObservedGeneration notes the generation that the status speaks of.
func (r *DNSRegistration) SetObservedGeneration(generation int64) {
	r.Status.ObservedGeneration = generation
}
