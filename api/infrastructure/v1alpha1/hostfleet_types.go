// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Conditions of a HostFleet, beside Ready.
const (
	// ConditionPolicyValid tells whether what the fleet's spec says can be followed.
	ConditionPolicyValid = "PolicyValid"
	// ConditionRolledOut tells whether all hosts have the fleet's configuration.
	ConditionRolledOut = "RolledOut"
	// ConditionReplicasMet tells whether the fleet has as many hosts as its spec says.
	ConditionReplicasMet = "ReplicasMet"
	// ConditionRolloutStopped is True when too many hosts refused a configuration.
	ConditionRolloutStopped = "RolloutStopped"
)

// AnnotationMadeByFleet is on hosts that their fleet made, and may delete: its name.
const AnnotationMadeByFleet = "infrastructure.hyperfleet.io/made-by-fleet"

// HostFleetSpec says how a new configuration reaches the hosts of a fleet. What the
// configuration is, the operator's own configuration says.
// +kubebuilder:validation:XValidation:rule="!has(self.replicas) || has(self.templateHost)",message="replicas needs templateHost, the host that new ones are made like"
// +kubebuilder:validation:XValidation:rule="!has(self.macOS) || self.hostKind == 'ScalewayAppleSiliconMachine'",message="macOS is for fleets of Macs: hostKind ScalewayAppleSiliconMachine"
// +kubebuilder:validation:XValidation:rule="!has(self.macOS) || has(self.drain)",message="macOS needs drain: an update restarts the host, and its Node is drained before"
type HostFleetSpec struct {
	// hostKind is the kind of the fleet's hosts, such as LinuxMachine.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="hostKind cannot be changed: make another fleet"
	HostKind string `json:"hostKind"`
	// replicas is how many hosts the fleet has, those made by hand included: more are ordered, and
	// those that are too many and were made by the fleet are given back. Default: as many as
	// somebody makes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Replicas *int32 `json:"replicas,omitempty"`
	// templateHost is the host of the fleet whose spec new ones get, by name.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="templateHost must be the name of a host"
	TemplateHost string `json:"templateHost,omitempty"`
	// rollout is how many hosts get a new configuration at a time, and when.
	// +optional
	// +kubebuilder:default={}
	Rollout HostRollout `json:"rollout,omitempty"`
	// paused keeps anything from being pushed to any host. Pushes that run go on to their
	// end.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// drain has a host's Node cordoned and drained before the host is given back, and deleted
	// after. Without it, a host that is deleted takes along what runs on it.
	// +optional
	Drain *NodeDrain `json:"drain,omitempty"`
	// nodeCredentials has the operator make the credentials with which hosts join their cluster,
	// each for its own Node alone, renew them, and take them away. Hosts that name a kubeconfig
	// of their own have that.
	// +optional
	NodeCredentials *HostNodeCredentials `json:"nodeCredentials,omitempty"`
	// macOS has the fleet's Macs updated, as rollout says: one host after the other is drained,
	// updated with softwareupdate, waited for, and uncordoned.
	// +optional
	MacOS *HostMacOS `json:"macOS,omitempty"`
	// resumedAt forgives all that failed before: it counts no more towards
	// rollout.failureThreshold, and a configuration that was stopped goes on. Set by
	// `hyperfleet hosts resume`.
	// +optional
	ResumedAt *metav1.Time `json:"resumedAt,omitempty"`
}

// HostMacOS is the macOS that a fleet's Macs have.
type HostMacOS struct {
	// version that each Mac has at least, such as 15.3.1. Those with an older one are updated to
	// just this one, which Apple has to offer them; none is taken back to an older one.
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^[1-9][0-9]{0,2}([.][0-9]{1,3}){1,2}$')",message="macOS.version must be a version as sw_vers prints it, such as 15.3 or 15.3.1"
	Version string `json:"version"`
	// timeout is how long an update may take from the start of softwareupdate until the host is
	// back with the new version and its Node is ready. After it the update counts as refused.
	// +optional
	// +kubebuilder:default="2h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="macOS.timeout must be a time of one second to 24 hours such as 2h"
	Timeout metav1.Duration `json:"timeout,omitempty,omitzero"`
}

// HostNodeCredentials are client certificates of hosts' Nodes, which their cluster signs.
type HostNodeCredentials struct {
	// kubeconfigSecretRef names the Secret with a kubeconfig of the cluster that hosts join, at
	// the address at which they reach it. Its user makes, reads and approves certificate signing
	// requests of kubernetes.io/kube-apiserver-client-kubelet; hosts never get it.
	KubeconfigSecretRef LocalSecretKeySelector `json:"kubeconfigSecretRef"`
	// lifetime of a certificate. It is renewed when two thirds of it are over. The cluster may
	// give less.
	// +optional
	// +kubebuilder:default="168h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) >= duration('1h') && duration(self) <= duration('8760h')",message="nodeCredentials.lifetime must be a time of one hour to 8760h such as 168h"
	Lifetime metav1.Duration `json:"lifetime,omitempty,omitzero"`
}

