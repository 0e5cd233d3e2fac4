// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// FinalizerHost prevents the deletion of a host's object while the operator works on the host, and until
// the host is released as its kind requires.
const FinalizerHost = "infrastructure.hyperfleet.io/host"

// Annotations of a host with facts that the operator reads back if the host's status was lost. Each value
// begins with the name of the host.
const (
	// AnnotationSSHHostKey has the fingerprint in status.sshHostKey.
	AnnotationSSHHostKey = "infrastructure.hyperfleet.io/ssh-host-key"
	// AnnotationBootstrapped says whether a host has had its first boot.
	AnnotationBootstrapped = "infrastructure.hyperfleet.io/bootstrapped"
)

// Condition types of all kinds of hosts in addition to Ready.
const (
	// ConditionFleetFound is True if the host's HostFleet exists and is for hosts of this kind.
	ConditionFleetFound = "FleetFound"
	// ConditionProvisioned is True if there is a server that can be reached.
	ConditionProvisioned = "Provisioned"
	// ConditionAddressReached is True if the host was last reached at its own address. It is only
	// reported for a host with fallbackAddresses.
	ConditionAddressReached = "AddressReached"
	// ConditionHostKeyPinned is True if the key of the host's SSH server is recorded.
	ConditionHostKeyPinned = "HostKeyPinned"
	// ConditionBootstrapped is True if the first boot of the host is done.
	ConditionBootstrapped = "Bootstrapped"
	// ConditionConverged is True if the host has the configuration of its fleet.
	ConditionConverged = "Converged"
	// ConditionIntact is True if the last probe of the host's parts ran to its end, whatever it found, or if probes are
	// disabled. It is False if the last probe did not run to its end, or if the host needs a credential for another server or
	// CA. If a probe finds lost parts, Converged is False until the operator has pushed them again.
	ConditionIntact = "Intact"
	// ConditionNodeCredentialCurrent is True if the credential that the operator created for the host's
	// Node needs no renewal yet.
	ConditionNodeCredentialCurrent = "NodeCredentialCurrent" //nolint:gosec // a condition type, not a credential
	// ConditionNodeCredentialRemoved is True, during deletion, if that credential is removed from the
	// host.
	ConditionNodeCredentialRemoved = "NodeCredentialRemoved" //nolint:gosec // a condition type, not a credential
	// ConditionReleased is True, during deletion, if the host is released.
	ConditionReleased = "Released"
)

// Reasons for which a host has failed and needs a person.
const (
	// FailureUpdateExceededRetries means that the host failed too many times to apply a configuration.
	FailureUpdateExceededRetries = "UpdateExceededRetries"
	// FailureBootstrapExceededRetries means that the first boot of the host failed too many times.
	FailureBootstrapExceededRetries = "BootstrapExceededRetries"
	// FailureHostKeyChanged means that the host has another SSH key than the pinned one.
	FailureHostKeyChanged = "HostKeyChanged"
	// FailureHostKeyLost means that the status of the host was lost, and that nothing else has the pinned key.
	FailureHostKeyLost = "HostKeyLost"
)

// ReasonHostKeyUnknown means that no key of the host is known and that sshHostKeyChecking does not allow
// to trust an unknown key.
const ReasonHostKeyUnknown = "HostKeyUnknown"

// HostPhase is the phase of a host's lifecycle.
//
// +kubebuilder:validation:Enum=Pending;Adopting;Provisioning;Bootstrapping;Ready;Updating;Deleting;Failed
type HostPhase string

