// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MachineClaimPhase summarizes the state of a claim. It is computed from the other fields of the status.
// +kubebuilder:validation:Enum=Pending;Provisioning;Bootstrapping;Ready;Draining;Terminating;Failed
type MachineClaimPhase string

// Phases of a MachineClaim.
const (
	// MachineClaimPending means that the claim waits for its template, its cluster or free capacity.
	MachineClaimPending MachineClaimPhase = "Pending"
	// MachineClaimProvisioning means that the VM is being created.
	MachineClaimProvisioning MachineClaimPhase = "Provisioning"
	// MachineClaimBootstrapping means that the VM runs and its runner is not online yet.
	MachineClaimBootstrapping MachineClaimPhase = "Bootstrapping"
	// MachineClaimReady means that the runner is online or runs a job.
	MachineClaimReady MachineClaimPhase = "Ready"
	// MachineClaimDraining means that the runner accepts no more jobs while the VM still runs.
	MachineClaimDraining MachineClaimPhase = "Draining"
	// MachineClaimTerminating means that the VM, the runner and the cloud-init ISO are being deleted.
	MachineClaimTerminating MachineClaimPhase = "Terminating"
	// MachineClaimFailed means that the claim cannot continue. Its message says why.
	MachineClaimFailed MachineClaimPhase = "Failed"
)

// Reasons of conditions by which the areas communicate.
const (
	// ReasonAddressesReadBack of AddressAllocated means that the addresses are those that the machine already had.
	ReasonAddressesReadBack = "AddressesReadBack"
	// ReasonAddressesUnknown of Placed means that the machine exists already, with unknown addresses.
	ReasonAddressesUnknown = "AddressesUnknown"
)

// Condition types of a MachineClaim, in the order in which they become True.
const (
	ConditionTemplateResolved = "TemplateResolved"
	// ConditionAddressAllocated is True if the machine's addresses from its template's pool are in
	// networkInfo. It is only reported if the template has a pool.
	ConditionAddressAllocated = "AddressAllocated"
	ConditionPlaced           = "Placed"
	ConditionCredentialed     = "Credentialed" //nolint:gosec // a condition type, not a credential
	ConditionProvisioned      = "Provisioned"
	// ConditionIdentityReady is True if the identity provider accepts the operator. It is checked before
	// a machine is created, and only reported if the template has an attestation.
	ConditionIdentityReady = "IdentityReady"
	// ConditionAttested is True if the machine has proven its identity. It is only reported if the
	// template has an attestation.
	ConditionAttested     = "Attested"
	ConditionBootstrapped = "Bootstrapped"
	ConditionVMCleanedUp  = "VMCleanedUp"
)

// EndReasonVMNotDeleted means that the VM still exists after the deletion of its claim, because the VM no
// longer has the claim's ownership record.
const EndReasonVMNotDeleted = "VMNotDeleted"

// EndReasonNoJob means that the machine was created for a job that must not run any more.
const EndReasonNoJob = "NoJob"

