// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// JobState is the state of a CI job in its forge's words, made common.
// +kubebuilder:validation:Enum=Waiting;Queued;Running;Completed
type JobState string

// States of a job, in the only order they are ever taken: an event that would lead
// back is late, and is ignored.
const (
	// JobWaiting: not to be run yet, e.g. for a protected environment's approval.
	JobWaiting JobState = "Waiting"
	// JobQueued: waits for a runner.
	JobQueued JobState = "Queued"
	// JobRunning: a runner has it.
	JobRunning JobState = "Running"
	// JobCompleted: over, in whatever way.
	JobCompleted JobState = "Completed"
)

// RunnerJobSpec is one CI job as its forge last described it. Webhooks and polls write
// it before they are acknowledged, so that no job is lost with a process
// (docs/adr/0003).
// +kubebuilder:validation:XValidation:rule="self.platform == oldSelf.platform && self.id == oldSelf.id",message="platform and id of a RunnerJob cannot be changed: they say which job it is"
// +kubebuilder:validation:XValidation:rule="{'Waiting': 0, 'Queued': 1, 'Running': 2, 'Completed': 3}[self.state] >= {'Waiting': 0, 'Queued': 1, 'Running': 2, 'Completed': 3}[oldSelf.state]",message="the state of a RunnerJob never goes back: Waiting, Queued, Running, Completed"
type RunnerJobSpec struct {
	// platform is the workload type, e.g. github-actions.
	// +kubebuilder:validation:Enum=github-actions;gitlab-ci;buildkite;generic
	Platform string `json:"platform"`
	// id of the job with the platform.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	ID string `json:"id"`
	// name of the job.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Name string `json:"name,omitempty"`
	// repository as owner/name.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Repository string `json:"repository,omitempty"`
	// organization that the repository belongs to, if it is one.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Organization string `json:"organization,omitempty"`
	// runId of the workflow run or pipeline.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	RunID string `json:"runId,omitempty"`
	// workflow or pipeline name.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Workflow string `json:"workflow,omitempty"`
	// url of the job for people.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	URL string `json:"url,omitempty"`
	// labels that a runner must have.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=256
	Labels []string `json:"labels,omitempty"`
	// state as last reported.
	State JobState `json:"state"`
	// conclusion once completed, in the platform's word.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Conclusion string `json:"conclusion,omitempty"`
	// runnerName that has the job.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	RunnerName string `json:"runnerName,omitempty"`
	// queuedAt, startedAt and completedAt are the platform's own times.
	// +optional
	QueuedAt *metav1.Time `json:"queuedAt,omitempty"`
	// startedAt is when a runner took it.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`
	// completedAt is when it was over.
	// +optional
	CompletedAt *metav1.Time `json:"completedAt,omitempty"`
	// receivedAt is when the operator first heard of it.
	// +optional
	ReceivedAt *metav1.MicroTime `json:"receivedAt,omitempty"`
}

// RunnerJobStatus is what became of the job here.
type RunnerJobStatus struct {
	// conditions of the job.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// pool that answers for the job.
	// +optional
	Pool string `json:"pool,omitempty"`
	// claim whose runner took the job.
	// +optional
	Claim string `json:"claim,omitempty"`
}

// RunnerJob is one CI job as its forge described it, and what became of it here.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rj,categories=hyperfleet
// +kubebuilder:selectablefield:JSONPath=`.spec.state`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.spec.state`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.status.pool`
// +kubebuilder:printcolumn:name="Runner",type=string,JSONPath=`.spec.runnerName`
// +kubebuilder:printcolumn:name="Repository",type=string,JSONPath=`.spec.repository`
// +kubebuilder:printcolumn:name="Job",type=string,JSONPath=`.spec.name`
// +kubebuilder:printcolumn:name="Conclusion",type=string,JSONPath=`.spec.conclusion`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RunnerJob struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the forge's word.
	Spec RunnerJobSpec `json:"spec"`
	// status is what became of the job here.
	// +optional
	Status RunnerJobStatus `json:"status,omitempty"`
}

// RunnerJobList is a list of RunnerJob.
//
// +kubebuilder:object:root=true
type RunnerJobList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []RunnerJob `json:"items"`
}

// StatusConditions gives the conditions to whoever reports on the object.
func (j *RunnerJob) StatusConditions() *[]metav1.Condition { return &j.Status.Conditions }