// Phases of a host.
const (
	// HostPending means that nothing has been done for the host yet.
	HostPending HostPhase = "Pending"
	// HostAdopting means that the operator takes over an existing server.
	HostAdopting HostPhase = "Adopting"
	// HostProvisioning means that the host waits for a server.
	HostProvisioning HostPhase = "Provisioning"
	// HostBootstrapping means that the first boot is running.
	HostBootstrapping HostPhase = "Bootstrapping"
	// HostReady means that the host runs machines. It stays Ready while its configuration is updated.
	HostReady HostPhase = "Ready"
	// HostUpdating means that the operating system is being updated. The host runs no machines meanwhile.
	HostUpdating HostPhase = "Updating"
	// HostDeleting means that the host is being released.
	HostDeleting HostPhase = "Deleting"
	// HostFailed means that the host needs a person or another configuration. failureReason says why.
	HostFailed HostPhase = "Failed"
)

// SSHHostKeyChecking defines how the operator treats a host whose key is not known.
//
// +kubebuilder:validation:Enum=Strict;AcceptNew
type SSHHostKeyChecking string

// Values of SSHHostKeyChecking.
const (
	// HostKeyStrict sends nothing to the host.
	HostKeyStrict SSHHostKeyChecking = "Strict"
	// HostKeyAcceptNew trusts the key that the host shows first, and no other key afterwards.
	HostKeyAcceptNew SSHHostKeyChecking = "AcceptNew"
)

// SSHCertAuthority is the public key of a certificate authority that certifies host keys, as a line of
// an OpenSSH .pub file.
//
// +kubebuilder:validation:MaxLength=2048
// +kubebuilder:validation:XValidation:rule="self.matches('^(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(256|384|521)|sk-(ssh-ed25519|ecdsa-sha2-nistp256)@openssh[.]com) [A-Za-z0-9+/]+={0,2}( [^[:cntrl:]]*)?$')",message="sshHostCertAuthorities must be public keys: a type such as ssh-ed25519, a space and the key, as in a .pub file of ssh-keygen"
type SSHCertAuthority string

// SSHHostKeys says how the operator verifies the key of a host's SSH server.
type SSHHostKeys struct {
	// sshHostKey is the fingerprint of the key of the host's SSH server, as `ssh-keygen -lf
	// /etc/ssh/ssh_host_ed25519_key.pub` prints it on the host. The operator sends nothing to a host
	// that shows another key. Each installation of a host creates a new key.
	// +optional
	// +kubebuilder:validation:MaxLength=50
	// +kubebuilder:validation:XValidation:rule="self.matches('^SHA256:[A-Za-z0-9+/]{43}$')",message="sshHostKey must be a fingerprint: SHA256: and 43 characters, as ssh-keygen -l prints it"
	SSHHostKey string `json:"sshHostKey,omitempty"`
	// sshHostCertAuthorities are the public keys of the certificate authorities that certify host keys,
	// as after @cert-authority in OpenSSH's known_hosts. The operator sends nothing to a host unless the
	// host shows the key in sshHostKey or a valid certificate of one of these authorities for the dialed
	// address.
	// +optional
	// +kubebuilder:validation:MaxItems=4
	// +listType=atomic
	SSHHostCertAuthorities []SSHCertAuthority `json:"sshHostCertAuthorities,omitempty"`
	// sshHostKeyChecking defines how the operator treats a host that neither sshHostKey nor
	// sshHostCertAuthorities identify. With Strict, the default, the operator sends nothing to the host.
	// With AcceptNew it trusts the key that the host shows first, as with
	// StrictHostKeyChecking=accept-new of OpenSSH. Everyone who can answer at the address at that time
	// can choose the key. A key that is recorded in the status stays trusted.
	// +optional
	SSHHostKeyChecking SSHHostKeyChecking `json:"sshHostKeyChecking,omitempty"`
}

// LocalSecretKeySelector selects a key of a Secret in the object's own namespace.
type LocalSecretKeySelector struct {
	// name is the name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="name must be the name of a Secret: lower-case letters, digits, '-' and '.'"
	Name string `json:"name"`
	// key is the key in the Secret's data.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[-._a-zA-Z0-9]+$')",message="key must be a key of a Secret: letters, digits, '-', '_' and '.' only"
	Key string `json:"key"`
}

