// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

// Job is one job in the JSON output: fields may be added, but not removed or changed. Templates of
// `hyperfleet web` use the field names.
type Job struct {
	Namespace string `json:"namespace"`
	// Job is the name of the RunnerJob.
	Job        string `json:"job"`
	Platform   string `json:"platform"`
	PlatformID string `json:"platformId"`
	URL        string `json:"url,omitempty"`
	Repository string `json:"repository,omitempty"`
	Workflow   string `json:"workflow,omitempty"`
	Name       string `json:"name,omitempty"`
	// Labels that the runner of the job must have.
	Labels []string          `json:"labels,omitempty"`
	State  v1alpha1.JobState `json:"state"`
	// Conclusion of a completed job, as the CI platform names it.
	Conclusion string `json:"conclusion,omitempty"`
	Pool       string `json:"pool,omitempty"`
	// Machine is the name of the MachineClaim, which may have been deleted.
	Machine string `json:"machine,omitempty"`
	Runner  string `json:"runner,omitempty"`
	// Cause for which the job waits; nil if it does not wait.
	Cause *Cause `json:"cause,omitempty"`
	// WaitedSeconds and RanSeconds are the times for which the job has waited and run until now. RanSeconds
	// is nil if the job has not started.
	WaitedSeconds float64  `json:"waitedSeconds"`
	RanSeconds    *float64 `json:"ranSeconds,omitempty"`
	// TraceID of the job's trace, which is also in the lines of the operator's log.
	TraceID string `json:"traceId,omitempty"`
	// Logs is the name of the RunnerLog with the end of the runner's log.
	Logs string `json:"logs,omitempty"`
}

// Cause describes what a job waits for.
type Cause struct {
	// Reason is the reason of the job's Ready condition.
	Reason string `json:"reason"`
	// Message describes the reason and the fix.
	Message string `json:"message"`
}

// Details is a job with its timeline, machines and log in the JSON output: fields may be added, but not
// removed or changed. Templates of `hyperfleet web` use the field names.
type Details struct {
	Job

	Timeline []TimelineEntry `json:"timeline"`
	// VM of the job's machine, if its claim exists.
	VM *VM `json:"vm,omitempty"`
	// Coming lists the machines that may still run the job, while it waits.
	Coming []VM `json:"coming,omitempty"`
	// Kept lists failed machines of the pool that are kept for inspection, while the job waits.
	Kept []VM `json:"kept,omitempty"`
	// Log is the end of the runner's output; null if no log was kept.
	Log *string `json:"log"`
	// LogURL is the location of the log in an object store, as s3://BUCKET/KEY.
	LogURL string `json:"logUrl,omitempty"`
	// LogProblem is the reason why an existing log cannot be read.
	LogProblem string `json:"-"`
	// LogCut is true if the beginning of the log is missing.
	LogCut bool `json:"-"`
	// NotStored is the error of the object store if the log could not be written to it.
	NotStored string `json:"-"`
}

// TimelineEntry is one event in the timeline of a job or a machine.
type TimelineEntry struct {
	Moment  v1alpha1.JobMoment `json:"moment"`
	Time    time.Time          `json:"time"`
	Message string             `json:"message,omitempty"`
	// AfterSeconds is the time since the previous entry.
	AfterSeconds float64 `json:"afterSeconds"`
}

