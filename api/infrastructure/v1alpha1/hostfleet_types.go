// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Condition types of a HostFleet in addition to Ready.
const (
	// ConditionPolicyValid is True if the fleet's spec is valid.
	ConditionPolicyValid = "PolicyValid"
	// ConditionRolledOut is True if all hosts have the fleet's configuration.
	ConditionRolledOut = "RolledOut"
	// ConditionReplicasMet is True if the fleet has as many hosts as its spec requires.
	ConditionReplicasMet = "ReplicasMet"
	// ConditionRolloutStopped is True if the rollout was stopped because too many hosts failed to apply
	// the configuration.
	ConditionRolloutStopped = "RolloutStopped"
)

// AnnotationMadeByFleet is on hosts that a fleet has created and may delete. Its value is the name of
// the fleet.
const AnnotationMadeByFleet = "infrastructure.hyperfleet.io/made-by-fleet"

// HostFleetSpec defines how a new configuration is rolled out to the hosts of a fleet. The configuration
// itself is defined in the operator's configuration.
// +kubebuilder:validation:XValidation:rule="!has(self.replicas) || has(self.templateHost)",message="replicas needs templateHost: set it to the host whose spec new hosts get"
// +kubebuilder:validation:XValidation:rule="!has(self.macOS) || self.hostKind == 'ScalewayAppleSiliconMachine'",message="macOS is only allowed with hostKind ScalewayAppleSiliconMachine: leave it out"
// +kubebuilder:validation:XValidation:rule="!has(self.macOS) || has(self.drain)",message="macOS needs drain, because an update restarts the host and its Node must be drained before: set drain"
type HostFleetSpec struct {
	// hostKind is the kind of the fleet's hosts: LinuxMachine or ScalewayAppleSiliconMachine.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="hostKind cannot be changed: create another fleet"
	HostKind string `json:"hostKind"`
	// replicas is the desired number of hosts, including hosts that were created by hand. If there are
	// too few hosts, the operator orders more. If there are too many, it deletes hosts that the fleet has
	// created. Default: the operator creates and deletes no hosts.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Replicas *int32 `json:"replicas,omitempty"`
	// templateHost is the name of the host of the fleet whose spec new hosts get.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="templateHost must be the name of a host"
	TemplateHost string `json:"templateHost,omitempty"`
	// rollout defines how many hosts get a new configuration at a time, and when.
	// +optional
	// +kubebuilder:default={}
	Rollout HostRollout `json:"rollout,omitempty"`
	// paused stops all pushes to hosts. Pushes that have started continue until they end.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// drain defines how the Node of a host is cordoned and drained before the host is deleted. The Node
	// is deleted after that. Without drain, the workloads on a deleted host are lost.
	// +optional
	Drain *NodeDrain `json:"drain,omitempty"`
	// nodeCredentials lets the operator create, renew and remove the credentials with which hosts join
	// their cluster. Each host's credential is valid only for its own Node. A host that names its own
	// kubeconfig uses that instead.
	// +optional
	NodeCredentials *HostNodeCredentials `json:"nodeCredentials,omitempty"`
	// macOS lets the operator update the macOS of the fleet's Macs as rollout defines. It drains each
	// host, updates the host with softwareupdate, waits for it and uncordons its Node.
	// +optional
	MacOS *HostMacOS `json:"macOS,omitempty"`
	// resumedAt ignores all failures before this time. They no longer count towards
	// rollout.failureThreshold, and a stopped rollout continues. `hyperfleet hosts resume` sets it.
	// +optional
	ResumedAt *metav1.Time `json:"resumedAt,omitempty"`
}

// HostMacOS defines the macOS version of a fleet's Macs.
type HostMacOS struct {
	// version is the minimum macOS version of each Mac, such as 15.3.1. A Mac with an older version is
	// updated to exactly this version, which Apple must offer for the Mac. No Mac is downgraded.
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^[1-9][0-9]{0,2}([.][0-9]{1,3}){1,2}$')",message="macOS.version must be a version as sw_vers prints it, such as 15.3 or 15.3.1"
	Version string `json:"version"`
	// timeout is the maximum time of an update, from the start of softwareupdate until the host runs the
	// new version and its Node is ready. After that, the update counts as failed.
	// +optional
	// +kubebuilder:default="2h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="macOS.timeout must be a time of one second to 24 hours such as 2h"
	Timeout metav1.Duration `json:"timeout,omitempty,omitzero"`
}

// HostNodeCredentials defines the client certificates of hosts' Nodes. Their cluster signs the
// certificates.
type HostNodeCredentials struct {
	// kubeconfigSecretRef selects the kubeconfig of the cluster that hosts join. Its server address must
	// be the address at which hosts reach the cluster. Its user needs permission to create, read and
	// approve certificate signing requests of kubernetes.io/kube-apiserver-client-kubelet. Hosts never
	// get this kubeconfig.
	KubeconfigSecretRef LocalSecretKeySelector `json:"kubeconfigSecretRef"`
	// lifetime is the requested lifetime of a certificate. A certificate is renewed after two thirds of
	// its lifetime. The cluster may issue certificates with a shorter lifetime.
	// +optional
	// +kubebuilder:default="168h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) >= duration('1h') && duration(self) <= duration('8760h')",message="nodeCredentials.lifetime must be a time of one hour to 8760h such as 168h"
	Lifetime metav1.Duration `json:"lifetime,omitempty,omitzero"`
}

