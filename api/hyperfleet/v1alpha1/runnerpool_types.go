// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AnnotationTemplateHash on a MachineClaim of a RunnerPool is the digest of the template and the
// workload that the machine was created from. If the digest of the pool differs, the machine is
// replaced.
const AnnotationTemplateHash = "hyperfleet.io/template-hash"

// ConditionDemandSourcesReady of a RunnerPool is True if the polls and streams of its jobs succeed. It
// is absent before the first poll. Machines are created even if it is False, because webhooks may still
// arrive.
const ConditionDemandSourcesReady = "DemandSourcesReady"

// RunnerPoolSpec defines which jobs a pool runs and how many machines it may have.
// +kubebuilder:validation:XValidation:rule="!has(self.workload.config) || !has(self.workload.config.github) || !has(self.workload.config.github.runnerName)",message="workload.config.github.runnerName is only allowed in a MachineClaim, because each runner of a pool gets its own name: leave it out"
// +kubebuilder:validation:XValidation:rule="!(self.workload.type in ['buildkite', 'forgejo-actions', 'generic']) || ((!has(self.scaling.minReplicas) || self.scaling.minReplicas == 0) && !has(self.scaling.schedules) && (!has(self.scaling.warm) || ((!has(self.scaling.warm.idle) || self.scaling.warm.idle == 0) && (!has(self.scaling.warm.maxIdle) || self.scaling.warm.maxIdle == 0))))",message="a machine of a buildkite, forgejo-actions or generic pool is created for one job and cannot wait for others: leave out scaling.minReplicas, schedules, warm.idle and warm.maxIdle; warm.stopped is allowed"
// +kubebuilder:validation:XValidation:rule="!has(self.lifecycle) || !has(self.lifecycle.keepFailed) || !has(self.lifecycle.keepFailed.machines) || !has(self.scaling.maxReplicas) || self.lifecycle.keepFailed.machines < self.scaling.maxReplicas",message="lifecycle.keepFailed.machines must be below scaling.maxReplicas, because kept machines count towards it"
// +kubebuilder:validation:XValidation:rule="!has(self.labelMatch) || self.labelMatch == 'All' || !has(self.workload.config) || !has(self.workload.config.github) || !has(self.workload.config.github.scaleSet)",message="labelMatch is not allowed with a scaleSet, whose runners take its jobs whatever their labels are: leave it out"
// +kubebuilder:validation:XValidation:rule="!has(self.labelMatch) || self.labelMatch != 'Any' || (has(self.workload.config) && ((has(self.workload.config.github) && has(self.workload.config.github.labels) && size(self.workload.config.github.labels) > 0) || (has(self.workload.config.gitlab) && has(self.workload.config.gitlab.tags) && size(self.workload.config.gitlab.tags) > 0) || (has(self.workload.config.buildkite) && has(self.workload.config.buildkite.tags) && size(self.workload.config.buildkite.tags) > 0) || has(self.workload.config.forgejo) || has(self.workload.config.gitea) || (has(self.workload.config.generic) && has(self.workload.config.generic.labels) && size(self.workload.config.generic.labels) > 0)))",message="labelMatch Any needs labels or tags in workload.config, of which a job must request one: list them"
type RunnerPoolSpec struct {
	// templateRef names the HypervisorMachineTemplate in the same namespace.
	TemplateRef LocalObjectReference `json:"templateRef"`

	// workload is the CI platform whose jobs the pool's machines run.
	// +kubebuilder:validation:XValidation:rule="self.type != 'gitlab-ci' || !has(self.config) || !has(self.config.gitlab) || (has(self.config.gitlab.tags) && size(self.config.gitlab.tags) > 0) || (has(self.config.gitlab.runUntagged) && self.config.gitlab.runUntagged)",message="config.gitlab needs tags or runUntagged, because GitLab assigns no job to runners with neither: list a tag of your jobs, or set runUntagged to true"
	// +kubebuilder:validation:XValidation:rule="self.type != 'generic' || !has(self.config) || !has(self.config.generic) || !has(self.config.generic.labels) || self.config.generic.labels.all(l, !l.contains(','))",message="config.generic.labels must not contain a comma, because no job can request such a label: write each label as a separate item"
	Workload Workload `json:"workload"`

	// scaling defines the number of machines.
	// +optional
	// +kubebuilder:default={minReplicas: 0, maxReplicas: 10}
	Scaling Scaling `json:"scaling,omitempty"`

	// priority is the priority among the pools that can run a job. The pool with the highest priority and
	// free capacity runs it. Among pools with the same priority, the first by name runs it.
	// +optional
	// +kubebuilder:validation:Minimum=-1000
	// +kubebuilder:validation:Maximum=1000
	Priority int32 `json:"priority,omitempty"`

	// paused stops the scaling of the pool. No machine is created or deleted. Existing machines continue
	// to run jobs.
	// +optional
	Paused bool `json:"paused,omitempty"`

	// placement defines how machines are distributed over nodes and clusters.
	// +optional
	Placement *Placement `json:"placement,omitempty"`

	// sizeLabels allow a job to request the size or the image of its machine with labels. If it is not
	// set, such labels have no special meaning.
	// +optional
	SizeLabels *SizeLabels `json:"sizeLabels,omitempty"`

	// labelMatch defines which labels a job must have so that the pool creates a machine for it. All: the
	// pool has all labels of the job. Exact: the job also requests each label in workload.config. Any: the
	// job requests at least one label in workload.config, and the runner of its machine also gets the job's
	// other labels. Labels are compared as the CI platform compares them. Size labels do not count.
	// Default: All.
	// +optional
	// +kubebuilder:validation:Enum=All;Exact;Any
	LabelMatch string `json:"labelMatch,omitempty"`

	// demand defines how the operator gets jobs in addition to webhooks.
	// +optional
	Demand *DemandSources `json:"demand,omitempty"`

	// lifecycle holds the timeouts of a machine.
	// +optional
	// +kubebuilder:default={}
	Lifecycle *Lifecycle `json:"lifecycle,omitempty"`
}