// VM describes the machine of a claim.
type VM struct {
	Claim   string `json:"claim"`
	Phase   string `json:"phase,omitempty"`
	Cluster string `json:"cluster,omitempty"`
	Node    string `json:"node,omitempty"`
	ID      string `json:"id,omitempty"`
	IP      string `json:"ip,omitempty"`
	// Reason and Message of the claim's condition Ready.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// NewJob returns a RunnerJob in the form in which commands and pages show it.
func NewJob(job *v1alpha1.RunnerJob, now time.Time) Job {
	spec := &job.Spec
	out := Job{
		Namespace: job.Namespace, Job: job.Name, Platform: spec.Platform, PlatformID: spec.ID, URL: spec.URL,
		Repository: spec.Repository, Workflow: spec.Workflow, Name: spec.Name, Labels: spec.Labels, State: spec.State,
		Conclusion: spec.Conclusion, Pool: job.PoolName(), Machine: job.Status.Claim, Runner: spec.RunnerName,
		Cause: newCause(job, now), TraceID: job.Status.TraceID, Logs: job.Status.Logs,
	}

	waited, ran := measureTimes(job, now)
	out.WaitedSeconds = waited.Seconds()

	if ran >= 0 {
		seconds := ran.Seconds()
		out.RanSeconds = &seconds
	}

	return out
}

// newCause returns what a job waits for, from its Ready condition. It returns nil if the job does not wait.
func newCause(job *v1alpha1.RunnerJob, now time.Time) *Cause {
	if !isWaiting(job) {
		return nil
	}

	if demand.IsStatusDelayed(job, now) {
		return &Cause{demand.ReasonWaitingForMachine, demand.WaitingMessage(job.PoolName())}
	}

	ready := meta.FindStatusCondition(job.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil {
		return &Cause{"NotReconciled", "the operator has not reconciled the job yet: check that it is running"}
	}

	return &Cause{v1alpha1.CurrentReason(ready.Reason), ready.Message}
}

// measureTimes returns how long a job has waited and run until now. ran is negative if the job has not
// started.
func measureTimes(job *v1alpha1.RunnerJob, now time.Time) (waited, ran time.Duration) {
	start, end := eventTime(job, v1alpha1.MomentStarted), now

	if job.Spec.State == v1alpha1.JobCompleted {
		end = cmp.Or(eventTime(job, v1alpha1.MomentFinished), now)
	}

	if start.IsZero() {
		return max(end.Sub(queuedAt(job)), 0), -1
	}

	return max(start.Sub(queuedAt(job)), 0), max(end.Sub(start), 0)
}

// eventTime returns the time of a kind of event from the timeline of the job. If the timeline does not have the
// event, it uses the time that the CI platform reported, and otherwise returns the zero time.
func eventTime(job *v1alpha1.RunnerJob, kind v1alpha1.JobMoment) time.Time {
	i := slices.IndexFunc(job.Status.Timeline, func(e v1alpha1.JobEvent) bool { return e.Moment == kind })
	if i >= 0 {
		return job.Status.Timeline[i].Time.Time
	}

	switch {
	case kind == v1alpha1.MomentStarted && job.Spec.StartedAt != nil && job.Spec.RunnerName != "":
		return job.Spec.StartedAt.Time
	case kind == v1alpha1.MomentFinished && job.Spec.CompletedAt != nil:
		return job.Spec.CompletedAt.Time
	default:
		return time.Time{}
	}
}

func newDetails(objects *jobObjects, now time.Time) Details {
	out := Details{Job: NewJob(objects.job, now), Timeline: []TimelineEntry{}}

	var previous time.Time

	for _, event := range listEvents(objects.job) {
		entry := TimelineEntry{Moment: event.Moment, Time: event.Time.UTC(), Message: event.Message}
		if !previous.IsZero() {
			entry.AfterSeconds = max(entry.Time.Sub(previous), 0).Seconds()
		}

		previous = entry.Time
		out.Timeline = append(out.Timeline, entry)
	}

	if objects.claim != nil {
		vm := NewVM(objects.claim)
		out.VM, out.Machine = &vm, vm.Claim
	}

	for i := range objects.candidates {
		out.Coming = append(out.Coming, NewVM(&objects.candidates[i]))
	}

	for i := range objects.kept {
		out.Kept = append(out.Kept, NewVM(&objects.kept[i]))
	}

	out.LogProblem, out.LogURL = objects.logProblem, objects.logURL

	if objects.log != nil {
		out.Log, out.LogCut, out.NotStored = &objects.log.Spec.Text, objects.log.Spec.Cut, objects.log.Spec.NotStored
	}

	return out
}

// listEvents returns the timeline of a job. Until the operator has written it, these are the events that the job itself has.
func listEvents(job *v1alpha1.RunnerJob) []v1alpha1.JobEvent {
	pool := job.PoolName()
	if len(job.Status.Timeline) > 0 || pool == "" || job.Spec.ReceivedAt == nil {
		return job.Status.Timeline
	}

	return demand.BuildTimeline(demand.TimelineInput{Job: job.Spec, Pool: pool, Now: job.Spec.ReceivedAt.Time})
}

// LoadDetails returns the details of a job. reader may be a cache. The RunnerLog is read with apiReader,
// because caches do not contain RunnerLogs.
func LoadDetails(ctx context.Context, reader, apiReader client.Reader, key client.ObjectKey, now time.Time) (Details, error) {
	var job v1alpha1.RunnerJob
	if err := reader.Get(ctx, key, &job); err != nil {
		return Details{}, fmt.Errorf("get RunnerJob %s: %w", key, err)
	}

	objects, err := (&source{client: reader, namespace: key.Namespace}).loadObjects(ctx, &job, apiReader)
	if err != nil {
		return Details{}, err
	}

	return newDetails(objects, now), nil
}

// NewVM returns the machine of a claim in the form in which commands and pages show it.
func NewVM(claim *v1alpha1.MachineClaim) VM {
	out := VM{Claim: claim.Name, Phase: string(claim.Status.Phase)}

	if ref := claim.Status.VMRef; ref != nil {
		out.Cluster, out.Node, out.ID = ref.HypervisorCluster, ref.Node, ref.VMID
	}

	if info := claim.Status.NetworkInfo; info != nil {
		out.IP = info.IPAddress
	}

	if ready := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionReady); ready != nil {
		out.Reason, out.Message = v1alpha1.CurrentReason(ready.Reason), ready.Message
	}

	return out
}
