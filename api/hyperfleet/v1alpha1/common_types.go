// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// LocalObjectReference names an object of a known kind: in the namespace of the
// object that refers to it, or cluster-wide where the kind has no namespace.
type LocalObjectReference struct {
	// name of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="name must be the name of an object: lower-case letters, digits, '-' and '.'"
	Name string `json:"name"`
}

// SecretKeySelector picks one key of a Secret.
type SecretKeySelector struct {
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
	// namespace of the Secret. Default: the namespace of the object that holds the
	// reference; for a HypervisorCluster, the operator's own. A Secret in any other
	// namespace is used only if it lists the reader's namespace in its annotation
	// hyperfleet.io/allowed-namespaces.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="namespace must be the name of a namespace: lower-case letters, digits and '-'"
	Namespace string `json:"namespace,omitempty"`
	// optional says that a missing Secret or key is not an error: the value is empty.
	// +optional
	Optional *bool `json:"optional,omitempty"`
}

// SecretValueSource is a value that is kept in a Secret.
type SecretValueSource struct {
	// secretKeyRef picks the Secret's key.
	SecretKeyRef SecretKeySelector `json:"secretKeyRef"`
}

// Names that HyperFleet puts on objects.
const (
	// FinalizerVMCleanup keeps a MachineClaim until its VM, its runner and its
	// cloud-init ISO are gone.
	FinalizerVMCleanup = "hyperfleet.io/vm-cleanup"
	// AnnotationAllowedNamespaces on a Secret lists, comma separated, the namespaces
	// whose objects may read it; "*" allows all.
	AnnotationAllowedNamespaces = "hyperfleet.io/allowed-namespaces"
	// AnnotationAllowedServers on a Secret lists, comma separated, the servers that its values
	// may be sent to, as host or host:port (443 is left out). Without it these are the
	// platform's public ones, those of the operator's configuration, and what the Secret's
	// owner named beside it: a HypervisorCluster's endpoint, a host of the same namespace.
	AnnotationAllowedServers = "hyperfleet.io/allowed-servers"
	// AnnotationRemoveOrphans on a HypervisorCluster, "true", lets machines go that have no
	// MachineClaim and are so many that they are held for a person to look at.
	AnnotationRemoveOrphans = "hyperfleet.io/remove-orphans"
	// LabelRunnerPool on a MachineClaim names the RunnerPool that made it.
	LabelRunnerPool = "hyperfleet.io/runner-pool"
	// LabelTemplate on a MachineClaim names its HypervisorMachineTemplate.
	LabelTemplate = "hyperfleet.io/template"
	// LabelPlatform on a RunnerJob is its workload type.
	LabelPlatform = "hyperfleet.io/platform"
	// LabelJobState on a RunnerJob mirrors spec.state, for kubectl selectors.
	LabelJobState = "hyperfleet.io/job-state"
	// LabelLogsOf on a RunnerLog names the RunnerJob, or else the MachineClaim, whose log
	// it holds.
	LabelLogsOf = "hyperfleet.io/logs-of"
	// LabelLogShelf on a RunnerLog whose job was not known names the pool whose machine it was
	// of, or the template of a machine that no pool made.
	LabelLogShelf = "hyperfleet.io/log-shelf"
	// LabelLogStore on a RunnerLog says how far it is on its way to an object store.
	LabelLogStore = "hyperfleet.io/log-store"
	// LogStorePending of LabelLogStore: it is to be written there.
	LogStorePending = "pending"
	// LogStoreFailed of LabelLogStore: it is not tried any more, and stays where it is.
	LogStoreFailed = "failed"
)

// Condition types shared by the kinds of this group. Each kind's list of steps
// names the others; Ready, Reconciling and Stalled are their summary.
const (
	ConditionReady       = "Ready"
	ConditionReconciling = "Reconciling"
	ConditionStalled     = "Stalled"
)
