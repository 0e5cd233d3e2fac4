// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Keys of the Secret that credentialsSecretRef names: what Scaleway's own tools call them
// in the environment (https://www.scaleway.com/en/docs/scaleway-cli/reference-content/cli-config-file/).
const (
	// ScalewayAccessKey is the API key's access key.
	ScalewayAccessKey = "SCW_ACCESS_KEY"
	// ScalewaySecretKey is the API key's secret key.
	ScalewaySecretKey = "SCW_SECRET_KEY" //nolint:gosec // G101: the name of a key, and no key
	// ScalewayProjectID is the project of the servers.
	ScalewayProjectID = "SCW_DEFAULT_PROJECT_ID"
	// ScalewayAPIURL is where the API is. Optional.
	ScalewayAPIURL = "SCW_API_URL"
)

// ScalewaySecretRef names a Secret in the object's own namespace.
type ScalewaySecretRef struct {
	// name of the Secret, which has the keys SCW_ACCESS_KEY, SCW_SECRET_KEY and
	// SCW_DEFAULT_PROJECT_ID, and may have SCW_API_URL.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="name must be the name of a Secret"
	Name string `json:"name"`
}

// ScalewayAppleSiliconMachineSpec says which Mac is had, and how it is reached. What is
// pushed to it, the operator's configuration says.
// +kubebuilder:validation:XValidation:rule="has(self.os) == has(oldSelf.os) && (!has(self.os) || self.os == oldSelf.os)",message="os cannot be changed: delete the machine and make a new one"
// +kubebuilder:validation:XValidation:rule="has(self.adoptPoolPrefix) == has(oldSelf.adoptPoolPrefix) && (!has(self.adoptPoolPrefix) || self.adoptPoolPrefix == oldSelf.adoptPoolPrefix)",message="adoptPoolPrefix cannot be changed: delete the machine and make a new one"
// +kubebuilder:validation:XValidation:rule="!(has(self.os) && has(self.adoptPoolPrefix))",message="os is for servers that are ordered: those of a pool have theirs"
type ScalewayAppleSiliconMachineSpec struct {
	// fleetName is the HostFleet that the host belongs to, in its own namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="fleetName must be the name of a HostFleet"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="fleetName cannot be changed: delete the host and make it anew in its other fleet"
	FleetName string `json:"fleetName"`
	// type of server, as Scaleway names it.
	// +optional
	// +kubebuilder:default=M4-S
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Z0-9]+(-[A-Z0-9]+)*$')",message="type must be a type of server such as M4-S"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="type cannot be changed: delete the machine and make a new one"
	Type string `json:"type,omitempty"`
	// zone of the server.
	// +optional
	// +kubebuilder:default=fr-par-1
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z]{2}-[a-z]{3}-[1-9]$')",message="zone must be a zone such as fr-par-1"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="zone cannot be changed: delete the machine and make a new one"
	Zone string `json:"zone,omitempty"`
	// os to order the server with, by the name that Scaleway has for it. Default: the type's.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	OS string `json:"os,omitempty"`
	// adoptPoolPrefix takes a server that is there, whose name begins so, in place of ordering
	// one. It goes back to the pool, wiped, when the machine is deleted.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-zA-Z0-9][-._a-zA-Z0-9]*$') && !self.startsWith('hf-')",message="adoptPoolPrefix must be the beginning of names: letters, digits, '-', '_' and '.', and not hf-, with which the names of machines begin"
	AdoptPoolPrefix string `json:"adoptPoolPrefix,omitempty"`
	// credentialsSecretRef names the Secret with the API key.
	CredentialsSecretRef ScalewaySecretRef `json:"credentialsSecretRef"`
	// sshKeySecretRef picks the private key to log in with, as OpenSSH or PEM text. Its
	// public key is registered with the project before anything is ordered.
	SSHKeySecretRef LocalSecretKeySelector `json:"sshKeySecretRef"`
	// kubeconfigSecretRef picks the kubeconfig with which the host's kubelet joins its cluster.
	// Needed where the fleet has no nodeCredentials.
	// +optional
	KubeconfigSecretRef LocalSecretKeySelector `json:"kubeconfigSecretRef,omitempty,omitzero"`
	// tailscaleAuthKeySecretRef picks the key with which the host joins the tailnet. Needed
	// where the operator's configuration has one.
	// +optional
	TailscaleAuthKeySecretRef *LocalSecretKeySelector `json:"tailscaleAuthKeySecretRef,omitempty"`
	// fallbackAddresses are tried in their order, at the same port, where the host can't be reached
	// at its address and its key is on record: such as its name in a tailnet.
	// +optional
	// +kubebuilder:validation:MaxItems=3
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a) || !format.dns1123Subdomain().validate(a).hasValue())",message="fallbackAddresses must be IP addresses or DNS names, without a port"
	// +listType=atomic
	FallbackAddresses []string `json:"fallbackAddresses,omitempty"`
	// sshPort of the host.
	// +optional
	// +kubebuilder:default=22
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	SSHPort int32 `json:"sshPort,omitempty"`
	// sshHostKey is the fingerprint of the key that the Mac's SSH server has to show, as
	// `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` prints it there. Nothing is sent to a Mac
	// that shows another one. Scaleway tells no keys, and each installation makes new ones.
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
	// privateNetworkVLAN is the tag of the private network at this host. Needed where the
	// operator's configuration has a private network.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4094
	PrivateNetworkVLAN int32 `json:"privateNetworkVLAN,omitempty"`
	// hostCPU in cores that the Node offers. Default: what the type of server has.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	HostCPU int32 `json:"hostCPU,omitempty"`
	// hostMemoryMB that the Node offers, in units of 2^20 bytes. Default: what the type has.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16777216
	HostMemoryMB int32 `json:"hostMemoryMB,omitempty"`
	// disableVMGC keeps machines that belong to no pod, as on hosts that build images.
	// +optional
	DisableVMGC bool `json:"disableVMGC,omitempty"`
}