// SizeLabels are the labels with which a job may request the size or the image of its machine: cpu=8,
// memory=16Gi, disk=100Gi and image=NAME. A job cannot request what is not set here. A job that requests
// more than allowed, requests the same resource twice, or uses a value that is not valid gets no machine,
// and its condition Matched says why. Warm machines and machines of minReplicas have the size of the
// template.
type SizeLabels struct {
	// maxCPU is the maximum number of CPU cores that a job may request with cpu=N.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	MaxCPU *int32 `json:"maxCPU,omitempty"`
	// maxMemory is the maximum amount of memory that a job may request with memory=QUANTITY.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? int(self) >= 67108864 : (string(self).matches('^[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$') && quantity(string(self)).compareTo(quantity('64Mi')) >= 0)",message="maxMemory must be at least 64Mi: write a number and the unit Mi, Gi or Ti, such as 64Gi"
	MaxMemory *resource.Quantity `json:"maxMemory,omitempty"`
	// maxDisk is the maximum size of the first disk that a job may request with disk=QUANTITY. A disk can
	// only grow, so a job that requests less than the template has gets no machine.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? int(self) >= 1048576 : (string(self).matches('^[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$') && quantity(string(self)).compareTo(quantity('1Mi')) >= 0)",message="maxDisk must be at least 1Mi: write a number and the unit Mi, Gi or Ti, such as 200Gi"
	MaxDisk *resource.Quantity `json:"maxDisk,omitempty"`
	// images are the images that a job may request with image=NAME.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	Images []ImageChoice `json:"images,omitempty"`
}

// ImageChoice is a template that a job may request.
type ImageChoice struct {
	// name is the name in the label image=NAME.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9][A-Za-z0-9_.-]*$')",message="name must be letters, digits, '_', '.' and '-' with a letter or digit first, such as ubuntu-24.04"
	Name string `json:"name"`
	// templateRef names the HypervisorMachineTemplate of the machine, in the pool's namespace.
	TemplateRef LocalObjectReference `json:"templateRef"`
}

// Values of labelMatch.
const (
	// LabelMatchAll means that the pool must have all labels of a job.
	LabelMatchAll = "All"
	// LabelMatchExact means that a job must also request all labels of the pool.
	LabelMatchExact = "Exact"
	// LabelMatchAny means that a job must request one of the labels of the pool.
	LabelMatchAny = "Any"
)

// Placement strategies.
const (
	// PlacementSpread places a machine where the fewest machines are.
	PlacementSpread = "Spread"
	// PlacementPack fills one node after another.
	PlacementPack = "Pack"
)

// Placement defines how machines are distributed over nodes and clusters.
type Placement struct {
	// strategy is the strategy for the nodes of a cluster and for the clusters: Spread or Pack.
	// +optional
	// +kubebuilder:default=Spread
	// +kubebuilder:validation:Enum=Spread;Pack
	Strategy string `json:"strategy,omitempty"`
	// templateRefs are additional templates, each on another cluster. With Pack they are used if the
	// cluster of templateRef has no free capacity, and with Spread if it has more machines.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	TemplateRefs []LocalObjectReference `json:"templateRefs,omitempty"`
}

