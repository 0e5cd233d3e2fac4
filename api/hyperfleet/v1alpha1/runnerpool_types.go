// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Workload types.
const (
	WorkloadGitHubActions = "github-actions"
	WorkloadGitLabCI      = "gitlab-ci"
	WorkloadBuildkite     = "buildkite"
	WorkloadGeneric       = "generic"
)

// RunnerPoolSpec says what work a pool takes and how many machines it may have.
// +kubebuilder:validation:XValidation:rule="!has(self.workload.config) || !has(self.workload.config.github) || !has(self.workload.config.github.runnerName)",message="workload.config.github.runnerName is for a MachineClaim: a pool gives each of its runners a name of its own"
type RunnerPoolSpec struct {
	// templateRef names the HypervisorMachineTemplate in the same namespace.
	TemplateRef LocalObjectReference `json:"templateRef"`

	// workload that the pool's machines run.
	Workload Workload `json:"workload"`

	// scaling bounds the number of machines.
	// +optional
	// +kubebuilder:default={minReplicas: 0, maxReplicas: 10}
	Scaling Scaling `json:"scaling,omitempty"`

	// lifecycle bounds the life of one machine.
	// +optional
	// +kubebuilder:default={}
	Lifecycle *Lifecycle `json:"lifecycle,omitempty"`
}

// Workload is a kind of CI platform with its settings.
// +kubebuilder:validation:XValidation:rule="self.type != 'github-actions' || (has(self.config) && has(self.config.github))",message="workload.type github-actions needs workload.config.github"
// +kubebuilder:validation:XValidation:rule="self.type != 'gitlab-ci' || (has(self.config) && has(self.config.gitlab))",message="workload.type gitlab-ci needs workload.config.gitlab"
// +kubebuilder:validation:XValidation:rule="self.type != 'buildkite' || (has(self.config) && has(self.config.buildkite))",message="workload.type buildkite needs workload.config.buildkite"
type Workload struct {
	// type of the CI platform.
	// +kubebuilder:validation:Enum=github-actions;gitlab-ci;buildkite;generic
	Type string `json:"type"`
	// config of the platform.
	// +optional
	Config *WorkloadConfig `json:"config,omitempty"`
	// webhook holds the secret that the platform signs its webhooks with.
	// +optional
	Webhook *Webhook `json:"webhook,omitempty"`
}

// WorkloadConfig holds the settings of the platforms; the one of workload.type counts.
type WorkloadConfig struct {
	// github settings.
	// +optional
	GitHub *GitHubActionsConfig `json:"github,omitempty"`
	// gitlab settings.
	// +optional
	GitLab *GitLabCIConfig `json:"gitlab,omitempty"`
	// buildkite settings.
	// +optional
	Buildkite *BuildkiteConfig `json:"buildkite,omitempty"`
}

// Webhook authenticates a platform's webhooks.
type Webhook struct {
	// secret shared with the platform.
	Secret SecretValueSource `json:"secret"`
}

// GitHubActionsConfig configures runners of GitHub Actions.
type GitHubActionsConfig struct {
	// organization that the runners belong to. Default: the template's.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9_.-]+$')",message="organization must be the name of an organisation, not a URL"
	Organization string `json:"organization,omitempty"`
	// repository as owner/name that the runners belong to; it takes precedence over
	// organization. Default: the template's.
	// +optional
	// +kubebuilder:validation:MaxLength=201
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$')",message="repository must be written owner/name, e.g. example/app"
	Repository string `json:"repository,omitempty"`
	// labels of the runners. A runner takes the jobs whose labels it has all of.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.all(l, !l.contains(','))",message="labels must not hold a comma: write each label as an item of its own"
	Labels []string `json:"labels,omitempty"`
	// runnerGroup that the runners join; organisations and enterprises only.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	RunnerGroup string `json:"runnerGroup,omitempty"`
	// runnerName of the one runner of a MachineClaim. Default: made from the claim's
	// name and uid.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	RunnerName string `json:"runnerName,omitempty"`
}

// GitLabCIConfig configures runners of GitLab CI.
// +kubebuilder:validation:XValidation:rule="!(has(self.projectId) && has(self.groupId))",message="choose at most one of gitlab.projectId and gitlab.groupId"
type GitLabCIConfig struct {
	// url of the GitLab instance.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() in ['http', 'https'] && url(self).getHostname() != ''",message="gitlab.url must be a URL such as https://gitlab.example.com"
	URL string `json:"url"`
	// projectId that the runners belong to.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ProjectID string `json:"projectId,omitempty"`
	// groupId that the runners belong to.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	GroupID string `json:"groupId,omitempty"`
	// tags of the runners.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=255
	Tags []string `json:"tags,omitempty"`
	// description of the runners.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Description string `json:"description,omitempty"`
}

// BuildkiteConfig configures agents of Buildkite.
type BuildkiteConfig struct {
	// organization slug.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Organization string `json:"organization"`
	// queue that the agents serve.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Queue string `json:"queue,omitempty"`
	// tags of the agents, as key=value.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=255
	Tags []string `json:"tags,omitempty"`
	// metadata of the stack.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Metadata map[string]string `json:"metadata,omitempty"`
}

