// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// FinalizerHost keeps a host's object until nothing of ours is at work on it and its kind
// has given it back.
const FinalizerHost = "infrastructure.hyperfleet.io/host"

// Conditions of every kind of host, beside Ready.
const (
	// ConditionFleetFound tells whether the host's HostFleet is there and of its kind.
	ConditionFleetFound = "FleetFound"
	// ConditionProvisioned tells whether there is a machine that can be reached.
	ConditionProvisioned = "Provisioned"
	// ConditionAddressReached tells, of a host with fallbackAddresses, whether it was reached at
	// its own address last.
	ConditionAddressReached = "AddressReached"
	// ConditionHostKeyPinned tells whether the key of the host's SSH server is on record.
	ConditionHostKeyPinned = "HostKeyPinned"
	// ConditionBootstrapped tells whether the host has had its first boot.
	ConditionBootstrapped = "Bootstrapped"
	// ConditionConverged tells whether the host has the configuration of its fleet.
	ConditionConverged = "Converged"
	// ConditionIntact tells whether the host still is as it was left.
	ConditionIntact = "Intact"
	// ConditionNodeCredentialCurrent tells whether the credential of the host's Node that the
	// operator made needs no other one yet.
	ConditionNodeCredentialCurrent = "NodeCredentialCurrent" //nolint:gosec // a condition
	// ConditionNodeCredentialRemoved tells, on deletion, whether that is off the host.
	ConditionNodeCredentialRemoved = "NodeCredentialRemoved" //nolint:gosec // a condition
	// ConditionReleased tells, on deletion, whether the host has been given back.
	ConditionReleased = "Released"
)

// Reasons for which a host has failed for good.
const (
	// FailureUpdateExceededRetries is a host that refused a configuration too many times.
	FailureUpdateExceededRetries = "UpdateExceededRetries"
	// FailureBootstrapExceededRetries is a host whose first boot failed too many times.
	FailureBootstrapExceededRetries = "BootstrapExceededRetries"
	// FailureHostKeyChanged is a host that is not the one that was pinned.
	FailureHostKeyChanged = "HostKeyChanged"
)

// ReasonHostKeyUnknown is a host of whose key nothing is known, and none is to be trusted unseen.
const ReasonHostKeyUnknown = "HostKeyUnknown"

// HostPhase says in one word where a host is in its life.
//
// +kubebuilder:validation:Enum=Pending;Adopting;Provisioning;Bootstrapping;Ready;Updating;Deleting;Failed
type HostPhase string

// The phases.
const (
	// HostPending has nothing yet.
	HostPending HostPhase = "Pending"
	// HostAdopting takes over a machine that is there.
	HostAdopting HostPhase = "Adopting"
	// HostProvisioning waits for a machine.
	HostProvisioning HostPhase = "Provisioning"
	// HostBootstrapping has its first boot.
	HostBootstrapping HostPhase = "Bootstrapping"
	// HostReady carries machines. It stays Ready while its configuration is renewed.
	HostReady HostPhase = "Ready"
	// HostUpdating has its operating system updated, and carries no machines meanwhile.
	HostUpdating HostPhase = "Updating"
	// HostDeleting is being given back.
	HostDeleting HostPhase = "Deleting"
	// HostFailed needs a person, or another configuration; failureReason says why.
	HostFailed HostPhase = "Failed"
)

// SSHHostKeyChecking says what is done with a host whose key nobody has told.
//
// +kubebuilder:validation:Enum=Strict;AcceptNew
type SSHHostKeyChecking string

// What is done with it.
const (
	// HostKeyStrict sends it nothing.
	HostKeyStrict SSHHostKeyChecking = "Strict"
	// HostKeyAcceptNew trusts the key that it shows first, and no other afterwards.
	HostKeyAcceptNew SSHHostKeyChecking = "AcceptNew"
)

