// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/objects"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/workload"
)

// Conditions of a RunnerJob.
const (
	// ConditionMatched: a pool answers for the job.
	ConditionMatched = "Matched"
	// ConditionConfirmed: what the platform last said when it was asked. It is absent
	// as long as its webhooks come.
	ConditionConfirmed = "Confirmed"
)

const (
	passTimeout      = time.Minute
	defaultRetention = 24 * time.Hour
	defaultSilence   = 5 * time.Minute
	defaultParallel  = 4
	// askRate and askBurst bound the questions to platforms, in all: 1,800 an hour of the
	// 5,000 calls that GitHub allows.
	askRate  = 0.5
	askBurst = 10
	// maxSilence bounds the time between two questions about one job, which doubles from
	// JobReconciler.Silence.
	maxSilence = time.Hour
)

// Providers gives the provider that a pool's runners are made with.
type Providers interface {
	For(ctx context.Context, template *v1alpha1.HypervisorMachineTemplate, load v1alpha1.Workload) (workload.Provider, error)
}

// JobReconciler tends the ledger: it says which pool answers for a job and which claim
// took it, asks the platform about jobs without news, and deletes those that are over.
type JobReconciler struct {
	Client client.Client
	// Live reads from the API server itself. Default: Client.
	Live      client.Reader
	Runner    *step.Runner
	Providers Providers
	Platforms Platforms
	// Clock tells the time. Default: the real clock.
	Clock clock.PassiveClock
	// Retention of completed jobs. Default: 24 hours.
	Retention time.Duration
	// Silence after which the platform is asked about a job. Default: 5 minutes.
	Silence time.Duration
	// Metrics and JobMetrics may be nil.
	Metrics    *Metrics
	JobMetrics *JobMetrics
	// Logs of machines. May be nil.
	Logs Logs
	// Recorder emits the events of jobs. May be nil.
	Recorder events.EventRecorder

	once    sync.Once
	limiter *rate.Limiter
	asked   asked
	gone    gone
}

//+kubebuilder:rbac:groups=hyperfleet.io,resources=runnerjobs,verbs=get;list;watch;create;update;delete
//+kubebuilder:rbac:groups=hyperfleet.io,resources=runnerjobs/status,verbs=patch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=runnerpools;hypervisormachinetemplates;machineclaims,verbs=get;list;watch

// SetupWithManager adds the controller to a manager.
func (r *JobReconciler) SetupWithManager(mgr ctrl.Manager) error {
	changed := builder.WithPredicates(predicate.GenerationChangedPredicate{})

	if err := addIndexes(context.Background(), mgr.GetFieldIndexer()); err != nil {
		return err
	}

	err := ctrl.NewControllerManagedBy(mgr).
		Named("runnerjob").
		For(&v1alpha1.RunnerJob{}, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, matched()))).
		Watches(&v1alpha1.RunnerPool{}, r.poolEvents()).
		Watches(&v1alpha1.MachineClaim{}, r.claimEvents()).
		Watches(&v1alpha1.HypervisorMachineTemplate{}, handler.EnqueueRequestsFromMapFunc(r.jobsIn), changed).
		WithOptions(controller.Options{MaxConcurrentReconciles: defaultParallel, ReconciliationTimeout: passTimeout}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add controller runnerjob: %w", err)
	}

	return nil
}

// matched passes a job that has another pool than before: what happened to that pool since the
// pass that chose it woke nobody, as the job was not yet found by it.
func matched() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*v1alpha1.RunnerJob)
		after, ok2 := e.ObjectNew.(*v1alpha1.RunnerJob)

		return ok && ok2 && after.Status.Pool != "" && before.Status.Pool != after.Status.Pool
	}}
}

// jobsIn wakes the live jobs of an object's namespace: another pool may answer for them.
func (r *JobReconciler) jobsIn(ctx context.Context, obj client.Object) []reconcile.Request {
	return objects.Requests(ctx, r.Client, &v1alpha1.RunnerJobList{}, func(job *v1alpha1.RunnerJob) bool {
		return job.Spec.State != v1alpha1.JobCompleted
	}, client.InNamespace(obj.GetNamespace()), client.UnsafeDisableDeepCopy)
}