// DemandSources are the ways in which the operator gets jobs.
type DemandSources struct {
	// polling defines how the operator polls the CI platform for jobs. Default: every minute if the pool
	// has no webhook, and every five minutes if it has one.
	// +optional
	Polling *Polling `json:"polling,omitempty"`
}

// Polling defines how the operator polls a CI platform for jobs.
type Polling struct {
	// disabled disables polling. The operator then never receives a job whose webhooks are lost.
	// +optional
	Disabled bool `json:"disabled,omitempty"`
	// interval is the interval between two polls.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) > duration('0s')",message="interval must be a time above zero such as 90s, 15m or 1h30m"
	Interval *metav1.Duration `json:"interval,omitempty"`
	// repositories are the repositories to poll if the platform cannot list the jobs of the pool's scope
	// (GitHub organizations). The operator also polls the repositories of known jobs.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=201
	Repositories []string `json:"repositories,omitempty"`
}

// Scaling defines the number of machines of a pool.
// +kubebuilder:validation:XValidation:rule="self.minReplicas <= self.maxReplicas",message="scaling.minReplicas must not be above scaling.maxReplicas"
type Scaling struct {
	// minReplicas is the number of machines that the pool has even if no job waits.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	MinReplicas int32 `json:"minReplicas"`
	// maxReplicas is the maximum number of machines.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	MaxReplicas int32 `json:"maxReplicas"`
	// scaleDownDelay is the time after which an idle machine that is not needed is deleted.
	// +optional
	// +kubebuilder:default="5m0s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$')",message="scaleDownDelay must be a time such as 0s, 90s or 5m"
	ScaleDownDelay *metav1.Duration `json:"scaleDownDelay,omitempty"`
	// warm defines machines that are ready before there is a job for them.
	// +optional
	Warm *Warm `json:"warm,omitempty"`
	// schedules raise minReplicas in recurring time windows. If windows overlap, the highest value
	// counts.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	Schedules []Schedule `json:"schedules,omitempty"`
}

// Warm defines machines that can take a job sooner than a machine that has to be created first. All of
// them count as machines of the pool, so maxReplicas limits them too.
// +kubebuilder:validation:XValidation:rule="!has(self.maxIdle) || self.maxIdle >= (has(self.idle) ? self.idle : 0)",message="scaling.warm.maxIdle must not be below scaling.warm.idle"
type Warm struct {
	// idle is the number of runners that are online in addition to the runners that have a job.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Idle int32 `json:"idle,omitempty"`
	// maxIdle allows the number of idle runners to grow up to this value with the rate of jobs, so that a
	// runner is ready for each job that arrives while a new machine is created.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	MaxIdle *int32 `json:"maxIdle,omitempty"`
	// stopped is the number of machines that are created and configured but not started. They use disk
	// space but no memory.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Stopped int32 `json:"stopped,omitempty"`
}

// Schedule is a recurring time window.
type Schedule struct {
	// name is the name of the window.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// start is the start of the window as a cron expression with five fields, e.g. 0 7 * * 1-5.
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=100
	Start string `json:"start"`
	// duration is the length of the window.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) > duration('0s')",message="duration must be a time above zero such as 90s, 15m or 1h30m"
	Duration metav1.Duration `json:"duration"`
	// timeZone is the time zone of start, as in the IANA time zone database. Default: UTC.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	TimeZone string `json:"timeZone,omitempty"`
	// minReplicas is the minimum number of machines in the window.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	MinReplicas int32 `json:"minReplicas"`
}

// Lifecycle holds the timeouts of a machine.
type Lifecycle struct {
	// maxLifetime is the maximum time from the creation of a machine until it is deleted, whatever the
	// machine does.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) > duration('0s')",message="maxLifetime must be a time above zero such as 90s, 15m or 1h30m"
	MaxLifetime *metav1.Duration `json:"maxLifetime,omitempty"`
	// idleTimeout is the time after which a machine without a job is deleted. A machine that counts
	// towards minReplicas is replaced.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) > duration('0s')",message="idleTimeout must be a time above zero such as 90s, 15m or 1h30m"
	IdleTimeout *metav1.Duration `json:"idleTimeout,omitempty"`
	// jobTimeout is the time after which a machine with a running job is deleted.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) > duration('0s')",message="jobTimeout must be a time above zero such as 90s, 15m or 1h30m"
	JobTimeout *metav1.Duration `json:"jobTimeout,omitempty"`
	// bootstrapTimeout is the time after its start within which a machine's runner must be online.
	// Otherwise the machine is deleted.
	// +optional
	// +kubebuilder:default="15m0s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) > duration('0s')",message="bootstrapTimeout must be a time above zero such as 90s, 15m or 1h30m"
	BootstrapTimeout *metav1.Duration `json:"bootstrapTimeout,omitempty"`
	// keepFailed keeps failed machines unchanged for a time, so that a person can debug them. If it is
	// not set, failed machines are deleted at once.
	// +optional
	KeepFailed *KeepFailed `json:"keepFailed,omitempty"`
}

