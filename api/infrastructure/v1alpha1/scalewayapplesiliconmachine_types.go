// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Keys of the Secret in credentialsSecretRef. They have the names of the environment variables of
// Scaleway's own tools
// (https://www.scaleway.com/en/docs/scaleway-cli/reference-content/cli-config-file/).
const (
	// ScalewayAccessKey is the access key of the API key.
	ScalewayAccessKey = "SCW_ACCESS_KEY"
	// ScalewaySecretKey is the secret key of the API key.
	ScalewaySecretKey = "SCW_SECRET_KEY" //nolint:gosec // G101: the name of a key, not a key
	// ScalewayProjectID is the ID of the servers' project.
	ScalewayProjectID = "SCW_DEFAULT_PROJECT_ID"
	// ScalewayAPIURL is the URL of the API. It is optional.
	ScalewayAPIURL = "SCW_API_URL"
)

// Annotations of a Mac with facts that the operator reads back if the status was lost.
const (
	// AnnotationServerName has the name of the Mac's server at Scaleway.
	AnnotationServerName = "infrastructure.hyperfleet.io/server-name"
	// AnnotationPoolName has the name that a server of a pool had before, as in status.poolName.
	AnnotationPoolName = "infrastructure.hyperfleet.io/pool-name"
)

// ScalewaySecretRef names a Secret in the object's own namespace.
type ScalewaySecretRef struct {
	// name is the name of the Secret. The Secret must have the keys SCW_ACCESS_KEY, SCW_SECRET_KEY and
	// SCW_DEFAULT_PROJECT_ID, and may have the key SCW_API_URL.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="name must be the name of a Secret"
	Name string `json:"name"`
}

// ScalewayAppleSiliconMachineSpec defines which Mac is used and the connection to it. The configuration
// that is pushed to the Mac is defined in the operator's configuration.
// +kubebuilder:validation:XValidation:rule="has(self.os) == has(oldSelf.os) && (!has(self.os) || self.os == oldSelf.os)",message="os cannot be changed: delete the machine and create a new one"
// +kubebuilder:validation:XValidation:rule="has(self.adoptPoolPrefix) == has(oldSelf.adoptPoolPrefix) && (!has(self.adoptPoolPrefix) || self.adoptPoolPrefix == oldSelf.adoptPoolPrefix)",message="adoptPoolPrefix cannot be changed: delete the machine and create a new one"
// +kubebuilder:validation:XValidation:rule="!(has(self.os) && has(self.adoptPoolPrefix))",message="os is only allowed for servers that are ordered, because servers of a pool already have an operating system: leave out os or adoptPoolPrefix"
type ScalewayAppleSiliconMachineSpec struct {
	SSHHostKeys `json:",inline"`

	// fleetName is the name of the host's HostFleet, in the host's namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="fleetName must be the name of a HostFleet"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="fleetName cannot be changed: delete the host and create it again in the other fleet"
	FleetName string `json:"fleetName"`
	// type is the type of the server, as Scaleway names it.
	// +optional
	// +kubebuilder:default=M4-S
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Z0-9]+(-[A-Z0-9]+)*$')",message="type must be a type of server such as M4-S"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="type cannot be changed: delete the machine and create a new one"
	Type string `json:"type,omitempty"`
	// zone is the zone of the server.
	// +optional
	// +kubebuilder:default=fr-par-1
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z]{2}-[a-z]{3}-[1-9]$')",message="zone must be a zone such as fr-par-1"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="zone cannot be changed: delete the machine and create a new one"
	Zone string `json:"zone,omitempty"`
	// os is the operating system with which the server is ordered, as Scaleway names it. Default: the
	// default of the type.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	OS string `json:"os,omitempty"`
	// adoptPoolPrefix adopts an existing server whose name begins with this prefix instead of ordering a
	// server. When the machine is deleted, the server is wiped and returned to the pool.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-zA-Z0-9][-._a-zA-Z0-9]*$') && !self.startsWith('hf-')",message="adoptPoolPrefix must be the beginning of server names (letters, digits, '-', '_' and '.') and must not begin with hf-, which is the prefix of machines"
	AdoptPoolPrefix string `json:"adoptPoolPrefix,omitempty"`
	// credentialsSecretRef names the Secret with the API key.
	CredentialsSecretRef ScalewaySecretRef `json:"credentialsSecretRef"`
	// sshKeySecretRef selects the private key to log in with, in OpenSSH or PEM format. The operator
	// registers its public key with the project before it orders a server.
	SSHKeySecretRef LocalSecretKeySelector `json:"sshKeySecretRef"`
	// kubeconfigSecretRef selects the kubeconfig with which the host's kubelet joins its cluster. It is
	// required if the fleet has no nodeCredentials.
	// +optional
	KubeconfigSecretRef LocalSecretKeySelector `json:"kubeconfigSecretRef,omitempty,omitzero"`
	// tailscaleAuthKeySecretRef selects the auth key with which the host joins the tailnet. It is
	// required if the operator's configuration enables a tailnet.
	// +optional
	TailscaleAuthKeySecretRef *LocalSecretKeySelector `json:"tailscaleAuthKeySecretRef,omitempty"`
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
	// sshPort is the port of the SSH server.
	// +optional
	// +kubebuilder:default=22
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	SSHPort int32 `json:"sshPort,omitempty"`
	// privateNetworkVLAN is the VLAN tag of the private network at this host. It is required if the
	// operator's configuration has a private network.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4094
	PrivateNetworkVLAN int32 `json:"privateNetworkVLAN,omitempty"`
	// hostCPU is the number of CPU cores that the Node offers. Default: the cores of the server type.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	HostCPU int32 `json:"hostCPU,omitempty"`
	// hostMemoryMB is the memory that the Node offers, in MiB. Default: the memory of the server type.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16777216
	HostMemoryMB int32 `json:"hostMemoryMB,omitempty"`
	// disableVMGC keeps VMs that belong to no pod, for example on hosts that build images.
	// +optional
	DisableVMGC bool `json:"disableVMGC,omitempty"`
}