// MachineClaimSpec is the desired machine. It is immutable except for standby, because the VM of a claim
// runs once. Durations are compared by their length, so a program may write 1h as 1h0m0s.
// +kubebuilder:validation:XValidation:rule="self.templateRef == oldSelf.templateRef && self.workloadConfig == oldSelf.workloadConfig && has(self.runnerPoolRef) == has(oldSelf.runnerPoolRef) && (!has(self.runnerPoolRef) || self.runnerPoolRef == oldSelf.runnerPoolRef) && has(self.lifecycle) == has(oldSelf.lifecycle) && has(self.placement) == has(oldSelf.placement) && (!has(self.placement) || self.placement == oldSelf.placement) && has(self.size) == has(oldSelf.size) && (!has(self.size) || self.size == oldSelf.size)",message="a MachineClaim cannot be changed: delete it and create a new one"
// +kubebuilder:validation:XValidation:rule="!has(self.standby) || !self.standby || (has(oldSelf.standby) && oldSelf.standby)",message="standby cannot be changed to true, because the machine may have started: create a new MachineClaim with standby"
type MachineClaimSpec struct {
	// templateRef names the HypervisorMachineTemplate in the same namespace.
	TemplateRef LocalObjectReference `json:"templateRef"`
	// runnerPoolRef names the RunnerPool that created the claim. It is empty if no pool created the
	// claim.
	// +optional
	RunnerPoolRef *LocalObjectReference `json:"runnerPoolRef,omitempty"`
	// workloadConfig defines the CI platform and the runner of this machine.
	WorkloadConfig Workload `json:"workloadConfig"`
	// standby creates the machine without starting it. When standby is changed to false, the machine gets
	// its credential and starts. It cannot be changed back to true.
	// +optional
	Standby bool `json:"standby,omitempty"`
	// size overrides the size in the template.
	// +optional
	Size *MachineSize `json:"size,omitempty"`
	// placement is the strategy that selects the node: Spread or Pack. Default: Spread.
	// +optional
	// +kubebuilder:validation:Enum=Spread;Pack
	Placement string `json:"placement,omitempty"`
	// lifecycle holds the timeouts of the machine.
	// +optional
	// +kubebuilder:default={}
	// +kubebuilder:validation:XValidation:rule="(has(self.maxLifetime) ? has(oldSelf.maxLifetime) && duration(self.maxLifetime) == duration(oldSelf.maxLifetime) : !has(oldSelf.maxLifetime)) && (has(self.idleTimeout) ? has(oldSelf.idleTimeout) && duration(self.idleTimeout) == duration(oldSelf.idleTimeout) : !has(oldSelf.idleTimeout)) && (has(self.jobTimeout) ? has(oldSelf.jobTimeout) && duration(self.jobTimeout) == duration(oldSelf.jobTimeout) : !has(oldSelf.jobTimeout)) && (has(self.bootstrapTimeout) ? has(oldSelf.bootstrapTimeout) && duration(self.bootstrapTimeout) == duration(oldSelf.bootstrapTimeout) : !has(oldSelf.bootstrapTimeout))",message="a MachineClaim cannot be changed: delete it and create a new one"
	Lifecycle *Lifecycle `json:"lifecycle,omitempty"`
}

// MachineSize is the size that a job has requested with its labels. It overrides the size in the
// template.
type MachineSize struct {
	// labels are the labels with which the job requested the size, and with labelMatch Any the job's other
	// labels. The machine's runner also has these labels.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	Labels []string `json:"labels,omitempty"`
	// cpu is the number of CPU cores.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	CPU *int32 `json:"cpu,omitempty"`
	// memory is the amount of memory.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int || string(self).matches('^[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$')",message="memory must be a quantity: write a number and the unit Mi, Gi or Ti, such as 8Gi"
	Memory *resource.Quantity `json:"memory,omitempty"`
	// disk is the size of the first disk.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int || string(self).matches('^[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$')",message="disk must be a quantity: write a number and the unit Mi, Gi or Ti, such as 50Gi"
	Disk *resource.Quantity `json:"disk,omitempty"`
}

// VMReference names a machine on its hypervisor.
type VMReference struct {
	// hypervisorCluster is the name of the HypervisorCluster.
	HypervisorCluster string `json:"hypervisorCluster"`
	// vmId is the ID of the VM on the hypervisor. On Proxmox VE it is the VMID. It is recorded before the
	// VM is created.
	VMID string `json:"vmId"`
	// operatorUID is the UID of the operator in the VM's ownership record.
	// +optional
	OperatorUID string `json:"operatorUID,omitempty"`
	// node is the node on which the VM was last seen.
	// +optional
	Node string `json:"node,omitempty"`
	// resources are the resources with which the VM was placed. Quotas count them.
	// +optional
	Resources *PlacedResources `json:"resources,omitempty"`
}

