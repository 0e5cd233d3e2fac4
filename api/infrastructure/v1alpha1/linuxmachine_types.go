// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// LinuxMachineSpec says how a Linux host is reached. What is pushed to it, the operator's
// configuration says.
type LinuxMachineSpec struct {
	// fleetName is the HostFleet that the host belongs to, in its own namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="fleetName must be the name of a HostFleet"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="fleetName cannot be changed: delete the host and make it anew in its other fleet"
	FleetName string `json:"fleetName"`
	// address of the host: an IP address or a name, without a port.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="isIP(self) || !format.dns1123Subdomain().validate(self).hasValue()",message="address must be an IP address or a DNS name, without a port"
	Address string `json:"address"`
	// fallbackAddresses are tried in their order, at the same port, where the host can't be reached
	// at its address and its key is on record: such as its name in a tailnet.
	// +optional
	// +kubebuilder:validation:MaxItems=3
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a) || !format.dns1123Subdomain().validate(a).hasValue())",message="fallbackAddresses must be IP addresses or DNS names, without a port"
	// +listType=atomic
	FallbackAddresses []string `json:"fallbackAddresses,omitempty"`
	// port of its SSH server.
	// +optional
	// +kubebuilder:default=22
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
	// user to log in as, who may use sudo without a password.
	// +optional
	// +kubebuilder:default=hyperfleet
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z_][a-z0-9_-]*$')",message="user must be the name of a user: lower-case letters, digits, '-' and '_'"
	User string `json:"user,omitempty"`
	// sshHostKey is the fingerprint of the key that the host's SSH server has to show, as
	// `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` prints it. Nothing is sent to a host
	// that shows another one.
	// +optional
	// +kubebuilder:validation:MaxLength=50
	// +kubebuilder:validation:XValidation:rule="self.matches('^SHA256:[A-Za-z0-9+/]{43}$')",message="sshHostKey must be a fingerprint: SHA256: and 43 characters, as ssh-keygen -l prints it"
	SSHHostKey string `json:"sshHostKey,omitempty"`
	// sshHostCertAuthorities are the public keys that certify the keys of hosts, as after
	// @cert-authority in OpenSSH's known_hosts. Nothing is sent to a host that shows neither a
	// certificate by one of them, which names the address that is dialled and has not expired, nor
	// the key of sshHostKey.
	// +optional
	// +kubebuilder:validation:MaxItems=4
	// +listType=atomic
	SSHHostCertAuthorities []SSHCertAuthority `json:"sshHostCertAuthorities,omitempty"`
	// sshHostKeyChecking says what is done with a host that neither sshHostKey nor
	// sshHostCertAuthorities tell of. Strict, the default, sends it nothing. AcceptNew trusts the
	// key that it shows first, as OpenSSH's StrictHostKeyChecking=accept-new: whoever answers at the
	// address then chooses it. A key that is on record in the status stays trusted.
	// +optional
	SSHHostKeyChecking SSHHostKeyChecking `json:"sshHostKeyChecking,omitempty"`
	// sshKeySecretRef picks the private key to log in with, as OpenSSH or PEM text.
	SSHKeySecretRef LocalSecretKeySelector `json:"sshKeySecretRef"`
	// kubeconfigSecretRef picks the kubeconfig with which the host's agent joins its cluster.
	// Needed where the fleet has no nodeCredentials.
	// +optional
	KubeconfigSecretRef LocalSecretKeySelector `json:"kubeconfigSecretRef,omitempty,omitzero"`
	// tailscaleAuthKeySecretRef picks the key with which the host joins the tailnet. Needed
	// where the operator's configuration has one.
	// +optional
	TailscaleAuthKeySecretRef *LocalSecretKeySelector `json:"tailscaleAuthKeySecretRef,omitempty"`
	// providerID of the host's Node. Default: hyperfleet-linux://NAMESPACE/NAME.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	ProviderID string `json:"providerID,omitempty"`
}

// LinuxMachineStatus is what is known of a Linux host.
type LinuxMachineStatus struct {
	HostStatus `json:",inline"`
}

// LinuxMachine is a plain Linux host that carries machines.
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
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name must have at most 63 characters, for it is the host's and its Node's"
type LinuxMachine struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is how the host is reached.
	Spec LinuxMachineSpec `json:"spec"`
	// status is what is known of it.
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

// StatusConditions gives the conditions to whoever reports on the object.
func (m *LinuxMachine) StatusConditions() *[]metav1.Condition { return &m.Status.Conditions }

// SetObservedGeneration notes the generation that the status speaks of.
func (m *LinuxMachine) SetObservedGeneration(generation int64) {
	m.Status.ObservedGeneration = generation
}

// Host gives what is known of the machine as a host of any kind.
func (m *LinuxMachine) Host() *HostStatus { return &m.Status.HostStatus }