// Scaling bounds the number of a pool's machines.
// +kubebuilder:validation:XValidation:rule="self.minReplicas <= self.maxReplicas",message="scaling.minReplicas must not be above scaling.maxReplicas"
type Scaling struct {
	// minReplicas is kept even when no job waits.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	MinReplicas int32 `json:"minReplicas"`
	// maxReplicas is never exceeded.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	MaxReplicas int32 `json:"maxReplicas"`
	// scaleDownDelay is how long an idle machine above what is wanted is kept.
	// +optional
	// +kubebuilder:default="5m0s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$')",message="scaleDownDelay must be a time such as 0s, 90s or 5m"
	ScaleDownDelay *metav1.Duration `json:"scaleDownDelay,omitempty"`
}

// Lifecycle bounds the life of one machine.
type Lifecycle struct {
	// maxLifetime of a machine from its creation, whatever it does.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) > duration('0s')",message="maxLifetime must be a time above zero such as 90s, 15m or 1h30m"
	MaxLifetime *metav1.Duration `json:"maxLifetime,omitempty"`
	// idleTimeout ends a machine whose runner has had no job for so long. Machines that
	// keep minReplicas filled are replaced.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) > duration('0s')",message="idleTimeout must be a time above zero such as 90s, 15m or 1h30m"
	IdleTimeout *metav1.Duration `json:"idleTimeout,omitempty"`
	// jobTimeout ends a machine whose job runs for longer.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) > duration('0s')",message="jobTimeout must be a time above zero such as 90s, 15m or 1h30m"
	JobTimeout *metav1.Duration `json:"jobTimeout,omitempty"`
	// bootstrapTimeout ends a machine whose runner is not online so long after the
	// machine was started.
	// +optional
	// +kubebuilder:default="15m0s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) > duration('0s')",message="bootstrapTimeout must be a time above zero such as 90s, 15m or 1h30m"
	BootstrapTimeout *metav1.Duration `json:"bootstrapTimeout,omitempty"`
}

// RunnerPoolStatus is what was last seen of the pool.
type RunnerPoolStatus struct {
	// observedGeneration is the generation of the spec that the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions of the pool.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// replicas is the number of machines, from Pending to Draining.
	// +optional
	Replicas int32 `json:"replicas"`
	// readyReplicas is the number of machines whose runner is online.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas"`
	// busyReplicas is the number of machines that run a job.
	// +optional
	BusyReplicas int32 `json:"busyReplicas"`
	// desiredReplicas is what the last pass wanted.
	// +optional
	DesiredReplicas int32 `json:"desiredReplicas"`
	// queuedJobs is the number of jobs that wait for a runner of this pool.
	// +optional
	QueuedJobs int32 `json:"queuedJobs"`
	// runningJobs is the number of jobs that run on this pool.
	// +optional
	RunningJobs int32 `json:"runningJobs"`
	// failedClaims is the number of machines that failed in a row. It slows the making
	// of new ones and returns to 0 with the first machine that becomes ready.
	// +optional
	FailedClaims int32 `json:"failedClaims,omitempty"`
	// lastFailureTime is when the last machine failed.
	// +optional
	LastFailureTime *metav1.Time `json:"lastFailureTime,omitempty"`
	// selector of the pool's MachineClaims.
	// +optional
	Selector string `json:"selector,omitempty"`
}

// RunnerPool is a number of like machines that take CI jobs.
//
// +kubebuilder:object:root=true
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 52 && !self.metadata.name.contains('.')",message="a RunnerPool's name begins the host names of its machines: at most 52 characters, without dots"
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rp,categories=hyperfleet
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.workload.type`
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.status.desiredReplicas`
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.status.replicas`
// +kubebuilder:printcolumn:name="ReadyReplicas",type=integer,JSONPath=`.status.readyReplicas`
// +kubebuilder:printcolumn:name="Busy",type=integer,JSONPath=`.status.busyReplicas`
// +kubebuilder:printcolumn:name="Queued",type=integer,JSONPath=`.status.queuedJobs`
// +kubebuilder:printcolumn:name="Max",type=integer,JSONPath=`.spec.scaling.maxReplicas`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RunnerPool struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the pool wanted.
	Spec RunnerPoolSpec `json:"spec"`
	// status is what was last seen.
	// +optional
	Status RunnerPoolStatus `json:"status,omitempty"`
}

// RunnerPoolList is a list of RunnerPool.
//
// +kubebuilder:object:root=true
type RunnerPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []RunnerPool `json:"items"`
}

// StatusConditions gives the conditions to whoever reports on the object.
func (p *RunnerPool) StatusConditions() *[]metav1.Condition { return &p.Status.Conditions }

// SetObservedGeneration notes the generation that the status speaks of.
func (p *RunnerPool) SetObservedGeneration(generation int64) {
	p.Status.ObservedGeneration = generation
}