// SSHCertAuthority is the public key of an authority that certifies the keys of hosts, as a line of
// OpenSSH's files .pub.
//
// +kubebuilder:validation:MaxLength=2048
// +kubebuilder:validation:XValidation:rule="self.matches('^(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(256|384|521)|sk-(ssh-ed25519|ecdsa-sha2-nistp256)@openssh[.]com) [A-Za-z0-9+/]+={0,2}( [^[:cntrl:]]*)?$')",message="sshHostCertAuthorities must be public keys: a type such as ssh-ed25519, and the key, as ssh-keygen writes them to a file .pub"
type SSHCertAuthority string

// LocalSecretKeySelector picks one key of a Secret in the object's own namespace.
type LocalSecretKeySelector struct {
	// name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="name must be the name of a Secret: lower-case letters, digits, '-' and '.'"
	Name string `json:"name"`
	// key inside the Secret's data.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[-._a-zA-Z0-9]+$')",message="key must be a key of a Secret: letters, digits, '-', '_' and '.' only"
	Key string `json:"key"`
}

// HostAddress is one address of a host.
type HostAddress struct {
	// type of the address: InternalIP, ExternalIP, Hostname.
	Type string `json:"type"`
	// address as text.
	Address string `json:"address"`
}

// HostPart is the digest of one part that a host has.
type HostPart struct {
	// label of the part.
	Label string `json:"label"`
	// sha256 of all that was pushed of it, in hexadecimal.
	SHA256 string `json:"sha256"`
}

// HostNodeCredential is a client certificate of a host's Node.
type HostNodeCredential struct {
	// from and until it holds.
	From metav1.Time `json:"from"`
	// until it holds.
	Until metav1.Time `json:"until"`
	// removalStartedAt and removedAt are, on deletion, when its removal from the host began and
	// ended.
	// +optional
	RemovalStartedAt *metav1.Time `json:"removalStartedAt,omitempty"`
	// removedAt is when it was off the host.
	// +optional
	RemovedAt *metav1.Time `json:"removedAt,omitempty"`
}

// HostPush is a push that has begun and that nobody has seen the end of.
type HostPush struct {
	// permit under which it runs; 0 for a first boot, which needs none.
	// +optional
	Permit int64 `json:"permit,omitempty"`
	// hash of the configuration that is pushed.
	Hash string `json:"hash"`
	// what is done: FirstBoot, Update, Repair or OSUpdate.
	What string `json:"what"`
	// started is when it began first.
	Started metav1.Time `json:"started"`
}

// HostOSUpdate is an update of a host's operating system that has begun. It ends when its Node is
// in service again.
type HostOSUpdate struct {
	// version that the host is updated to.
	Version string `json:"version"`
	// startedAt is when it began.
	StartedAt metav1.Time `json:"startedAt"`
	// label is the update's name at the host, which is looked for before the Node is drained.
	// +optional
	Label string `json:"label,omitempty"`
	// drain is how the draining of the host's Node went.
	// +optional
	Drain *NodeDrainStatus `json:"drain,omitempty"`
	// installStartedAt is when the installation was begun; its time is counted from here.
	// +optional
	InstallStartedAt *metav1.Time `json:"installStartedAt,omitempty"`
	// progress is what the host said last.
	// +optional
	Progress string `json:"progress,omitempty"`
	// awaySince is since when the host can't be reached, as it can't while it restarts.
	// +optional
	AwaySince *metav1.Time `json:"awaySince,omitempty"`
	// endedAt is when it was over, in one way or another. The Node's return is left then.
	// +optional
	EndedAt *metav1.Time `json:"endedAt,omitempty"`
	// reason says in one word why it failed; empty for one that has not.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message says more.
	// +optional
	Message string `json:"message,omitempty"`
}

