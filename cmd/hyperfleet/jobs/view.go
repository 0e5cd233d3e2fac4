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
)

// Job is one job in JSON output. Fields are only ever added.
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
	// Labels that its runner must have.
	Labels []string          `json:"labels,omitempty"`
	State  v1alpha1.JobState `json:"state"`
	// Conclusion in the platform's word, once it is over.
	Conclusion string `json:"conclusion,omitempty"`
	Pool       string `json:"pool,omitempty"`
	// Machine is the name of its MachineClaim, which may be gone.
	Machine string `json:"machine,omitempty"`
	Runner  string `json:"runner,omitempty"`
	// Cause that it waits for, while it waits.
	Cause *Cause `json:"cause,omitempty"`
	// WaitedSeconds and RanSeconds are how long it waited and ran, up to now.
	WaitedSeconds float64  `json:"waitedSeconds"`
	RanSeconds    *float64 `json:"ranSeconds,omitempty"`
	// TraceID of its trace, which lines in the operator's log have too.
	TraceID string `json:"traceId,omitempty"`
	// Logs is the name of the RunnerLog with the end of its runner's log.
	Logs string `json:"logs,omitempty"`
}

// Cause says what a job waits for.
type Cause struct {
	// Reason in one word.
	Reason string `json:"reason"`
	// Message names the fix.
	Message string `json:"message"`
}

// Explained is a job with its jobDetails in JSON output. Fields are only ever added.
type Explained struct {
	Job

	Timeline []Moment `json:"timeline"`
	// VM of its machine, if the machine is there.
	VM *VM `json:"vm,omitempty"`
	// Coming are the machines that may yet take it, while it waits.
	Coming []VM `json:"coming,omitempty"`
	// Kept are machines of its pool that failed and are there to be looked at, while it waits.
	Kept []VM `json:"kept,omitempty"`
	// Log is the end of the runner's output; null if none was kept.
	Log *string `json:"log"`
	// LogURL is where in an object store the log is, as s3://BUCKET/KEY.
	LogURL string `json:"logUrl,omitempty"`
	// NoLog says why there is none, where somebody should know.
	NoLog string `json:"-"`
	// LogCut says that the beginning of the log is missing.
	LogCut bool `json:"-"`
	// NotStored says why the log is not in the object store that it was for.
	NotStored string `json:"-"`
}

// Moment is a moment of a job's life.
type Moment struct {
	Moment  v1alpha1.JobMoment `json:"moment"`
	Time    time.Time          `json:"time"`
	Message string             `json:"message,omitempty"`
	// AfterSeconds since the moment before.
	AfterSeconds float64 `json:"afterSeconds"`
}