// PlacedResources are the resources of a machine that a quota counts.
type PlacedResources struct {
	// cpu is the number of CPU cores.
	CPU int32 `json:"cpu"`
	// memory is the amount of memory.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$`
	Memory resource.Quantity `json:"memory"`
}

// NetworkInfo is the observed network configuration of a machine.
type NetworkInfo struct {
	// hostname is the host name of the machine.
	// +optional
	Hostname string `json:"hostname,omitempty"`
	// fqdn is the fully qualified domain name of the machine.
	// +optional
	FQDN string `json:"fqdn,omitempty"`
	// ipAddress is the first address that the guest reports.
	// +optional
	IPAddress string `json:"ipAddress,omitempty"`
	// macAddress is the MAC address of the first network device.
	// +optional
	MACAddress string `json:"macAddress,omitempty"`
	// addresses are the addresses, with their prefix lengths, that were allocated from the template's
	// pool, IPv4 first. They are recorded before the machine is created. No other machine gets them until
	// this machine is deleted.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=49
	Addresses []string `json:"addresses,omitempty"`
	// addressNetwork is the network of addresses: CLUSTER:BRIDGE/vlanN, or on KubeVirt the
	// NetworkAttachmentDefinition. BRIDGE is empty if only the hypervisor knows it. On libvirt hosts
	// without a bridge, it is network:NAME or mode:user.
	// +optional
	AddressNetwork string `json:"addressNetwork,omitempty"`
}

// BootstrapInfo is the observed state of a machine's runner. It contains no credential.
type BootstrapInfo struct {
	// runnerName is the name of the runner on the CI platform.
	// +optional
	RunnerName string `json:"runnerName,omitempty"`
	// runnerId is the ID of the runner on the CI platform.
	// +optional
	RunnerID string `json:"runnerId,omitempty"`
	// guestPhase is the last phase that the bootstrap service reported.
	// +optional
	GuestPhase string `json:"guestPhase,omitempty"`
	// guestMessage is the message that was reported with guestPhase.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	GuestMessage string `json:"guestMessage,omitempty"`
	// guestReason is the reason for which the machine ended, in one word. It is reported with guestPhase
	// Finished or Failed.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	GuestReason string `json:"guestReason,omitempty"`
	// runnerVersion is the release of the runner that the bootstrap service reported.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	RunnerVersion string `json:"runnerVersion,omitempty"`
	// reportedAt is the time at which guestPhase was reported.
	// +optional
	ReportedAt *metav1.MicroTime `json:"reportedAt,omitempty"`
	// job is the name of the RunnerJob that the runner has taken.
	// +optional
	Job string `json:"job,omitempty"`
	// boundJob is the name of the RunnerJob for which the runner was created, if the platform binds
	// runners to jobs (Buildkite, Forgejo, generic). It is recorded before the credential is created.
	// +optional
	BoundJob string `json:"boundJob,omitempty"`
	// jobResult is the result of the job as the bootstrap service reported it, in the platform's term.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	JobResult string `json:"jobResult,omitempty"`
	// expiresAt is the time at which the machine's credential expires.
	// +optional
	ExpiresAt *metav1.Time `json:"expiresAt,omitempty"`
	// handover records the use of the machine's claim code with bootstrap method callback. It is absent
	// with other methods.
	// +optional
	Handover *CredentialHandover `json:"handover,omitempty"`
	// identity is the identity that the machine attests, if its template has an attestation. It is
	// recorded before anything is registered for it.
	// +optional
	Identity *MachineIdentity `json:"identity,omitempty"`
}

// MachineIdentity is the identity of a machine. It contains no token.
type MachineIdentity struct {
	// spiffeId is the SPIFFE ID of the machine.
	SPIFFEID string `json:"spiffeId"`
	// method is the attestation method.
	Method string `json:"method"`
	// registeredAt is the time at which the machine was registered with the SPIRE server.
	// +optional
	RegisteredAt *metav1.MicroTime `json:"registeredAt,omitempty"`
	// attestedAt is the time at which the operator first saw that the machine has attested.
	// +optional
	AttestedAt *metav1.MicroTime `json:"attestedAt,omitempty"`
	// device is the machine's device identity with method tpm. It is recorded before its certificate is
	// created. No other key is certified for the machine.
	// +optional
	Device *DeviceIdentity `json:"device,omitempty"`
}