// HostStatus is what is known of a host of any kind.
type HostStatus struct {
	// observedGeneration is the generation of the spec that the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// phase of the host, in one word.
	// +optional
	Phase HostPhase `json:"phase,omitempty"`
	// ready says whether the host carries machines.
	// +optional
	Ready bool `json:"ready,omitempty"`
	// addresses of the host.
	// +optional
	Addresses []HostAddress `json:"addresses,omitempty"`
	// sshHostKey is the SHA-256 fingerprint of the host's key, pinned when it was seen
	// first. A host with another key is refused, unless spec.sshHostCertAuthorities certify it;
	// clear this field for one that was made anew.
	// +optional
	SSHHostKey string `json:"sshHostKey,omitempty"`
	// bootstrapped says whether the host has had its first boot.
	// +optional
	Bootstrapped bool `json:"bootstrapped,omitempty"`
	// bootstrapAttempts counts first boots that the host refused.
	// +optional
	BootstrapAttempts int32 `json:"bootstrapAttempts,omitempty"`
	// hostConfigHash is the digest of the configuration that was pushed whole. It is absent
	// from when a push begins until one has succeeded. Clear it, and parts, to have
	// everything pushed again.
	// +optional
	HostConfigHash string `json:"hostConfigHash,omitempty"`
	// parts are the digests of what was pushed, part by part, values of this host included.
	// +optional
	Parts []HostPart `json:"parts,omitempty"`
	// failedHostConfigHash is the digest of the configuration that the host refused last, with
	// +macos-VERSION where its fleet names one, and updateAttempts is how many times it did.
	// Another one starts anew.
	// +optional
	FailedHostConfigHash string `json:"failedHostConfigHash,omitempty"`
	// updateAttempts counts pushes of failedHostConfigHash that the host refused.
	// +optional
	UpdateAttempts int32 `json:"updateAttempts,omitempty"`
	// lastUpdateFailureTime is when the host refused a push last.
	// +optional
	LastUpdateFailureTime *metav1.Time `json:"lastUpdateFailureTime,omitempty"`
	// unreachableSince is when the host could be reached no more; absent while it can be.
	// +optional
	UnreachableSince *metav1.Time `json:"unreachableSince,omitempty"`
	// lastContactTime is when the host was tried to be reached last.
	// +optional
	LastContactTime *metav1.Time `json:"lastContactTime,omitempty"`
	// contactAddress is where the host was reached last, as host:port.
	// +optional
	ContactAddress string `json:"contactAddress,omitempty"`
	// contactReason says in one word why the host could not be reached last, such as
	// Unreachable, AuthRefused or SecretNotFound; contactMessage says it in words.
	// +optional
	ContactReason string `json:"contactReason,omitempty"`
	// contactMessage says why the host could not be reached last.
	// +optional
	ContactMessage string `json:"contactMessage,omitempty"`
	// contactAttempts counts the times that the host could not be reached, in a row.
	// +optional
	ContactAttempts int32 `json:"contactAttempts,omitempty"`
	// lastProbeTime is when all parts were looked at last.
	// +optional
	LastProbeTime *metav1.Time `json:"lastProbeTime,omitempty"`
	// lostParts are the labels of parts that were found not to be as they were left.
	// +optional
	LostParts []string `json:"lostParts,omitempty"`
	// push is the push that runs.
	// +optional
	Push *HostPush `json:"push,omitempty"`
	// lastPermit is the number of the last permit that was used up.
	// +optional
	LastPermit int64 `json:"lastPermit,omitempty"`
	// osVersion of the host's operating system, where its fleet names one.
	// +optional
	OSVersion string `json:"osVersion,omitempty"`
	// osUpdate is the update of the operating system that runs.
	// +optional
	OSUpdate *HostOSUpdate `json:"osUpdate,omitempty"`
	// nodeCredential is what the host was given to join its cluster, where its fleet makes that.
	// Clear it to have another one made.
	// +optional
	NodeCredential *HostNodeCredential `json:"nodeCredential,omitempty"`
	// drain is how the draining of the host's Node went; empty before it begins.
	// +optional
	Drain *NodeDrainStatus `json:"drain,omitempty"`
	// failureReason is why the host has failed for good, in one word. It is left alone until
	// this field is cleared, or its fleet has another configuration than the one refused.
	// +optional
	FailureReason string `json:"failureReason,omitempty"`
	// failureMessage says it in words.
	// +optional
	FailureMessage string `json:"failureMessage,omitempty"`
	// conditions of the host.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