// ScalewayAppleSiliconMachineStatus is what is known of a Mac.
type ScalewayAppleSiliconMachineStatus struct {
	HostStatus `json:",inline"`

	// serverID is the server's id at Scaleway. It is on record before a server of a pool is
	// named as this machine's.
	// +optional
	ServerID string `json:"serverID,omitempty"`
	// providerID of the host's Node: scw-applesilicon://ZONE/SERVER-ID.
	// +optional
	ProviderID string `json:"providerID,omitempty"`
	// sshUser is the user that Scaleway gives the Mac. It is logged in at the console and runs
	// the kubelet.
	// +optional
	SSHUser string `json:"sshUser,omitempty"`
	// orderedAt is when a server was ordered without its id being on record yet. While that is
	// not long ago, no other is ordered: the order may have been carried out.
	// +optional
	OrderedAt *metav1.Time `json:"orderedAt,omitempty"`
	// poolName is the name that a server of a pool had, and will have again.
	// +optional
	PoolName string `json:"poolName,omitempty"`
	// hostCPU and hostMemoryMB are what the type of server has.
	// +optional
	HostCPU int32 `json:"hostCPU,omitempty"`
	// hostMemoryMB in units of 2^20 bytes.
	// +optional
	HostMemoryMB int32 `json:"hostMemoryMB,omitempty"`
	// tartKubeletBinarySHA is the SHA-256 of the kubelet that was pushed last.
	// +optional
	TartKubeletBinarySHA string `json:"tartKubeletBinarySHA,omitempty"`
	// bootstrapRebootIssued says whether the server was restarted because its first boot
	// failed.
	// +optional
	BootstrapRebootIssued bool `json:"bootstrapRebootIssued,omitempty"`
	// wipeIssued says, on deletion and before another first boot, whether the server's disk is
	// being wiped.
	// +optional
	WipeIssued bool `json:"wipeIssued,omitempty"`
}

// ScalewayAppleSiliconMachine is a Mac of Scaleway's that carries machines under Tart.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=samm,categories=hyperfleet
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Fleet",type=string,JSONPath=`.spec.fleetName`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="Server",type=string,JSONPath=`.status.serverID`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="macOS",type=string,priority=1,JSONPath=`.status.osVersion`
// +kubebuilder:printcolumn:name="Hash",type=string,priority=1,JSONPath=`.status.hostConfigHash`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name must have at most 63 characters, for it is the host's and its Node's"
type ScalewayAppleSiliconMachine struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is which Mac is had.
	Spec ScalewayAppleSiliconMachineSpec `json:"spec"`
	// status is what is known of it.
	// +optional
	Status ScalewayAppleSiliconMachineStatus `json:"status,omitempty"`
}

// ScalewayAppleSiliconMachineList is a list of ScalewayAppleSiliconMachine.
//
// +kubebuilder:object:root=true
type ScalewayAppleSiliconMachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ScalewayAppleSiliconMachine `json:"items"`
}

// StatusConditions gives the conditions to whoever reports on the object.
func (m *ScalewayAppleSiliconMachine) StatusConditions() *[]metav1.Condition {
	return &m.Status.Conditions
}

// SetObservedGeneration notes the generation that the status speaks of.
func (m *ScalewayAppleSiliconMachine) SetObservedGeneration(generation int64) {
	m.Status.ObservedGeneration = generation
}

// Host gives what is known of the machine as a host of any kind.
func (m *ScalewayAppleSiliconMachine) Host() *HostStatus { return &m.Status.HostStatus }