// ScalewayAppleSiliconMachineStatus is the observed state of a Mac.
type ScalewayAppleSiliconMachineStatus struct {
	HostStatus `json:",inline"`

	// serverID is the ID of the server at Scaleway. For a server of a pool, it is recorded before the
	// server is renamed.
	// +optional
	ServerID string `json:"serverID,omitempty"`
	// providerID is the provider ID of the host's Node: scw-applesilicon://ZONE/SERVER-ID.
	// +optional
	ProviderID string `json:"providerID,omitempty"`
	// sshUser is the user that Scaleway has created on the Mac. It is logged in at the console and runs
	// the kubelet.
	// +optional
	SSHUser string `json:"sshUser,omitempty"`
	// orderedAt is the time at which a server was ordered. It is set while the ID of the server is not
	// recorded. For a while after this time the operator orders no other server, because the order may
	// have succeeded.
	// +optional
	OrderedAt *metav1.Time `json:"orderedAt,omitempty"`
	// poolName is the original name of a server of a pool. The server gets it back when it is returned.
	// +optional
	PoolName string `json:"poolName,omitempty"`
	// hostCPU is the number of CPU cores of the server type.
	// +optional
	HostCPU int32 `json:"hostCPU,omitempty"`
	// hostMemoryMB is the memory of the server type, in MiB.
	// +optional
	HostMemoryMB int32 `json:"hostMemoryMB,omitempty"`
	// tartKubeletBinarySHA is the SHA-256 of the kubelet that was last pushed.
	// +optional
	TartKubeletBinarySHA string `json:"tartKubeletBinarySHA,omitempty"`
	// bootstrapRebootIssued is true if the server was restarted because its first boot failed.
	// +optional
	BootstrapRebootIssued bool `json:"bootstrapRebootIssued,omitempty"`
	// wipeIssued is true, during deletion and before another first boot, if the server's disk is being
	// wiped.
	// +optional
	WipeIssued bool `json:"wipeIssued,omitempty"`
}

// ScalewayAppleSiliconMachine is a Mac at Scaleway that runs VMs with Tart.
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
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name must have at most 63 characters, because it is the host name and the name of the Node"
type ScalewayAppleSiliconMachine struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec defines which Mac is used and the connection to it.
	Spec ScalewayAppleSiliconMachineSpec `json:"spec"`
	// status is the observed state of the Mac.
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

// StatusConditions returns a pointer to the conditions, for kit/step.
func (m *ScalewayAppleSiliconMachine) StatusConditions() *[]metav1.Condition {
	return &m.Status.Conditions
}

// SetObservedGeneration records the generation that the status describes.
func (m *ScalewayAppleSiliconMachine) SetObservedGeneration(generation int64) {
	m.Status.ObservedGeneration = generation
}

// Host returns the part of the status that all kinds of hosts have.
func (m *ScalewayAppleSiliconMachine) Host() *HostStatus { return &m.Status.HostStatus }