// HostAddress is an address of a host.
type HostAddress struct {
	// type is the type of the address: InternalIP, ExternalIP or Hostname.
	Type string `json:"type"`
	// address is the IP address or the name.
	Address string `json:"address"`
}

// HostPart is the digest of one part of a host's configuration.
type HostPart struct {
	// label is the name of the part.
	Label string `json:"label"`
	// sha256 is the SHA-256 of everything that was pushed for the part, in hexadecimal.
	SHA256 string `json:"sha256"`
}

// HostNodeCredential is a client certificate of a host's Node.
type HostNodeCredential struct {
	// from is the start of the certificate's validity.
	From metav1.Time `json:"from"`
	// until is the end of the certificate's validity.
	Until metav1.Time `json:"until"`
	// cluster is the digest of the server address and the CA with which the host joins its cluster. If the
	// kubeconfig of the fleet has others, the operator issues another certificate.
	// +optional
	Cluster string `json:"cluster,omitempty"`
	// removalStartedAt is the time, during deletion, at which the removal of the certificate from the
	// host began.
	// +optional
	RemovalStartedAt *metav1.Time `json:"removalStartedAt,omitempty"`
	// removedAt is the time at which the certificate was removed from the host.
	// +optional
	RemovedAt *metav1.Time `json:"removedAt,omitempty"`
}

// HostPush is a push that has started and whose end is not recorded yet.
type HostPush struct {
	// permit is the number of the permit for the push. It is 0 for a first boot, which needs no permit.
	// +optional
	Permit int64 `json:"permit,omitempty"`
	// hash is the digest of the configuration that is pushed.
	Hash string `json:"hash"`
	// what is the operation: FirstBoot, Update, Repair or OSUpdate.
	What string `json:"what"`
	// started is the time at which the push first started.
	Started metav1.Time `json:"started"`
}

// HostOSUpdate is an update of a host's operating system that has started. It ends when the Node is in
// service again.
type HostOSUpdate struct {
	// version is the version that the host is updated to.
	Version string `json:"version"`
	// startedAt is the time at which the update began.
	StartedAt metav1.Time `json:"startedAt"`
	// label is the name of the update on the host. It is determined before the Node is drained.
	// +optional
	Label string `json:"label,omitempty"`
	// drain is the state of the drain of the host's Node.
	// +optional
	Drain *NodeDrainStatus `json:"drain,omitempty"`
	// installStartedAt is the time at which the installation began. The timeout of the update is measured
	// from here.
	// +optional
	InstallStartedAt *metav1.Time `json:"installStartedAt,omitempty"`
	// progress is the last progress that the host reported.
	// +optional
	Progress string `json:"progress,omitempty"`
	// awaySince is the time since which the host cannot be reached, for example because it restarts.
	// +optional
	AwaySince *metav1.Time `json:"awaySince,omitempty"`
	// endedAt is the time at which the update ended, with or without success. After that, only the Node
	// has to be put back into service.
	// +optional
	EndedAt *metav1.Time `json:"endedAt,omitempty"`
	// reason is the reason of a failure in one word. It is empty if the update has not failed.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message describes the failure.
	// +optional
	Message string `json:"message,omitempty"`
}

