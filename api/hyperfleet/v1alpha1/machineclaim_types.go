// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MachineClaimPhase is a claim's place in its life, for people. It is computed from the
// rest of the status.
// +kubebuilder:validation:Enum=Pending;Provisioning;Bootstrapping;Ready;Draining;Terminating;Failed
type MachineClaimPhase string

// Phases of a MachineClaim.
const (
	// MachineClaimPending: waits for its template, its cluster or room.
	MachineClaimPending MachineClaimPhase = "Pending"
	// MachineClaimProvisioning: the VM is being made.
	MachineClaimProvisioning MachineClaimPhase = "Provisioning"
	// MachineClaimBootstrapping: the VM runs, its runner is not online yet.
	MachineClaimBootstrapping MachineClaimPhase = "Bootstrapping"
	// MachineClaimReady: the runner is online or runs a job.
	MachineClaimReady MachineClaimPhase = "Ready"
	// MachineClaimDraining: the runner takes no further job, the VM still runs.
	MachineClaimDraining MachineClaimPhase = "Draining"
	// MachineClaimTerminating: VM, runner and cloud-init ISO are being removed.
	MachineClaimTerminating MachineClaimPhase = "Terminating"
	// MachineClaimFailed: the claim cannot go on; its message says why.
	MachineClaimFailed MachineClaimPhase = "Failed"
)

// Condition types of a MachineClaim, in the order of its life.
const (
	ConditionTemplateResolved = "TemplateResolved"
	// ConditionAddressAllocated: the machine's addresses of its template's pool are in
	// networkInfo. Only claims whose template has a pool bear it.
	ConditionAddressAllocated = "AddressAllocated"
	ConditionPlaced           = "Placed"
	ConditionCredentialed     = "Credentialed" //nolint:gosec // the name of a condition
	ConditionProvisioned      = "Provisioned"
	// ConditionIdentityReady: the identity provider takes us, before a machine is made. As
	// ConditionAttested.
	ConditionIdentityReady = "IdentityReady"
	// ConditionAttested: the machine has proven who it is. Only claims whose template has an
	// attestation bear it.
	ConditionAttested     = "Attested"
	ConditionBootstrapped = "Bootstrapped"
	ConditionVMCleanedUp  = "VMCleanedUp"
)

// EndReasonLeftBehind is that of a claim that is gone while its VM is there: the VM does not
// bear the claim's mark any more.
const EndReasonLeftBehind = "LeftBehind"

// EndReasonNoJob ends a machine that was made for a job which is not to be run any more.
const EndReasonNoJob = "NoJob"

// MachineClaimSpec is one machine wanted. It can't be changed: a claim's VM runs once.
// Times count by their length, so that 1h may become 1h0m0s when a program writes it.
// +kubebuilder:validation:XValidation:rule="self.templateRef == oldSelf.templateRef && self.workloadConfig == oldSelf.workloadConfig && has(self.runnerPoolRef) == has(oldSelf.runnerPoolRef) && (!has(self.runnerPoolRef) || self.runnerPoolRef == oldSelf.runnerPoolRef) && has(self.lifecycle) == has(oldSelf.lifecycle) && has(self.placement) == has(oldSelf.placement) && (!has(self.placement) || self.placement == oldSelf.placement) && has(self.size) == has(oldSelf.size) && (!has(self.size) || self.size == oldSelf.size)",message="a MachineClaim cannot be changed: delete it and make a new one"
// +kubebuilder:validation:XValidation:rule="!has(self.standby) || !self.standby || (has(oldSelf.standby) && oldSelf.standby)",message="standby cannot be made true: a machine that may start stays so"
type MachineClaimSpec struct {
	// templateRef names the HypervisorMachineTemplate in the same namespace.
	TemplateRef LocalObjectReference `json:"templateRef"`
	// runnerPoolRef names the RunnerPool that made the claim, if one did.
	// +optional
	RunnerPoolRef *LocalObjectReference `json:"runnerPoolRef,omitempty"`
	// workloadConfig of this machine.
	WorkloadConfig Workload `json:"workloadConfig"`
	// standby makes the machine and does not start it, until standby is made false: then
	// it gets its credential and starts. It cannot be made true again.
	// +optional
	Standby bool `json:"standby,omitempty"`
	// size of the machine, where it is not the template's.
	// +optional
	Size *MachineSize `json:"size,omitempty"`
	// placement over the nodes of the cluster. Default: Spread.
	// +optional
	// +kubebuilder:validation:Enum=Spread;Pack
	Placement string `json:"placement,omitempty"`
	// lifecycle bounds the machine's life.
	// +optional
	// +kubebuilder:default={}
	// +kubebuilder:validation:XValidation:rule="(has(self.maxLifetime) ? has(oldSelf.maxLifetime) && duration(self.maxLifetime) == duration(oldSelf.maxLifetime) : !has(oldSelf.maxLifetime)) && (has(self.idleTimeout) ? has(oldSelf.idleTimeout) && duration(self.idleTimeout) == duration(oldSelf.idleTimeout) : !has(oldSelf.idleTimeout)) && (has(self.jobTimeout) ? has(oldSelf.jobTimeout) && duration(self.jobTimeout) == duration(oldSelf.jobTimeout) : !has(oldSelf.jobTimeout)) && (has(self.bootstrapTimeout) ? has(oldSelf.bootstrapTimeout) && duration(self.bootstrapTimeout) == duration(oldSelf.bootstrapTimeout) : !has(oldSelf.bootstrapTimeout))",message="a MachineClaim cannot be changed: delete it and make a new one"
	Lifecycle *Lifecycle `json:"lifecycle,omitempty"`
}