// DeviceIdentity is a key in a machine's TPM.
type DeviceIdentity struct {
	// publicKeySHA256 is the SHA-256 of the key's public area (TPM2B_PUBLIC).
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	PublicKeySHA256 string `json:"publicKeySHA256"`
	// ekCertificateSHA256 is the SHA-256 of the certificate of the TPM's endorsement key, as reported by
	// the machine. The SPIRE server verifies the certificate.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	EKCertificateSHA256 string `json:"ekCertificateSHA256,omitempty"`
	// requestedAt is the time at which the machine first requested the certificate. The certificate is
	// valid from this time.
	RequestedAt metav1.MicroTime `json:"requestedAt"`
}

// Proofs with which a machine authenticates to get its credential.
const (
	ProofClaimCode = "claim-code"
	ProofSVID      = "svid"
)

// CredentialHandover records the single use of a machine's claim code. The cluster does not store the
// code. The operator derives the code from its own key whenever it checks the code.
type CredentialHandover struct {
	// proof is what the machine must present: its claim code, or the SVID of its attestation.
	// +optional
	// +kubebuilder:default=claim-code
	// +kubebuilder:validation:Enum=claim-code;svid
	Proof string `json:"proof,omitempty"`
	// offeredAt is the time at which the code was written to the machine's cloud-init ISO.
	OfferedAt metav1.MicroTime `json:"offeredAt"`
	// usedAt is the time at which the code was used. It is recorded before the credential is created, and
	// removed only if no credential was created.
	// +optional
	UsedAt *metav1.MicroTime `json:"usedAt,omitempty"`
	// givenAt is the time at which the credential was created and sent to the machine.
	// +optional
	GivenAt *metav1.MicroTime `json:"givenAt,omitempty"`
}

// MachineTimes are the times of a machine's lifecycle.
type MachineTimes struct {
	// placed is the time at which the node and the ID were selected.
	// +optional
	Placed *metav1.MicroTime `json:"placed,omitempty"`
	// cloneStarted is the time at which the clone was requested from the hypervisor.
	// +optional
	CloneStarted *metav1.MicroTime `json:"cloneStarted,omitempty"`
	// cloned is the time at which the VM was created and configured.
	// +optional
	Cloned *metav1.MicroTime `json:"cloned,omitempty"`
	// activated is the time at which standby was changed to false.
	// +optional
	Activated *metav1.MicroTime `json:"activated,omitempty"`
	// started is the time at which the VM was powered on.
	// +optional
	Started *metav1.MicroTime `json:"started,omitempty"`
	// guestStarted is the time of the first report of the bootstrap service.
	// +optional
	GuestStarted *metav1.MicroTime `json:"guestStarted,omitempty"`
	// ready is the time at which the runner was online.
	// +optional
	Ready *metav1.MicroTime `json:"ready,omitempty"`
	// jobStarted is the time at which the runner took a job.
	// +optional
	JobStarted *metav1.MicroTime `json:"jobStarted,omitempty"`
	// stopped is the time at which the VM was seen powered off or deleted.
	// +optional
	Stopped *metav1.MicroTime `json:"stopped,omitempty"`
	// ended is the time at which the machine ended, for the reason in endReason.
	// +optional
	Ended *metav1.MicroTime `json:"ended,omitempty"`
}

// Backoff is the delay before a failed step is retried, even if events arrive. It is recorded so that
// the back-off continues after a restart of the operator.
type Backoff struct {
	// step is the failing step, by its condition type.
	Step string `json:"step"`
	// failures is the number of consecutive failures. Each failure doubles the delay.
	Failures int32 `json:"failures"`
	// until is the time at which the step is retried.
	Until metav1.MicroTime `json:"until"`
}