// scope is one pass over one job.
type scope struct {
	*JobReconciler

	job   *v1alpha1.RunnerJob
	pools []readPool
	// said is the condition that came of a question to the platform, if one was asked.
	said *metav1.Condition
	// again is when time alone asks for another pass; zero means never.
	again time.Duration
	// told is the timeline as it was, and cause what the job waits for.
	told  []v1alpha1.JobEvent
	cause Cause
	// had is the job's claim as it was, and mine its machine, if one is known.
	had  string
	mine *Machine
}

// later asks for another pass after so long, unless one comes before.
func (s *scope) later(after time.Duration) {
	if after = max(after, time.Millisecond); s.again == 0 || after < s.again {
		s.again = after
	}
}

func steps() []step.Step[*scope] {
	return []step.Step[*scope]{
		{Name: "Claimed", Run: claimed},                 // who took it
		{Name: "Confirmed", Run: confirmed},             // the platform asked, if it has been silent
		{Name: "TimelineRecorded", Run: recordTimeline}, // its timeline
		{Name: "LogFound", Run: findLog},                // its machine's log
		{Condition: ConditionMatched, Run: match},       // a pool answers for it
		{Condition: ConditionServed, Run: served},       // a machine has it, or why not yet
	}
}

// Reconcile makes one pass over one job.
func (r *JobReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	r.once.Do(r.defaults)

	var job v1alpha1.RunnerJob
	if err := r.Client.Get(ctx, req.NamespacedName, &job); err != nil {
		r.asked.forget(req.NamespacedName)

		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	if !job.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil
	}

	s := &scope{JobReconciler: r, job: &job}

	if job.Spec.State == v1alpha1.JobCompleted {
		r.asked.forget(req.NamespacedName)

		left := over(&job).Add(r.Retention).Sub(r.Clock.Now())
		if left <= 0 {
			return reconcile.Result{}, r.remove(ctx, &job)
		}

		s.later(left)
	}

	pools, err := r.Platforms.readPools(ctx, r.Client, job.Namespace)
	if err != nil {
		return reconcile.Result{}, err
	}

	s.pools = pools

	if err := s.confirm(ctx); err != nil {
		return reconcile.Result{}, err
	}

	version := s.job.ResourceVersion
	s.had, s.told = s.job.Status.Claim, s.job.Status.Timeline

	result, err := step.Run(ctx, r.Runner, s.job, steps(), s)
	if err == nil && s.job.ResourceVersion != version {
		s.announce()
	}

	if err == nil && s.again > 0 && (result.RequeueAfter == 0 || s.again < result.RequeueAfter) {
		result.RequeueAfter = s.again
	}

	return result, err
}

func (r *JobReconciler) defaults() {
	if r.Clock == nil {
		r.Clock = clock.RealClock{}
	}

	if r.Retention <= 0 {
		r.Retention = defaultRetention
	}

	if r.Silence <= 0 {
		r.Silence = defaultSilence
	}

	if r.Live == nil {
		r.Live = r.Client
	}

	r.limiter = rate.NewLimiter(askRate, askBurst)
}

// remove deletes the job as it was seen, and no other of its name, and its log.
func (r *JobReconciler) remove(ctx context.Context, job *v1alpha1.RunnerJob) error {
	err := r.Client.Delete(ctx, job, client.Preconditions{UID: &job.UID, ResourceVersion: &job.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete job %s: %w", client.ObjectKeyFromObject(job), err)
	}

	if r.Logs == nil || job.Status.Logs == "" {
		return nil
	}

	return r.Logs.Drop(ctx, job.Namespace, job.Status.Logs)
}

// over is when a completed job was over, as far as anybody said.
func over(job *v1alpha1.RunnerJob) time.Time {
	at := job.CreationTimestamp.Time
	if job.Spec.ReceivedAt != nil {
		at = job.Spec.ReceivedAt.Time
	}

	return latest(at, job.Spec.CompletedAt)
}

func latest(at time.Time, others ...*metav1.Time) time.Time {
	for _, other := range others {
		if other != nil && other.After(at) {
			at = other.Time
		}
	}

	return at
}