// MachineSize is what a job asked for by labels: it takes the place of the template's.
type MachineSize struct {
	// labels that the job asked by. The machine's runner has them too.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	Labels []string `json:"labels,omitempty"`
	// cpu is the number of cores.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	CPU *int32 `json:"cpu,omitempty"`
	// memory of the machine.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$`
	Memory *resource.Quantity `json:"memory,omitempty"`
	// disk is the size of the first disk.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$`
	Disk *resource.Quantity `json:"disk,omitempty"`
}

// VMReference names a machine on its hypervisor.
type VMReference struct {
	// hypervisorCluster is the name of the HypervisorCluster.
	HypervisorCluster string `json:"hypervisorCluster"`
	// vmId on the hypervisor; Proxmox: the VMID. It is written before the VM is made.
	VMID string `json:"vmId"`
	// operatorUID is the identity of the operator whose mark the VM bears.
	// +optional
	OperatorUID string `json:"operatorUID,omitempty"`
	// node the VM was last seen on.
	// +optional
	Node string `json:"node,omitempty"`
	// resources that the VM was placed with, for quotas.
	// +optional
	Resources *PlacedResources `json:"resources,omitempty"`
}

// PlacedResources are what a quota counts of a machine.
type PlacedResources struct {
	// cpu in cores.
	CPU int32 `json:"cpu"`
	// memory of the machine.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$`
	Memory resource.Quantity `json:"memory"`
}

// NetworkInfo is what is known of a machine's network.
type NetworkInfo struct {
	// hostname of the machine.
	// +optional
	Hostname string `json:"hostname,omitempty"`
	// fqdn of the machine.
	// +optional
	FQDN string `json:"fqdn,omitempty"`
	// ipAddress is the first address the guest reports.
	// +optional
	IPAddress string `json:"ipAddress,omitempty"`
	// macAddress of the first network device.
	// +optional
	MACAddress string `json:"macAddress,omitempty"`
	// addresses with their prefix lengths that the machine was given of its template's pool,
	// IPv4 first. They are written before the machine is made, and it alone has them until
	// it is gone.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=49
	Addresses []string `json:"addresses,omitempty"`
	// addressNetwork is the network that addresses are on: CLUSTER:BRIDGE/vlanN, or on
	// KubeVirt the NetworkAttachmentDefinition.
	// +optional
	AddressNetwork string `json:"addressNetwork,omitempty"`
}