// MachineClaimStatus is the observed state of the machine.
type MachineClaimStatus struct {
	// observedGeneration is the generation of the spec that the status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// phase summarizes the state of the claim.
	// +optional
	Phase MachineClaimPhase `json:"phase,omitempty"`
	// conditions are the conditions of the claim.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// vmRef names the VM. It is recorded before the VM is created and is never changed.
	// +optional
	// +structType=atomic
	VMRef *VMReference `json:"vmRef,omitempty"`
	// networkInfo is the observed network configuration of the machine.
	// +optional
	NetworkInfo *NetworkInfo `json:"networkInfo,omitempty"`
	// bootstrapInfo is the observed state of the machine's runner.
	// +optional
	// +structType=atomic
	BootstrapInfo *BootstrapInfo `json:"bootstrapInfo,omitempty"`
	// times are the times of the machine's lifecycle.
	// +optional
	// +structType=atomic
	Times *MachineTimes `json:"times,omitempty"`
	// attempts is the number of failed attempts to create the machine, on any node, until the machine is
	// created.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`
	// backoff delays the retries of a failing step. It is absent if no step fails.
	// +optional
	Backoff *Backoff `json:"backoff,omitempty"`
	// endReason is the reason for which the machine ended, in one word.
	// +optional
	EndReason string `json:"endReason,omitempty"`
	// keptUntil is the time at which a failed machine is deleted. Until then the machine is kept
	// unchanged for debugging (lifecycle.keepFailed).
	// +optional
	KeptUntil *metav1.Time `json:"keptUntil,omitempty"`
}

// MachineClaim is one machine for one job.
//
// +kubebuilder:object:root=true
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63 && !self.metadata.name.contains('.')",message="the name of a MachineClaim must have at most 63 characters and no dots, because it is the host name of its machine"
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=mc,categories=hyperfleet
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.runnerPoolRef.name`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.vmRef.node`
// +kubebuilder:printcolumn:name="VM",type=string,JSONPath=`.status.vmRef.vmId`
// +kubebuilder:printcolumn:name="Runner",type=string,JSONPath=`.status.bootstrapInfo.runnerName`
// +kubebuilder:printcolumn:name="Job",type=string,JSONPath=`.status.bootstrapInfo.job`
// +kubebuilder:printcolumn:name="IP",type=string,priority=1,JSONPath=`.status.networkInfo.ipAddress`
// +kubebuilder:printcolumn:name="Addresses",type=string,priority=1,JSONPath=`.status.networkInfo.addresses`
// +kubebuilder:printcolumn:name="Since",type=date,priority=1,JSONPath=`.status.conditions[?(@.type=="AddressAllocated")].lastTransitionTime`,description="Since when the machine has its addresses or waits for them"
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type MachineClaim struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired machine.
	// +structType=atomic
	Spec MachineClaimSpec `json:"spec"`
	// status is the observed state of the machine.
	// +optional
	Status MachineClaimStatus `json:"status,omitempty"`
}

// MachineClaimList is a list of MachineClaim.
//
// +kubebuilder:object:root=true
type MachineClaimList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []MachineClaim `json:"items"`
}

// PoolName returns the name of the RunnerPool that created the claim, and "" if no pool did.
func (c *MachineClaim) PoolName() string {
	if c.Spec.RunnerPoolRef == nil {
		return ""
	}

	return c.Spec.RunnerPoolRef.Name
}

// StatusConditions returns a pointer to the conditions, for kit/step.
func (c *MachineClaim) StatusConditions() *[]metav1.Condition { return &c.Status.Conditions }

// SetObservedGeneration records the generation that the status describes.
func (c *MachineClaim) SetObservedGeneration(generation int64) {
	c.Status.ObservedGeneration = generation
}
