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
type RunnerJobSpec struct {
	// platform is the workload type, e.g. github-actions.
	// +kubebuilder:validation:Enum=github-actions;gitlab-ci;buildkite;forgejo-actions;gitea-actions;generic
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
	// labelsUnknown says that labels are not known yet: the platform's webhook does not
	// carry them (GitLab), and the platform is asked.
	// +optional
	LabelsUnknown bool `json:"labelsUnknown,omitempty"`
	// queue that offered the job, where the platform has such: a GitHub runner scale set,
	// a Buildkite queue.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Queue string `json:"queue,omitempty"`
	// priority among the jobs of a queue, where the platform has such: the highest first.
	// +optional
	Priority int32 `json:"priority,omitempty"`
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
	// timeline of the job, oldest first. It is kept when the machine is gone.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Timeline []JobEvent `json:"timeline,omitempty"`
	// traceId of the job's trace: that of its machine once it has one. Spans and lines in the
	// log have it.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	TraceID string `json:"traceId,omitempty"`
	// logs is the name of the RunnerLog with the last lines of the machine's log.
	// +optional
	Logs string `json:"logs,omitempty"`
}

// JobMoment is a moment in the life of a job.
type JobMoment string

// Moments of a job's life, in their usual order.
const (
	// MomentQueued: the platform put it into its queue.
	MomentQueued JobMoment = "Queued"
	// MomentReceived: the operator heard of it.
	MomentReceived JobMoment = "Received"
	// MomentWaiting: it waits, and the message says what for.
	MomentWaiting JobMoment = "Waiting"
	// MomentDecided: a pool answers for it.
	MomentDecided JobMoment = "Decided"
	// MomentCloned: the machine that took it was cloned.
	MomentCloned JobMoment = "Cloned"
	// MomentBooted: the machine was started.
	MomentBooted JobMoment = "Booted"
	// MomentRegistered: the machine's runner was online.
	MomentRegistered JobMoment = "Registered"
	// MomentStarted: the runner took the job.
	MomentStarted JobMoment = "Started"
	// MomentFinished: the job was over.
	MomentFinished JobMoment = "Finished"
	// MomentDestroyed: the machine was gone.
	MomentDestroyed JobMoment = "Destroyed"
)

// JobEvent is one moment in a job's life.
type JobEvent struct {
	// moment in one word.
	Moment JobMoment `json:"moment"`
	// time of the moment.
	Time metav1.MicroTime `json:"time"`
	// message tells more.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
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
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Claim",type=string,priority=1,JSONPath=`.status.claim`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RunnerJob struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the forge's word.
	// +kubebuilder:validation:XValidation:rule="self.platform == oldSelf.platform && self.id == oldSelf.id",message="platform and id of a RunnerJob cannot be changed: they say which job it is"
	// +kubebuilder:validation:XValidation:rule="{'Waiting': 0, 'Queued': 1, 'Running': 2, 'Completed': 3}[self.state] >= {'Waiting': 0, 'Queued': 1, 'Running': 2, 'Completed': 3}[oldSelf.state]",message="the state of a RunnerJob never goes back: Waiting, Queued, Running, Completed"
	// +structType=atomic
	Spec RunnerJobSpec `json:"spec"`
	// status is what became of the job here.
	// +optional
	// +structType=atomic
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