// BootstrapInfo is what is known of a machine's runner. It holds no credential.
type BootstrapInfo struct {
	// runnerName with the CI platform.
	// +optional
	RunnerName string `json:"runnerName,omitempty"`
	// runnerId with the CI platform.
	// +optional
	RunnerID string `json:"runnerId,omitempty"`
	// guestPhase is the last phase that the bootstrap service reported.
	// +optional
	GuestPhase string `json:"guestPhase,omitempty"`
	// guestMessage came with guestPhase.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	GuestMessage string `json:"guestMessage,omitempty"`
	// guestReason came with guestPhase, where that is Finished or Failed: the word for why
	// the machine ended.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	GuestReason string `json:"guestReason,omitempty"`
	// reportedAt is when guestPhase was reported.
	// +optional
	ReportedAt *metav1.MicroTime `json:"reportedAt,omitempty"`
	// job is the name of the RunnerJob that the runner took.
	// +optional
	Job string `json:"job,omitempty"`
	// boundJob is the name of the RunnerJob that the runner was made for, where the
	// platform binds runners to jobs (Buildkite, Forgejo, generic). It is written before the
	// credential is made.
	// +optional
	BoundJob string `json:"boundJob,omitempty"`
	// jobResult is what the bootstrap service said of the job's end, in the platform's word.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	JobResult string `json:"jobResult,omitempty"`
	// expiresAt is when the credential given to the machine stops to be of use.
	// +optional
	ExpiresAt *metav1.Time `json:"expiresAt,omitempty"`
	// handover is what became of the machine's claim code, with bootstrap method callback.
	// It is absent with other methods.
	// +optional
	Handover *CredentialHandover `json:"handover,omitempty"`
	// identity is what the machine attests, where its template has an attestation. It is
	// written before anything is registered for it.
	// +optional
	Identity *MachineIdentity `json:"identity,omitempty"`
}

// MachineIdentity is who a machine proves to be. It holds no token.
type MachineIdentity struct {
	// spiffeId is the machine's SPIFFE ID.
	SPIFFEID string `json:"spiffeId"`
	// method of attestation.
	Method string `json:"method"`
	// registeredAt: the SPIRE server was told of the machine.
	// +optional
	RegisteredAt *metav1.MicroTime `json:"registeredAt,omitempty"`
	// attestedAt: the machine was seen to have attested.
	// +optional
	AttestedAt *metav1.MicroTime `json:"attestedAt,omitempty"`
	// device is the machine's device identity, with method tpm. It is written before its
	// certificate is made; no other key is certified for the machine.
	// +optional
	Device *DeviceIdentity `json:"device,omitempty"`
}

// DeviceIdentity is a key in a machine's TPM.
type DeviceIdentity struct {
	// publicKeySHA256 is the SHA-256 of the key's public area (TPM2B_PUBLIC).
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	PublicKeySHA256 string `json:"publicKeySHA256"`
	// ekCertificateSHA256 is the SHA-256 of the certificate of the TPM's endorsement key, as
	// the machine has told it. The SPIRE server verifies it.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	EKCertificateSHA256 string `json:"ekCertificateSHA256,omitempty"`
	// requestedAt is when the machine asked for the certificate first. From then on it is
	// good.
	RequestedAt metav1.MicroTime `json:"requestedAt"`
}

// Proofs by which a machine is handed its credential.
const (
	ProofClaimCode = "claim-code"
	ProofSVID      = "svid"
)

// CredentialHandover is the one use of a machine's claim code. The code itself is nowhere
// in the cluster: it is made anew, out of the operator's key, whenever it is checked.
type CredentialHandover struct {
	// proof that the machine has to bring: its claim code, or the SVID of its attestation.
	// +optional
	// +kubebuilder:default=claim-code
	// +kubebuilder:validation:Enum=claim-code;svid
	Proof string `json:"proof,omitempty"`
	// offeredAt: the code was put onto the machine's cloud-init ISO.
	OfferedAt metav1.MicroTime `json:"offeredAt"`
	// usedAt: the code was used. It is written before the credential is made, and taken back
	// only where none was made.
	// +optional
	UsedAt *metav1.MicroTime `json:"usedAt,omitempty"`
	// givenAt: the credential was made, and is handed over.
	// +optional
	GivenAt *metav1.MicroTime `json:"givenAt,omitempty"`
}