// HostRollout is how a new configuration reaches a fleet.
type HostRollout struct {
	// maxUnavailable is how many hosts may be in the middle of a push, a number or a
	// percentage of the fleet, rounded down but at least 1. Hosts that can't be reached or
	// have failed for good count as well: while there are as many, only they are pushed to.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 10000 : string(self).matches('^([1-9][0-9]?|100)%$')",message="maxUnavailable must be a number from 1 to 10000, or a percentage from 1% to 100%"
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// canary is how many hosts have to have a new configuration before the rest gets it.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Canary *int32 `json:"canary,omitempty"`
	// failureThreshold is the number of hosts that refuse a configuration at which it goes to
	// no more hosts.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
	// jitter spreads the hosts over so much time after a new configuration was seen, the
	// canaries apart. Default: no time.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$')",message="jitter must be a time such as 90s, 15m or 1h30m"
	Jitter *metav1.Duration `json:"jitter,omitempty"`
	// maintenanceWindows are when a new configuration may be pushed; none means at any time.
	// First boots and repairs do not wait for them.
	// +optional
	// +kubebuilder:validation:MaxItems=20
	// +listType=map
	// +listMapKey=name
	MaintenanceWindows []MaintenanceWindow `json:"maintenanceWindows,omitempty"`
}

// MaintenanceWindow is a window of time that comes again and again.
type MaintenanceWindow struct {
	// name of the window.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// start of the window as a cron expression of five fields, e.g. 0 2 * * 6.
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=100
	Start string `json:"start"`
	// duration of the window.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) > duration('0s')",message="duration must be a time above zero such as 90s, 15m or 1h30m"
	Duration metav1.Duration `json:"duration"`
	// timeZone of start, as in the IANA database. Default: UTC.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	TimeZone string `json:"timeZone,omitempty"`
}

// HostPermit lets one host be pushed to.
type HostPermit struct {
	// host by name.
	Host string `json:"host"`
	// number of the permit: each is used once.
	Number int64 `json:"number"`
	// hash of the configuration that may be pushed; with +macos-VERSION where the fleet names one.
	Hash string `json:"hash"`
	// what may be done: Update, Repair or OSUpdate.
	What string `json:"what"`
}

// HostFleetStatus is what is known of a fleet.
type HostFleetStatus struct {
	// observedGeneration is the generation of the spec that the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// hostConfigHash is the digest of the configuration that all hosts should have.
	// +optional
	HostConfigHash string `json:"hostConfigHash,omitempty"`
	// macOSVersion is the version of macOS that all hosts should have at least.
	// +optional
	MacOSVersion string `json:"macOSVersion,omitempty"`
	// rolloutStarted is when that configuration, or that version, was seen first.
	// +optional
	RolloutStarted *metav1.Time `json:"rolloutStarted,omitempty"`
	// permits are the hosts that may be pushed to now: they count as unavailable until they
	// are done.
	// +optional
	// +listType=map
	// +listMapKey=host
	Permits []HostPermit `json:"permits,omitempty"`
	// lastPermit is the highest number that a permit has had.
	// +optional
	LastPermit int64 `json:"lastPermit,omitempty"`
	// stoppedHash is the configuration that was stopped because too many hosts refused it; with
	// +macos-VERSION where the fleet names one.
	// +optional
	StoppedHash string `json:"stoppedHash,omitempty"`
	// stoppedAt is when that was. resumedAt after it lets the configuration go on.
	// +optional
	StoppedAt *metav1.Time `json:"stoppedAt,omitempty"`
	// stoppedReason says in words why.
	// +optional
	StoppedReason string `json:"stoppedReason,omitempty"`
	// hosts of the fleet.
	// +optional
	Hosts int32 `json:"hosts"`
	// converged hosts have the configuration.
	// +optional
	Converged int32 `json:"converged"`
	// drifted hosts have another one, or lack a part of it.
	// +optional
	Drifted int32 `json:"drifted"`
	// failed hosts have failed for good.
	// +optional
	Failed int32 `json:"failed"`
	// unreachable hosts can't be reached.
	// +optional
	Unreachable int32 `json:"unreachable"`
	// conditions of the fleet.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// HostFleet is a set of hosts on one configuration.
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

	// spec is how a new configuration reaches the hosts.
	Spec HostFleetSpec `json:"spec"`
	// status is what is known of the fleet.
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

// StatusConditions gives the conditions to whoever reports on the object.
func (f *HostFleet) StatusConditions() *[]metav1.Condition { return &f.Status.Conditions }

// SetObservedGeneration notes the generation that the status speaks of.
func (f *HostFleet) SetObservedGeneration(generation int64) { f.Status.ObservedGeneration = generation }
