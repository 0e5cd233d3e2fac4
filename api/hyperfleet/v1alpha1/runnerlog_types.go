// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RunnerLogSpec is the end of what a machine's runner wrote.
type RunnerLogSpec struct {
	// claim whose machine it was.
	// +kubebuilder:validation:MaxLength=253
	Claim string `json:"claim"`
	// text is the end of the log. What a job prints into it is the job's: the bootstrap
	// service takes out the machine's own credential and nothing else.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	Text string `json:"text,omitempty"`
	// cut says that the log's beginning was cut off.
	// +optional
	Cut bool `json:"cut,omitempty"`
	// stored says where in an object store the log is, instead of in text.
	// +optional
	Stored *StoredLog `json:"stored,omitempty"`
	// notStored says why the log, which was for an object store, is in text still.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	NotStored string `json:"notStored,omitempty"`
}

// StoredLog is a text in S3-compatible storage.
type StoredLog struct {
	// endpoint of the store.
	// +kubebuilder:validation:MaxLength=512
	Endpoint string `json:"endpoint"`
	// region that requests are signed for.
	// +kubebuilder:validation:MaxLength=64
	Region string `json:"region"`
	// bucket that it is in.
	// +kubebuilder:validation:MaxLength=255
	Bucket string `json:"bucket"`
	// key of the text in its bucket.
	// +kubebuilder:validation:MaxLength=1024
	Key string `json:"key"`
	// bytes that it has.
	Bytes int64 `json:"bytes"`
}

// RunnerLog is the end of a runner's log, kept when its machine is gone. It goes with the
// RunnerJob that owns it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=rl,categories=hyperfleet
// +kubebuilder:printcolumn:name="Claim",type=string,JSONPath=`.spec.claim`
// +kubebuilder:printcolumn:name="Cut",type=boolean,JSONPath=`.spec.cut`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RunnerLog struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the log.
	Spec RunnerLogSpec `json:"spec"`
}

// RunnerLogList is a list of RunnerLog.
//
// +kubebuilder:object:root=true
type RunnerLogList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []RunnerLog `json:"items"`
}
