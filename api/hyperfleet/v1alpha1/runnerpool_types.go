// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AnnotationTemplateHash on a MachineClaim of a RunnerPool is a digest of the template and
// the workload that it was made from: when the pool's differ, the machine is replaced.
const AnnotationTemplateHash = "hyperfleet.io/template-hash"

// ConditionDemandSourcesReady of a RunnerPool says how polls and streams of its jobs go. It is
// absent while nobody was asked. Machines are made all the same: webhooks may still come.
const ConditionDemandSourcesReady = "DemandSourcesReady"

// RunnerPoolSpec says what work a pool takes and how many machines it may have.
// +kubebuilder:validation:XValidation:rule="!has(self.workload.config) || !has(self.workload.config.github) || !has(self.workload.config.github.runnerName)",message="workload.config.github.runnerName is for a MachineClaim: a pool gives each of its runners a name of its own"
// +kubebuilder:validation:XValidation:rule="!(self.workload.type in ['buildkite', 'forgejo-actions', 'generic']) || ((!has(self.scaling.minReplicas) || self.scaling.minReplicas == 0) && !has(self.scaling.schedules) && (!has(self.scaling.warm) || ((!has(self.scaling.warm.idle) || self.scaling.warm.idle == 0) && (!has(self.scaling.warm.maxIdle) || self.scaling.warm.maxIdle == 0))))",message="a machine of a buildkite, forgejo-actions or generic pool is made for one job and can't wait for others: leave out scaling.minReplicas, schedules, warm.idle and warm.maxIdle; warm.stopped can be used"
// +kubebuilder:validation:XValidation:rule="!has(self.lifecycle) || !has(self.lifecycle.keepFailed) || !has(self.lifecycle.keepFailed.machines) || !has(self.scaling.maxReplicas) || self.lifecycle.keepFailed.machines < self.scaling.maxReplicas",message="lifecycle.keepFailed.machines must be below scaling.maxReplicas: the machines that are kept count towards it"
type RunnerPoolSpec struct {
	// templateRef names the HypervisorMachineTemplate in the same namespace.
	TemplateRef LocalObjectReference `json:"templateRef"`

	// workload that the pool's machines run.
	Workload Workload `json:"workload"`

	// scaling bounds the number of machines.
	// +optional
	// +kubebuilder:default={minReplicas: 0, maxReplicas: 10}
	Scaling Scaling `json:"scaling,omitempty"`

	// priority among the pools that could take a job: the highest does, as long as it has
	// room; of equals the first by name.
	// +optional
	// +kubebuilder:validation:Minimum=-1000
	// +kubebuilder:validation:Maximum=1000
	Priority int32 `json:"priority,omitempty"`

	// paused keeps the pool as it is: no machine is made and none is removed. Machines
	// that are there go on with their work.
	// +optional
	Paused bool `json:"paused,omitempty"`

	// placement spreads the machines over nodes and clusters.
	// +optional
	Placement *Placement `json:"placement,omitempty"`

	// sizeLabels let a job ask for a machine of another size, or of another image, by its
	// labels. Without them such labels are labels like any other.
	// +optional
	SizeLabels *SizeLabels `json:"sizeLabels,omitempty"`

	// demand says how jobs are heard of, beside webhooks.
	// +optional
	Demand *DemandSources `json:"demand,omitempty"`

	// lifecycle bounds the life of one machine.
	// +optional
	// +kubebuilder:default={}
	Lifecycle *Lifecycle `json:"lifecycle,omitempty"`
}

// SizeLabels are the labels by which a job may ask for a machine of another size: cpu=8,
// memory=16Gi, disk=100Gi and image=NAME. What is left out here can't be asked for. A job that
// asks for more, or twice for the same, or in a way that can't be read, is refused: its
// condition Matched says why. Warm machines and minReplicas are of the template's size.
type SizeLabels struct {
	// maxCPU is the most cores that a job may ask for by cpu=N.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	MaxCPU *int32 `json:"maxCPU,omitempty"`
	// maxMemory is the most memory that a job may ask for by memory=QUANTITY.
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? int(self) >= 67108864 : (string(self).matches('^[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$') && quantity(string(self)).compareTo(quantity('64Mi')) >= 0)",message="maxMemory must be at least 64Mi; write it with a unit such as 64Gi"
	MaxMemory *resource.Quantity `json:"maxMemory,omitempty"`
	// maxDisk is the largest first disk that a job may ask for by disk=QUANTITY. Disks only
	// grow: less than the template has is refused.
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? int(self) >= 1048576 : (string(self).matches('^[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$') && quantity(string(self)).compareTo(quantity('1Mi')) >= 0)",message="maxDisk must be at least 1Mi; write it with a unit such as 200Gi"
	MaxDisk *resource.Quantity `json:"maxDisk,omitempty"`
	// images that a job may ask for by image=NAME.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	Images []ImageChoice `json:"images,omitempty"`
}

// ImageChoice is a template that a job may ask for.
type ImageChoice struct {
	// name in the label image=NAME.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9_.-]*$`
	Name string `json:"name"`
	// templateRef names the HypervisorMachineTemplate, in the pool's namespace, that the
	// machine is made from.
	TemplateRef LocalObjectReference `json:"templateRef"`
}