// MachineTimes are the moments of a machine's life.
type MachineTimes struct {
	// placed: node and id were chosen.
	// +optional
	Placed *metav1.MicroTime `json:"placed,omitempty"`
	// cloneStarted: the hypervisor was asked for the clone.
	// +optional
	CloneStarted *metav1.MicroTime `json:"cloneStarted,omitempty"`
	// cloned: the VM was made and configured.
	// +optional
	Cloned *metav1.MicroTime `json:"cloned,omitempty"`
	// activated: a machine on standby was told to start.
	// +optional
	Activated *metav1.MicroTime `json:"activated,omitempty"`
	// started: the VM was powered on.
	// +optional
	Started *metav1.MicroTime `json:"started,omitempty"`
	// guestStarted: the bootstrap service was first heard of.
	// +optional
	GuestStarted *metav1.MicroTime `json:"guestStarted,omitempty"`
	// ready: the runner was online.
	// +optional
	Ready *metav1.MicroTime `json:"ready,omitempty"`
	// jobStarted: the runner took a job.
	// +optional
	JobStarted *metav1.MicroTime `json:"jobStarted,omitempty"`
	// stopped: the VM was seen powered off or gone.
	// +optional
	Stopped *metav1.MicroTime `json:"stopped,omitempty"`
	// ended: the machine's life was over, for the reason in endReason.
	// +optional
	Ended *metav1.MicroTime `json:"ended,omitempty"`
}

// Backoff is how long a step that fails is left alone, whatever happens meanwhile. It is on
// record so that a restart of the operator does not begin anew.
type Backoff struct {
	// step that fails, by its condition.
	Step string `json:"step"`
	// failures in a row. Each doubles the pause.
	Failures int32 `json:"failures"`
	// until is when the step is tried again.
	Until metav1.MicroTime `json:"until"`
}

// MachineClaimStatus is what was last seen of the machine.
type MachineClaimStatus struct {
	// observedGeneration is the generation of the spec that the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// phase of the claim's life.
	// +optional
	Phase MachineClaimPhase `json:"phase,omitempty"`
	// conditions of the claim.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// vmRef names the VM. It is written before the VM is made and never changed.
	// +optional
	// +structType=atomic
	VMRef *VMReference `json:"vmRef,omitempty"`
	// networkInfo of the machine.
	// +optional
	NetworkInfo *NetworkInfo `json:"networkInfo,omitempty"`
	// bootstrapInfo of the machine's runner.
	// +optional
	// +structType=atomic
	BootstrapInfo *BootstrapInfo `json:"bootstrapInfo,omitempty"`
	// times of the machine's life.
	// +optional
	// +structType=atomic
	Times *MachineTimes `json:"times,omitempty"`
	// attempts counts the failed tries of making the machine, on whichever nodes, until it is
	// made.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`
	// backoff spaces the tries of a step that fails. It is absent where none does.
	// +optional
	Backoff *Backoff `json:"backoff,omitempty"`
	// endReason says in one word why the machine's life ended or was ended.
	// +optional
	EndReason string `json:"endReason,omitempty"`
	// keptUntil is when a machine that failed is removed. Until then it is left as it is, for a
	// person to look at (lifecycle.keepFailed).
	// +optional
	KeptUntil *metav1.Time `json:"keptUntil,omitempty"`
}

// MachineClaim is one machine for one job.
//
// +kubebuilder:object:root=true
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63 && !self.metadata.name.contains('.')",message="a MachineClaim's name is its machine's host name: at most 63 characters, without dots"
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
// +kubebuilder:printcolumn:name="Since",type=date,priority=1,JSONPath=`.status.conditions[?(@.type=="AddressAllocated")].lastTransitionTime`,description="Since when it has its addresses, or waits for them"
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type MachineClaim struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the machine wanted.
	// +structType=atomic
	Spec MachineClaimSpec `json:"spec"`
	// status is what was last seen.
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

// StatusConditions gives the conditions to whoever reports on the object.
func (c *MachineClaim) StatusConditions() *[]metav1.Condition { return &c.Status.Conditions }

// SetObservedGeneration notes the generation that the status speaks of.
func (c *MachineClaim) SetObservedGeneration(generation int64) {
	c.Status.ObservedGeneration = generation
}
