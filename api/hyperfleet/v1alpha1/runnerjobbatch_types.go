// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxBatch is the maximum number of jobs in a RunnerJobBatch.
const MaxBatch = 256

// RunnerJobBatchSpec holds received job updates, in no particular order.
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a RunnerJobBatch cannot be changed: the operator deletes it after it has written its jobs to RunnerJobs"
type RunnerJobBatchSpec struct {
	// jobs are the jobs as their platform described them. A job may be in the list several times.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	Jobs []RunnerJobSpec `json:"jobs"`
}

// RunnerJobBatch stores job updates that arrive in a burst until each is written to its RunnerJob. In
// this way one write acknowledges many webhooks (docs/adr/0008). The operator deletes a batch as soon as
// its updates are written.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=rjb,categories=hyperfleet
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RunnerJobBatch struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec holds the received job updates.
	Spec RunnerJobBatchSpec `json:"spec"`
}

// RunnerJobBatchList is a list of RunnerJobBatch.
//
// +kubebuilder:object:root=true
type RunnerJobBatchList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []RunnerJobBatch `json:"items"`
}