// HostRollout defines how a new configuration is rolled out to a fleet.
type HostRollout struct {
	// maxUnavailable is the maximum number of hosts that are being pushed to at a time. It is a number or
	// a percentage of the fleet, rounded down, but at least 1. Unreachable and failed hosts also count.
	// While as many hosts as this are unreachable or failed, the operator pushes only to them.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 10000 : string(self).matches('^([1-9][0-9]?|100)%$')",message="maxUnavailable must be a number from 1 to 10000, or a percentage from 1% to 100%"
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// canary is the number of hosts that must have a new configuration before the other hosts get it.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Canary *int32 `json:"canary,omitempty"`
	// failureThreshold is the number of hosts that fail to apply a configuration at which its rollout
	// stops.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
	// jitter is the time over which pushes to the hosts are spread after a new configuration was seen.
	// Canaries are pushed to without this delay. Default: no delay.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$')",message="jitter must be a time such as 90s, 15m or 1h30m"
	Jitter *metav1.Duration `json:"jitter,omitempty"`
	// maintenanceWindows are the times at which a new configuration may be pushed. If it is empty, a
	// configuration may be pushed at any time. First boots and repairs do not wait for a window.
	// +optional
	// +kubebuilder:validation:MaxItems=20
	// +listType=map
	// +listMapKey=name
	MaintenanceWindows []MaintenanceWindow `json:"maintenanceWindows,omitempty"`
}

// MaintenanceWindow is a recurring time window.
type MaintenanceWindow struct {
	// name is the name of the window.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// start is the start of the window as a cron expression with five fields, e.g. 0 2 * * 6.
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=100
	Start string `json:"start"`
	// duration is the length of the window.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) > duration('0s')",message="duration must be a time above zero such as 90s, 15m or 1h30m"
	Duration metav1.Duration `json:"duration"`
	// timeZone is the time zone of start, as in the IANA time zone database. Default: UTC.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	TimeZone string `json:"timeZone,omitempty"`
}

// HostPermit permits one push to a host.
type HostPermit struct {
	// host is the name of the host.
	Host string `json:"host"`
	// number is the number of the permit. Each permit is used once.
	Number int64 `json:"number"`
	// hash is the digest of the configuration that may be pushed, followed by +macos-VERSION if the fleet
	// sets macOS.
	Hash string `json:"hash"`
	// what is the permitted operation: Update, Repair or OSUpdate.
	What string `json:"what"`
}

// HostFleetStatus is the observed state of a fleet.
type HostFleetStatus struct {
	// observedGeneration is the generation of the spec that the status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// hostConfigHash is the digest of the configuration that all hosts should have.
	// +optional
	HostConfigHash string `json:"hostConfigHash,omitempty"`
	// macOSVersion is the minimum macOS version that all hosts should have.
	// +optional
	MacOSVersion string `json:"macOSVersion,omitempty"`
	// rolloutStarted is the time at which this configuration, or this version, was first seen.
	// +optional
	RolloutStarted *metav1.Time `json:"rolloutStarted,omitempty"`
	// permits are the hosts that may be pushed to now. They count as unavailable until their push is
	// done.
	// +optional
	// +listType=map
	// +listMapKey=host
	Permits []HostPermit `json:"permits,omitempty"`
	// lastPermit is the highest permit number so far.
	// +optional
	LastPermit int64 `json:"lastPermit,omitempty"`
	// stoppedHash is the digest of the configuration whose rollout was stopped because too many hosts
	// failed to apply it, followed by +macos-VERSION if the fleet sets macOS.
	// +optional
	StoppedHash string `json:"stoppedHash,omitempty"`
	// stoppedAt is the time at which the rollout was stopped. The rollout continues if resumedAt is
	// later.
	// +optional
	StoppedAt *metav1.Time `json:"stoppedAt,omitempty"`
	// stoppedReason describes why the rollout was stopped.
	// +optional
	StoppedReason string `json:"stoppedReason,omitempty"`
	// hosts is the number of hosts in the fleet.
	// +optional
	Hosts int32 `json:"hosts"`
	// converged is the number of hosts that have the configuration.
	// +optional
	Converged int32 `json:"converged"`
	// drifted is the number of hosts that have another configuration or lack a part of it.
	// +optional
	Drifted int32 `json:"drifted"`
	// failed is the number of hosts that have failed and need a person.
	// +optional
	Failed int32 `json:"failed"`
	// unreachable is the number of hosts that cannot be reached.
	// +optional
	Unreachable int32 `json:"unreachable"`
	// conditions are the conditions of the fleet.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// HostFleet is a set of hosts with the same configuration.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.hosts
// +kubebuilder:resource:shortName=hfl,categories=hyperfleet
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.hostKind`
// +kubebuilder:printcolumn:name="Hosts",type=integer,JSONPath=`.status.hosts`
// +kubebuilder:printcolumn:name="Converged",type=integer,JSONPath=`.status.converged`
// +kubebuilder:printcolumn:name="Drifted",type=integer,JSONPath=`.status.drifted`
// +kubebuilder:printcolumn:name="Failed",type=integer,JSONPath=`.status.failed`
// +kubebuilder:printcolumn:name="Unreachable",type=integer,JSONPath=`.status.unreachable`
// +kubebuilder:printcolumn:name="Paused",type=boolean,JSONPath=`.spec.paused`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type HostFleet struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec defines how a new configuration is rolled out to the hosts.
	Spec HostFleetSpec `json:"spec"`
	// status is the observed state of the fleet.
	// +optional
	Status HostFleetStatus `json:"status,omitempty"`
}

// HostFleetList is a list of HostFleet.
//
// +kubebuilder:object:root=true
type HostFleetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []HostFleet `json:"items"`
}

// StatusConditions returns a pointer to the conditions, for kit/step.
func (f *HostFleet) StatusConditions() *[]metav1.Condition { return &f.Status.Conditions }

// SetObservedGeneration records the generation that the status describes.
func (f *HostFleet) SetObservedGeneration(generation int64) { f.Status.ObservedGeneration = generation }