// Placement strategies.
const (
	// PlacementSpread puts a machine where the fewest are.
	PlacementSpread = "Spread"
	// PlacementPack fills one node after the other.
	PlacementPack = "Pack"
)

// Placement spreads machines over nodes and clusters.
type Placement struct {
	// strategy over the nodes of a cluster, and over the clusters.
	// +optional
	// +kubebuilder:default=Spread
	// +kubebuilder:validation:Enum=Spread;Pack
	Strategy string `json:"strategy,omitempty"`
	// templateRefs are further templates, each on a cluster of its own, that machines are
	// made from where the first one's cluster has no room (Pack) or more machines (Spread).
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	TemplateRefs []LocalObjectReference `json:"templateRefs,omitempty"`
}

// DemandSources are ways in which jobs are heard of.
type DemandSources struct {
	// polling asks the platform for jobs. Default: every minute where the pool has no
	// webhook, every five minutes where it has one.
	// +optional
	Polling *Polling `json:"polling,omitempty"`
}

// Polling asks a platform for jobs.
type Polling struct {
	// disabled switches polling off: a job whose webhooks are lost is then never heard of.
	// +optional
	Disabled bool `json:"disabled,omitempty"`
	// interval between two questions.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) > duration('0s')",message="interval must be a time above zero such as 90s, 15m or 1h30m"
	Interval *metav1.Duration `json:"interval,omitempty"`
	// repositories to ask for where the platform has no list of the jobs of the pool's
	// scope (GitHub organisations), beside those that jobs are known of.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=201
	Repositories []string `json:"repositories,omitempty"`
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
	// warm machines are ready before there is a job for them.
	// +optional
	Warm *Warm `json:"warm,omitempty"`
	// schedules raise minReplicas in windows of time. Where windows overlap, the highest
	// counts.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	Schedules []Schedule `json:"schedules,omitempty"`
}

// Warm machines take a job sooner than one that has to be made. All of them count as
// machines of the pool: maxReplicas bounds them too.
// +kubebuilder:validation:XValidation:rule="!has(self.maxIdle) || self.maxIdle >= (has(self.idle) ? self.idle : 0)",message="scaling.warm.maxIdle must not be below scaling.warm.idle"
type Warm struct {
	// idle runners that are online beyond those that have a job.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Idle int32 `json:"idle,omitempty"`
	// maxIdle lets the number of idle runners grow to this with the rate at which jobs
	// come, so that one is ready for as many as come while a machine is made.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	MaxIdle *int32 `json:"maxIdle,omitempty"`
	// stopped machines are made and configured but not started: they take disk space, and
	// no memory.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Stopped int32 `json:"stopped,omitempty"`
}

// Schedule is a window of time that comes again and again.
type Schedule struct {
	// name of the window.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// start of the window as a cron expression of five fields, e.g. 0 7 * * 1-5.
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=100
	Start string `json:"start"`
	// duration of the window.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) > duration('0s')",message="duration must be a time above zero such as 90s, 15m or 1h30m"
	Duration metav1.Duration `json:"duration"`
	// timeZone of start, as in the IANA database. Default: UTC.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	TimeZone string `json:"timeZone,omitempty"`
	// minReplicas within the window.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	MinReplicas int32 `json:"minReplicas"`
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
	// keepFailed leaves machines that failed as they are for a while, for a person to look at.
	// Absent: they are removed at once.
	// +optional
	KeepFailed *KeepFailed `json:"keepFailed,omitempty"`
}

// KeepFailed bounds which failed machines are kept, and for how long.
type KeepFailed struct {
	// machines that are kept at a time. They count towards scaling.maxReplicas, which has to be
	// larger.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=20
	Machines int32 `json:"machines,omitempty"`
	// time that each of them is kept.
	// +optional
	// +kubebuilder:default="1h0m0s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) > duration('0s')",message="time must be a time above zero such as 90s, 15m or 1h30m"
	Time *metav1.Duration `json:"time,omitempty"`
}

// MachineFailure is why a machine was of no use.
type MachineFailure struct {
	// claim is the machine's MachineClaim, which may be gone.
	Claim string `json:"claim"`
	// reason is one CamelCase word, message is for people.
	Reason string `json:"reason"`
	// +optional
	Message string `json:"message,omitempty"`
	// node that the machine was on.
	// +optional
	Node string `json:"node,omitempty"`
	// time of the failure.
	Time metav1.Time `json:"time"`
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
	// standbyReplicas is the number of machines that are made and not started.
	// +optional
	StandbyReplicas int32 `json:"standbyReplicas,omitempty"`
	// failedClaims is the number of machines that failed in a row. It slows the making
	// of new ones and returns to 0 with the first machine that becomes ready.
	// +optional
	FailedClaims int32 `json:"failedClaims,omitempty"`
	// lastFailureTime is when the last machine failed.
	// +optional
	LastFailureTime *metav1.Time `json:"lastFailureTime,omitempty"`
	// lastFailure is the last machine that failed, and why. It outlives the machine's claim.
	// +optional
	LastFailure *MachineFailure `json:"lastFailure,omitempty"`
	// selector of the pool's MachineClaims.
	// +optional
	Selector string `json:"selector,omitempty"`
}

// Templates names the pool's templates, the first one first.
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
