// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RunnerLogSpec is the end of the log of a machine's runner.
type RunnerLogSpec struct {
	// claim is the name of the machine's MachineClaim.
	// +kubebuilder:validation:MaxLength=253
	Claim string `json:"claim"`
	// text is the end of the log. The bootstrap service removes only the machine's own credential.
	// Everything else that a job prints stays in the log.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	Text string `json:"text,omitempty"`
	// cut is true if the beginning of the log was removed.
	// +optional
	Cut bool `json:"cut,omitempty"`
	// stored is the location of the log in an object store. If it is set, text is empty.
	// +optional
	Stored *StoredLog `json:"stored,omitempty"`
	// notStored is the reason for which the log is still in text and was not written to the object store.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	NotStored string `json:"notStored,omitempty"`
}

// StoredLog is the location of a log in S3-compatible storage.
type StoredLog struct {
	// endpoint is the URL of the object store.
	// +kubebuilder:validation:MaxLength=512
	Endpoint string `json:"endpoint"`
	// region is the region for which requests are signed.
	// +kubebuilder:validation:MaxLength=64
	Region string `json:"region"`
	// bucket is the name of the bucket.
	// +kubebuilder:validation:MaxLength=255
	Bucket string `json:"bucket"`
	// key is the key of the log in the bucket.
	// +kubebuilder:validation:MaxLength=1024
	Key string `json:"key"`
	// bytes is the size of the log.
	Bytes int64 `json:"bytes"`
}

// RunnerLog is the end of a runner's log. It is kept after the machine is deleted, and is deleted with
// the RunnerJob that owns it.
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
