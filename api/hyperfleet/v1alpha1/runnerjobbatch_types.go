// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxBatch bounds the jobs of a RunnerJobBatch.
const MaxBatch = 256

// RunnerJobBatchSpec is what was heard of jobs, in no order.
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a RunnerJobBatch cannot be changed: it is deleted once its jobs are in the ledger"
type RunnerJobBatchSpec struct {
	// jobs as their platform described them. One may be there several times.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	Jobs []RunnerJobSpec `json:"jobs"`
}

// RunnerJobBatch keeps news of jobs that came in a burst, until each is in its RunnerJob:
// one write acknowledges many webhooks (docs/adr/0008). There is none of them for longer
// than a moment.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=rjb,categories=hyperfleet
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RunnerJobBatch struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what was heard.
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
