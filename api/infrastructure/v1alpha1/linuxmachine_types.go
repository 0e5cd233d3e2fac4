// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// LinuxMachineSpec defines the connection to a Linux host. The configuration that is pushed to the host
// is defined in the operator's configuration.
type LinuxMachineSpec struct {
	SSHHostKeys `json:",inline"`

	// fleetName is the name of the host's HostFleet, in the host's namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="fleetName must be the name of a HostFleet"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="fleetName cannot be changed: delete the host and create it again in the other fleet"
	FleetName string `json:"fleetName"`
	// address is the IP address or the DNS name of the host, without a port.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="isIP(self) || !format.dns1123Subdomain().validate(self).hasValue()",message="address must be an IP address or a DNS name, without a port"
	Address string `json:"address"`
	// fallbackAddresses are tried in this order, at the same port, if the host cannot be reached at its
	// address. They are only used if the host's key is recorded. An example is the host's name in a
	// tailnet.
	// +optional
	// +kubebuilder:validation:MaxItems=3
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a) || !format.dns1123Subdomain().validate(a).hasValue())",message="fallbackAddresses must be IP addresses or DNS names, without a port"
	// +listType=atomic
	FallbackAddresses []string `json:"fallbackAddresses,omitempty"`
	// port is the port of the SSH server.
	// +optional
	// +kubebuilder:default=22
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
	// user is the user to log in as. The user must be allowed to use sudo without a password.
	// +optional
	// +kubebuilder:default=hyperfleet
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z_][a-z0-9_-]*$')",message="user must be the name of a user: lower-case letters, digits, '-' and '_'"
	User string `json:"user,omitempty"`
	// sshKeySecretRef selects the private key to log in with, in OpenSSH or PEM format.
	SSHKeySecretRef LocalSecretKeySelector `json:"sshKeySecretRef"`
	// kubeconfigSecretRef selects the kubeconfig with which the host's agent joins its cluster. It is
	// required if the fleet has no nodeCredentials.
	// +optional
	KubeconfigSecretRef LocalSecretKeySelector `json:"kubeconfigSecretRef,omitempty,omitzero"`
	// tailscaleAuthKeySecretRef selects the auth key with which the host joins the tailnet. It is
	// required if the operator's configuration enables a tailnet.
	// +optional
	TailscaleAuthKeySecretRef *LocalSecretKeySelector `json:"tailscaleAuthKeySecretRef,omitempty"`
	// providerID is the provider ID of the host's Node. Default: hyperfleet-linux://NAMESPACE/NAME.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	ProviderID string `json:"providerID,omitempty"`
}

// LinuxMachineStatus is the observed state of a Linux host.
type LinuxMachineStatus struct {
	HostStatus `json:",inline"`
}

// LinuxMachine is a Linux host that runs machines.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=lxm,categories=hyperfleet
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Fleet",type=string,JSONPath=`.spec.fleetName`
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.spec.address`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Hash",type=string,priority=1,JSONPath=`.status.hostConfigHash`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name must have at most 63 characters, because it is the host name and the name of the Node"
type LinuxMachine struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec defines the connection to the host.
	Spec LinuxMachineSpec `json:"spec"`
	// status is the observed state of the host.
	// +optional
	Status LinuxMachineStatus `json:"status,omitempty"`
}

// LinuxMachineList is a list of LinuxMachine.
//
// +kubebuilder:object:root=true
type LinuxMachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []LinuxMachine `json:"items"`
}

// StatusConditions returns a pointer to the conditions, for kit/step.
func (m *LinuxMachine) StatusConditions() *[]metav1.Condition { return &m.Status.Conditions }

// SetObservedGeneration records the generation that the status describes.
func (m *LinuxMachine) SetObservedGeneration(generation int64) {
	m.Status.ObservedGeneration = generation
}

// Host returns the part of the status that all kinds of hosts have.
func (m *LinuxMachine) Host() *HostStatus { return &m.Status.HostStatus }
