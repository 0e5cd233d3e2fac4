// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// JobState is the state of a CI job. It is the same for all CI platforms.
// +kubebuilder:validation:Enum=Waiting;Queued;Running;Completed
type JobState string

// States of a job, in the only order in which they can follow each other. An event that would lead back
// to an earlier state is late and is ignored.
const (
	// JobWaiting means that the job must not run yet, for example because a protected environment needs
	// an approval.
	JobWaiting JobState = "Waiting"
	// JobQueued means that the job waits for a runner.
	JobQueued JobState = "Queued"
	// JobRunning means that a runner has the job.
	JobRunning JobState = "Running"
	// JobCompleted means that the job has ended, with any result.
	JobCompleted JobState = "Completed"
)

// RunnerJobSpec is a CI job as the CI platform last described it. The operator writes it before it
// acknowledges a webhook or a poll, so that no job is lost if the operator restarts (docs/adr/0003).
type RunnerJobSpec struct {
	// platform is the workload type, e.g. github-actions.
	// +kubebuilder:validation:Enum=github-actions;gitlab-ci;buildkite;forgejo-actions;gitea-actions;generic
	Platform string `json:"platform"`
	// id is the ID of the job on the platform.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	ID string `json:"id"`
	// name is the name of the job.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Name string `json:"name,omitempty"`
	// repository is the repository of the job, as owner/name.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Repository string `json:"repository,omitempty"`
	// organization is the organization that owns the repository. It is empty if the owner is not an
	// organization.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Organization string `json:"organization,omitempty"`
	// enterprise is the slug of the GitHub enterprise whose RunnerPool reported the job: the job's webhook was
	// signed with the pool's secret, or the pool polled the job. Only pools of this enterprise, of the
	// organization or of the repository run the job.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Enterprise string `json:"enterprise,omitempty"`
	// runId is the ID of the workflow run or the pipeline.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	RunID string `json:"runId,omitempty"`
	// workflow is the name of the workflow or the pipeline.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Workflow string `json:"workflow,omitempty"`
	// url is the web page of the job.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	URL string `json:"url,omitempty"`
	// labels are the labels that a runner of the job must have.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=256
	Labels []string `json:"labels,omitempty"`
	// labelsUnknown means that the labels are not known yet, because the platform's webhook does not
	// contain them (GitLab). The operator requests them from the platform.
	// +optional
	LabelsUnknown bool `json:"labelsUnknown,omitempty"`
	// queue is the queue that offered the job, if the platform has queues: a GitHub runner scale set or a
	// Buildkite queue.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Queue string `json:"queue,omitempty"`
	// priority is the priority of the job in its queue, if the platform has priorities. The job with the
	// highest priority is first.
	// +optional
	Priority int32 `json:"priority,omitempty"`
	// state is the last reported state.
	State JobState `json:"state"`
	// conclusion is the result of a completed job, in the platform's term.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Conclusion string `json:"conclusion,omitempty"`
	// runnerName is the name of the runner that has the job.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	RunnerName string `json:"runnerName,omitempty"`
	// queuedAt is the time at which the job was queued. queuedAt, startedAt and completedAt are reported
	// by the platform.
	// +optional
	QueuedAt *metav1.Time `json:"queuedAt,omitempty"`
	// startedAt is the time at which a runner took the job.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`
	// completedAt is the time at which the job ended.
	// +optional
	CompletedAt *metav1.Time `json:"completedAt,omitempty"`
	// receivedAt is the time at which the operator first received the job.
	// +optional
	ReceivedAt *metav1.MicroTime `json:"receivedAt,omitempty"`
}

// RunnerJobStatus is the state of the job in the operator.
type RunnerJobStatus struct {
	// conditions are the conditions of the job.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// pool is the name of the RunnerPool that provides the machine for the job.
	// +optional
	Pool string `json:"pool,omitempty"`
	// claim is the name of the MachineClaim whose runner has taken the job.
	// +optional
	Claim string `json:"claim,omitempty"`
	// timeline holds the events of the job, the oldest first. It is kept after the machine is deleted.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Timeline []JobEvent `json:"timeline,omitempty"`
	// traceId is the ID of the job's trace. Once the job has a machine, it is the ID of the machine's
	// trace. Spans and log lines contain it.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	TraceID string `json:"traceId,omitempty"`
	// logs is the name of the RunnerLog with the last lines of the machine's log.
	// +optional
	Logs string `json:"logs,omitempty"`
}

// JobMoment is a kind of event in the lifecycle of a job.
type JobMoment string

// Events in the lifecycle of a job, in their usual order.
const (
	// MomentQueued means that the platform has queued the job.
	MomentQueued JobMoment = "Queued"
	// MomentReceived means that the operator has received the job.
	MomentReceived JobMoment = "Received"
	// MomentWaiting means that the job waits. The message says what it waits for.
	MomentWaiting JobMoment = "Waiting"
	// MomentDecided means that a pool was selected for the job.
	MomentDecided JobMoment = "Decided"
	// MomentCloned means that the job's machine was cloned.
	MomentCloned JobMoment = "Cloned"
	// MomentBooted means that the machine was started.
	MomentBooted JobMoment = "Booted"
	// MomentRegistered means that the machine's runner was online.
	MomentRegistered JobMoment = "Registered"
	// MomentStarted means that the runner has taken the job.
	MomentStarted JobMoment = "Started"
	// MomentFinished means that the job has ended.
	MomentFinished JobMoment = "Finished"
	// MomentDestroyed means that the machine was deleted.
	MomentDestroyed JobMoment = "Destroyed"
)

// JobEvent is an event in the lifecycle of a job.
type JobEvent struct {
	// moment is the kind of the event, in one word.
	Moment JobMoment `json:"moment"`
	// time is the time of the event.
	Time metav1.MicroTime `json:"time"`
	// message holds the details.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// RunnerJob is a CI job as the CI platform described it, and its state in the operator.
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

	// spec is the job as the CI platform last described it.
	// +kubebuilder:validation:XValidation:rule="self.platform == oldSelf.platform && self.id == oldSelf.id",message="platform and id of a RunnerJob cannot be changed, because they identify the job"
	// +kubebuilder:validation:XValidation:rule="{'Waiting': 0, 'Queued': 1, 'Running': 2, 'Completed': 3}[self.state] >= {'Waiting': 0, 'Queued': 1, 'Running': 2, 'Completed': 3}[oldSelf.state]",message="the state of a RunnerJob can only change forward in the order Waiting, Queued, Running, Completed"
	// +structType=atomic
	Spec RunnerJobSpec `json:"spec"`
	// status is the state of the job in the operator.
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

// PoolName returns the name of the RunnerPool that provides the machine for the job, and "" if none does. Until the operator
// has written the status of the job, it is the pool that was selected when the operator received the job.
func (j *RunnerJob) PoolName() string {
	if len(j.Status.Conditions) > 0 || j.Status.Pool != "" {
		return j.Status.Pool
	}

	return j.Labels[LabelRunnerPool]
}

// StatusConditions returns a pointer to the conditions, for kit/step.
func (j *RunnerJob) StatusConditions() *[]metav1.Condition { return &j.Status.Conditions }