// VM is a machine.
type VM struct {
	Claim   string `json:"claim"`
	Phase   string `json:"phase,omitempty"`
	Cluster string `json:"cluster,omitempty"`
	Node    string `json:"node,omitempty"`
	ID      string `json:"id,omitempty"`
	IP      string `json:"ip,omitempty"`
	// Reason and Message of its condition Ready.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// View is a job as commands and pages show it.
func View(job *v1alpha1.RunnerJob, now time.Time) Job {
	spec := &job.Spec
	out := Job{
		Namespace: job.Namespace, Job: job.Name, Platform: spec.Platform, PlatformID: spec.ID, URL: spec.URL,
		Repository: spec.Repository, Workflow: spec.Workflow, Name: spec.Name, Labels: spec.Labels, State: spec.State,
		Conclusion: spec.Conclusion, Pool: job.Status.Pool, Machine: job.Status.Claim, Runner: spec.RunnerName,
		Cause: causeOf(job), TraceID: job.Status.TraceID, Logs: job.Status.Logs,
	}

	waited, ran := spans(job, now)
	out.WaitedSeconds = waited.Seconds()

	if ran >= 0 {
		seconds := ran.Seconds()
		out.RanSeconds = &seconds
	}

	return out
}

// causeOf is what a job waits for, as the operator last said; nil for one that does not
// wait.
func causeOf(job *v1alpha1.RunnerJob) *Cause {
	if !waits(job) {
		return nil
	}

	ready := meta.FindStatusCondition(job.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil {
		return &Cause{"NotSeen", "the operator has not looked at the job yet: is it running?"}
	}

	return &Cause{ready.Reason, ready.Message}
}

// spans are how long a job waited, and ran; the latter is negative if it did not.
func spans(job *v1alpha1.RunnerJob, now time.Time) (waited, ran time.Duration) {
	start, end := moment(job, v1alpha1.MomentStarted), now

	if job.Spec.State == v1alpha1.JobCompleted {
		end = cmp.Or(moment(job, v1alpha1.MomentFinished), now)
	}

	if start.IsZero() {
		return max(end.Sub(born(job)), 0), -1
	}

	return max(start.Sub(born(job)), 0), max(end.Sub(start), 0)
}

// moment is when a moment of the job's life was; zero if it was not.
func moment(job *v1alpha1.RunnerJob, which v1alpha1.JobMoment) time.Time {
	i := slices.IndexFunc(job.Status.Timeline, func(e v1alpha1.JobEvent) bool { return e.Moment == which })
	if i >= 0 {
		return job.Status.Timeline[i].Time.Time
	}

	switch {
	case which == v1alpha1.MomentStarted && job.Spec.StartedAt != nil && job.Spec.RunnerName != "":
		return job.Spec.StartedAt.Time
	case which == v1alpha1.MomentFinished && job.Spec.CompletedAt != nil:
		return job.Spec.CompletedAt.Time
	default:
		return time.Time{}
	}
}

func explained(of *jobDetails, now time.Time) Explained {
	out := Explained{Job: View(of.job, now), Timeline: []Moment{}}

	var before time.Time

	for _, event := range of.job.Status.Timeline {
		m := Moment{Moment: event.Moment, Time: event.Time.UTC(), Message: event.Message}
		if !before.IsZero() {
			m.AfterSeconds = max(m.Time.Sub(before), 0).Seconds()
		}

		before = m.Time
		out.Timeline = append(out.Timeline, m)
	}

	if of.claim != nil {
		vm := VMOf(of.claim)
		out.VM, out.Machine = &vm, vm.Claim
	}

	for i := range of.coming {
		out.Coming = append(out.Coming, VMOf(&of.coming[i]))
	}

	for i := range of.kept {
		out.Kept = append(out.Kept, VMOf(&of.kept[i]))
	}

	out.NoLog, out.LogURL = of.noLog, of.logAt

	if of.log != nil {
		out.Log, out.LogCut, out.NotStored = &of.log.Spec.Text, of.log.Spec.Cut, of.log.Spec.NotStored
	}

	return out
}

// Explain tells all about a job that is known to the reader, which may be a cache; its log is
// read live.
func Explain(ctx context.Context, reader, live client.Reader, key client.ObjectKey, now time.Time) (Explained, error) {
	var job v1alpha1.RunnerJob
	if err := reader.Get(ctx, key, &job); err != nil {
		return Explained{}, fmt.Errorf("read job %s: %w", key, err)
	}

	details, err := (&source{client: reader, namespace: key.Namespace}).about(ctx, &job, live)
	if err != nil {
		return Explained{}, err
	}

	return explained(details, now), nil
}

// VMOf is a machine as commands and pages show it.
func VMOf(claim *v1alpha1.MachineClaim) VM {
	out := VM{Claim: claim.Name, Phase: string(claim.Status.Phase)}

	if ref := claim.Status.VMRef; ref != nil {
		out.Cluster, out.Node, out.ID = ref.HypervisorCluster, ref.Node, ref.VMID
	}

	if info := claim.Status.NetworkInfo; info != nil {
		out.IP = info.IPAddress
	}

	if ready := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionReady); ready != nil {
		out.Reason, out.Message = ready.Reason, ready.Message
	}

	return out
}
