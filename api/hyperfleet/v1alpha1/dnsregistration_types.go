// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition types about a machine's DNS name. The networking area sets them on KubevirtMachines and on
// MachineClaims. All other fields of a MachineClaim's status belong to the runners area.
const (
	// ConditionDNSRegistered is True if the machine's records are in DNS.
	ConditionDNSRegistered = "DNSRegistered"
	// ConditionNetworkValidated is the result of the last DNS lookups and network tests of the machine.
	ConditionNetworkValidated = "NetworkValidated"
)

// Kinds of machines that can be registered in DNS.
const (
	KindMachineClaim    = "MachineClaim"
	KindKubevirtMachine = "KubevirtMachine"
)

// DNSRegistrationClaim names the MachineClaim or the KubevirtMachine of a registration.
type DNSRegistrationClaim struct {
	// kind is the kind of the machine's object.
	// +optional
	// +kubebuilder:default=MachineClaim
	// +kubebuilder:validation:Enum=MachineClaim;KubevirtMachine
	Kind string `json:"kind,omitempty"`
	// namespace is the namespace of the machine's object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// name is the name of the machine's object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// uid is the UID of the machine's object. The ownership records in DNS contain it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid"`
}

// DNSRegistrationSpec defines the DNS records of a machine.
// +kubebuilder:validation:XValidation:rule="self.claim == oldSelf.claim && self.hypervisorCluster == oldSelf.hypervisorCluster",message="claim and hypervisorCluster of a DNSRegistration are immutable, because its old records would stay in DNS"
type DNSRegistrationSpec struct {
	// claim names the machine's object.
	Claim DNSRegistrationClaim `json:"claim"`
	// hypervisorCluster is the name of the HypervisorCluster whose dns.dnsProvider holds the records.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	HypervisorCluster string `json:"hypervisorCluster"`
	// fqdn is the fully qualified domain name of the machine, without a trailing dot.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	FQDN string `json:"fqdn"`
	// addresses are the IP addresses of the machine.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a))",message="addresses must be IP addresses"
	Addresses []string `json:"addresses"`
}

// DNSRecord is a DNS record.
type DNSRecord struct {
	// zone is the zone that holds the record.
	Zone string `json:"zone"`
	// name is the fully qualified name of the record.
	Name string `json:"name"`
	// type is the type of the record: A, AAAA or PTR.
	Type string `json:"type"`
	// value is the value of the record: an address, or a name for PTR.
	Value string `json:"value"`
}

// DNSRegistrationStatus is the observed state of a DNSRegistration.
type DNSRegistrationStatus struct {
	// observedGeneration is the generation of the spec that the status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions are the conditions of the registration.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// records are the records that are, or may be, in DNS. The operator adds a record here before it
	// creates the record in DNS, and removes it here after it has deleted the record in DNS.
	// +optional
	// +listType=atomic
	Records []DNSRecord `json:"records,omitempty"`
	// registeredAt is the time at which all records of the spec were first in DNS.
	// +optional
	RegisteredAt *metav1.MicroTime `json:"registeredAt,omitempty"`
}

// DNSRegistration records the DNS records of a machine. The operator creates it when the machine is
// Ready and deletes it with the machine. A finalizer keeps it until its DNS records are deleted, so that
// no record stays in DNS if the operator or the DNS server fails.
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

	// spec defines the DNS records of the machine.
	Spec DNSRegistrationSpec `json:"spec"`
	// status is the observed state of the registration.
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

// StatusConditions returns a pointer to the conditions, for kit/step.
func (r *DNSRegistration) StatusConditions() *[]metav1.Condition { return &r.Status.Conditions }

// SetObservedGeneration records the generation that the status describes.
func (r *DNSRegistration) SetObservedGeneration(generation int64) {
	r.Status.ObservedGeneration = generation
}