// HostStatus is the observed state of a host of any kind.
type HostStatus struct {
	// observedGeneration is the generation of the spec that the status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// phase is the phase of the host's lifecycle.
	// +optional
	Phase HostPhase `json:"phase,omitempty"`
	// ready is true if the host runs machines.
	// +optional
	Ready bool `json:"ready,omitempty"`
	// addresses are the addresses of the host.
	// +optional
	Addresses []HostAddress `json:"addresses,omitempty"`
	// sshHostKey is the SHA-256 fingerprint of the host's key, pinned when it was first seen. The
	// operator rejects a host with another key unless spec.sshHostCertAuthorities certify the key. If the
	// host was reinstalled, clear this field.
	// +optional
	SSHHostKey string `json:"sshHostKey,omitempty"`
	// bootstrapped is true if the first boot of the host is done.
	// +optional
	Bootstrapped bool `json:"bootstrapped,omitempty"`
	// bootstrapAttempts is the number of failed first boots.
	// +optional
	BootstrapAttempts int32 `json:"bootstrapAttempts,omitempty"`
	// hostConfigHash is the digest of the configuration that was pushed completely. It is removed when a
	// push begins and set when a push succeeds. To push everything again, clear this field and parts.
	// +optional
	HostConfigHash string `json:"hostConfigHash,omitempty"`
	// parts are the digests of the pushed parts, including values that are specific to this host.
	// +optional
	Parts []HostPart `json:"parts,omitempty"`
	// failedHostConfigHash is the digest of the configuration that the host last failed to apply,
	// followed by +macos-VERSION if the fleet sets macOS. For another configuration, updateAttempts
	// starts at 0.
	// +optional
	FailedHostConfigHash string `json:"failedHostConfigHash,omitempty"`
	// updateAttempts is the number of failed pushes of failedHostConfigHash.
	// +optional
	UpdateAttempts int32 `json:"updateAttempts,omitempty"`
	// lastUpdateFailureTime is the time of the last failed push.
	// +optional
	LastUpdateFailureTime *metav1.Time `json:"lastUpdateFailureTime,omitempty"`
	// unreachableSince is the time since which the host is unreachable. It is absent while the host can
	// be reached.
	// +optional
	UnreachableSince *metav1.Time `json:"unreachableSince,omitempty"`
	// lastContactTime is the time of the last attempt to reach the host.
	// +optional
	LastContactTime *metav1.Time `json:"lastContactTime,omitempty"`
	// contactAddress is the address at which the host was last reached, as host:port.
	// +optional
	ContactAddress string `json:"contactAddress,omitempty"`
	// contactReason is the reason for which the host could not be reached at the last attempt, in one
	// word such as Unreachable, AuthRefused or SecretNotFound. contactMessage describes it.
	// +optional
	ContactReason string `json:"contactReason,omitempty"`
	// contactMessage describes why the host could not be reached at the last attempt.
	// +optional
	ContactMessage string `json:"contactMessage,omitempty"`
	// contactAttempts is the number of consecutive failed attempts to reach the host.
	// +optional
	ContactAttempts int32 `json:"contactAttempts,omitempty"`
	// lastProbeTime is the time at which all parts were last checked.
	// +optional
	LastProbeTime *metav1.Time `json:"lastProbeTime,omitempty"`
	// lostParts are the labels of the parts that were changed or removed on the host.
	// +optional
	LostParts []string `json:"lostParts,omitempty"`
	// push is the push that is running.
	// +optional
	Push *HostPush `json:"push,omitempty"`
	// lastPermit is the number of the last used permit.
	// +optional
	LastPermit int64 `json:"lastPermit,omitempty"`
	// osVersion is the version of the host's operating system, if the fleet sets one.
	// +optional
	OSVersion string `json:"osVersion,omitempty"`
	// osUpdate is the update of the operating system that is running.
	// +optional
	OSUpdate *HostOSUpdate `json:"osUpdate,omitempty"`
	// nodeCredential is the credential with which the host joins its cluster, if the fleet creates it. To
	// create another one, clear this field.
	// +optional
	NodeCredential *HostNodeCredential `json:"nodeCredential,omitempty"`
	// drain is the state of the drain of the host's Node. It is empty before the drain begins.
	// +optional
	Drain *NodeDrainStatus `json:"drain,omitempty"`
	// failureReason is the reason for which the host has failed, in one word. The operator does not push
	// to the host until this field is cleared or the fleet has another configuration than the failed one.
	// +optional
	FailureReason string `json:"failureReason,omitempty"`
	// failureMessage describes the failure.
	// +optional
	FailureMessage string `json:"failureMessage,omitempty"`
	// conditions are the conditions of the host.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