// KeepFailed defines how many failed machines are kept, and for how long.
type KeepFailed struct {
	// machines is the maximum number of failed machines that are kept. They count towards
	// scaling.maxReplicas, which must be larger.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=20
	Machines int32 `json:"machines,omitempty"`
	// time is the time for which each failed machine is kept.
	// +optional
	// +kubebuilder:default="1h0m0s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) > duration('0s')",message="time must be a time above zero such as 90s, 15m or 1h30m"
	Time *metav1.Duration `json:"time,omitempty"`
}

// MachineFailure is the reason for which a machine failed.
type MachineFailure struct {
	// claim is the name of the machine's MachineClaim. The claim may be deleted already.
	Claim string `json:"claim"`
	// reason is the reason of the failure, as one CamelCase word.
	Reason string `json:"reason"`
	// message describes the failure.
	// +optional
	Message string `json:"message,omitempty"`
	// node is the node that the machine was on.
	// +optional
	Node string `json:"node,omitempty"`
	// time is the time of the failure.
	Time metav1.Time `json:"time"`
}

// RunnerPoolStatus is the observed state of the pool.
type RunnerPoolStatus struct {
	// observedGeneration is the generation of the spec that the status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions are the conditions of the pool.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// replicas is the number of machines in the phases Pending to Draining.
	// +optional
	Replicas int32 `json:"replicas"`
	// readyReplicas is the number of machines whose runner is online.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas"`
	// busyReplicas is the number of machines that run a job.
	// +optional
	BusyReplicas int32 `json:"busyReplicas"`
	// desiredReplicas is the desired number of machines at the last reconcile.
	// +optional
	DesiredReplicas int32 `json:"desiredReplicas"`
	// queuedJobs is the number of jobs that wait for a runner of this pool.
	// +optional
	QueuedJobs int32 `json:"queuedJobs"`
	// runningJobs is the number of jobs that run on this pool.
	// +optional
	RunningJobs int32 `json:"runningJobs"`
	// standbyReplicas is the number of machines that are created and not started.
	// +optional
	StandbyReplicas int32 `json:"standbyReplicas,omitempty"`
	// failedClaims is the number of consecutive failed machines. It delays the creation of new machines.
	// It is reset to 0 when a machine becomes ready.
	// +optional
	FailedClaims int32 `json:"failedClaims,omitempty"`
	// lastFailureTime is the time at which the last machine failed.
	// +optional
	LastFailureTime *metav1.Time `json:"lastFailureTime,omitempty"`
	// lastFailure is the last machine that failed, and the reason. It is kept after the machine's claim
	// is deleted.
	// +optional
	LastFailure *MachineFailure `json:"lastFailure,omitempty"`
	// selector is the label selector of the pool's MachineClaims.
	// +optional
	Selector string `json:"selector,omitempty"`
}

// Templates returns the names of the pool's templates without duplicates. The name in templateRef is the
// first.
func (s *RunnerPoolSpec) Templates() []string {
	out := []string{s.TemplateRef.Name}

	if s.Placement != nil {
		for _, ref := range s.Placement.TemplateRefs {
			if ref.Name != s.TemplateRef.Name {
				out = append(out, ref.Name)
			}
		}
	}

	return out
}

// RunnerPool is a set of equal machines that run CI jobs.
//
// +kubebuilder:object:root=true
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 52 && !self.metadata.name.contains('.')",message="the name of a RunnerPool must have at most 52 characters and no dots, because the host names of its machines begin with it"
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

	// spec is the desired pool.
	Spec RunnerPoolSpec `json:"spec"`
	// status is the observed state of the pool.
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

// StatusConditions returns a pointer to the conditions, for kit/step.
func (p *RunnerPool) StatusConditions() *[]metav1.Condition { return &p.Status.Conditions }

// SetObservedGeneration records the generation that the status describes.
func (p *RunnerPool) SetObservedGeneration(generation int64) {
	p.Status.ObservedGeneration = generation
}
