// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// LocalObjectReference names an object whose kind the referring field defines. The object is in the
// namespace of the object that refers to it, unless its kind is cluster-scoped.
type LocalObjectReference struct {
	// name is the name of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="name must be the name of an object: lower-case letters, digits, '-' and '.'"
	Name string `json:"name"`
}

// SecretKeySelector selects a key of a Secret.
type SecretKeySelector struct {
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
	// namespace is the namespace of the Secret. Default: the namespace of the object that holds the
	// reference, and for a HypervisorCluster the operator's namespace. A Secret in another namespace can
	// be used only if its annotation hyperfleet.io/allowed-namespaces lists the namespace of the object.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="namespace must be the name of a namespace: lower-case letters, digits and '-'"
	Namespace string `json:"namespace,omitempty"`
	// optional allows the Secret or the key to be missing. The value is then empty.
	// +optional
	Optional *bool `json:"optional,omitempty"`
}

// SecretValueSource is a value that is stored in a Secret.
type SecretValueSource struct {
	// secretKeyRef selects the key of the Secret.
	SecretKeyRef SecretKeySelector `json:"secretKeyRef"`
}

// Finalizers, annotations and labels of HyperFleet.
const (
	// FinalizerVMCleanup prevents the deletion of a MachineClaim until its VM, its runner and its
	// cloud-init ISO are deleted.
	FinalizerVMCleanup = "hyperfleet.io/vm-cleanup"
	// AnnotationAllowedNamespaces on a Secret lists, separated by commas, the namespaces whose objects
	// may use the Secret. "*" allows all namespaces.
	AnnotationAllowedNamespaces = "hyperfleet.io/allowed-namespaces"
	// AnnotationAllowedServers on a Secret lists, separated by commas, the servers to which the Secret's
	// values may be sent, as host or host:port. Port 443 is omitted. Without the annotation, the allowed
	// servers are the CI platform's public servers, the servers in the operator's configuration, and the
	// servers that the Secret's owner names: the endpoint of a HypervisorCluster, or a host in the
	// Secret's namespace.
	AnnotationAllowedServers = "hyperfleet.io/allowed-servers"
	// AnnotationRemoveOrphans with value "true" on a HypervisorCluster allows the operator to delete
	// machines without a MachineClaim. It is needed if there are so many of them that the operator waits
	// for a person to check them.
	AnnotationRemoveOrphans = "hyperfleet.io/remove-orphans"
	// AnnotationAddresses on a MachineClaim has the UID of the claim, the network and the addresses of its
	// machine. The operator reads them back if the status was lost. Addresses alone, separated by commas, are
	// those of a machine that exists. They replace the addresses in the status if the condition Placed has the
	// reason AddressesReadBack or AddressesUnknown.
	AnnotationAddresses = "hyperfleet.io/addresses"
	// AnnotationKeptSecrets on an object lists, separated by commas, the Secrets that the operator keeps until the
	// object has given back what it needs them for.
	AnnotationKeptSecrets = "hyperfleet.io/kept-secrets" //nolint:gosec // a name
	// FinalizerKeptSecret and the name of an area prevent the deletion of a Secret while an object of the area needs
	// it to give something back.
	FinalizerKeptSecret = "hyperfleet.io/needed-by-" //nolint:gosec // a name
	// LabelRunnerPool on a MachineClaim is the name of the RunnerPool that created it. On a RunnerJob it is the pool
	// that was selected when the operator received the job; see RunnerJob.PoolName.
	LabelRunnerPool = "hyperfleet.io/runner-pool"
	// LabelTemplate on a MachineClaim is the name of its HypervisorMachineTemplate.
	LabelTemplate = "hyperfleet.io/template"
	// LabelPlatform on a RunnerJob is its workload type.
	LabelPlatform = "hyperfleet.io/platform"
	// LabelJobState on a RunnerJob is a copy of spec.state for label selectors.
	LabelJobState = "hyperfleet.io/job-state"
	// LabelLogsOf on a RunnerLog is the name of the RunnerJob, or of the MachineClaim if there is no job,
	// to which the log belongs.
	LabelLogsOf = "hyperfleet.io/logs-of"
	// LabelUnassignedLog on a RunnerLog whose job is not known yet is the pool of the machine, or its template if
	// no pool created the machine.
	LabelUnassignedLog = "hyperfleet.io/log-shelf"
	// LabelLogStore on a RunnerLog is the state of its transfer to an object store.
	LabelLogStore = "hyperfleet.io/log-store"
	// LogStorePending is the value of LabelLogStore for a log that is to be written to the object store.
	LogStorePending = "pending"
	// LogStoreFailed is the value of LabelLogStore for a log that the operator no longer tries to write
	// to the object store. It stays in the RunnerLog.
	LogStoreFailed = "failed"
)

// Condition types that all kinds of this group have. They summarize the conditions of the steps of each
// kind.
const (
	ConditionReady       = "Ready"
	ConditionReconciling = "Reconciling"
	ConditionStalled     = "Stalled"
)
