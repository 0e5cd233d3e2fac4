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
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/kit/watch"
	"github.com/hyperfleet/hyperfleet/workload"
)

// Conditions of a RunnerJob.
const (
	// ConditionMatched is True when a pool serves the job.
	ConditionMatched = "Matched"
	// ConditionConfirmed holds the result of the last call to the CI platform about the job. It is
	// absent as long as the job's webhooks arrive.
	ConditionConfirmed = "Confirmed"
)

const (
	reconcileTimeout    = time.Minute
	defaultRetention    = 24 * time.Hour
	defaultConfirmAfter = 5 * time.Minute
	// maxConcurrentJobs is how many jobs are reconciled at the same time.
	maxConcurrentJobs = 4
	// platformCallRate and platformCallBurst limit the calls to all platforms together: 1,800 an
	// hour of the 5,000 calls that GitHub allows.
	platformCallRate  = 0.5
	platformCallBurst = 10
	// labelCallRate and labelCallBurst limit the calls for the labels of jobs. Only GitLab's webhooks lack them. A job
	// causes several other calls to GitLab without this limit.
	labelCallRate  = 5
	labelCallBurst = 50
	// maxConfirmInterval limits the interval between two calls about one job. The interval starts
	// at JobReconciler.ConfirmAfter and doubles with each call.
	maxConfirmInterval = time.Hour
)

// Providers returns the provider that creates a pool's runners.
type Providers interface {
	ProviderFor(
		ctx context.Context, template *v1alpha1.HypervisorMachineTemplate, workloadSpec v1alpha1.Workload,
	) (workload.Provider, error)
}

// JobReconciler keeps the job ledger up to date. It records the pool that serves a job and the
// claim whose runner took the job, asks the platform about jobs whose webhooks are missing, and
// deletes completed jobs after the retention.
type JobReconciler struct {
	Client client.Client
	// Live reads from the API server, not from a cache. Default: Client.
	Live           client.Reader
	StepReconciler *step.Reconciler
	Providers      Providers
	Platforms      Platforms
	// Clock is the source of the current time. Default: the real clock.
	Clock clock.PassiveClock
	// Retention is how long completed jobs are kept. Default: 24 hours.
	Retention time.Duration
	// ConfirmAfter is how long after the last event of a job the platform is asked about the job.
	// Default: 5 minutes.
	ConfirmAfter time.Duration
	// Metrics and JobMetrics may be nil.
	Metrics    *Metrics
	JobMetrics *JobMetrics
	// Logs finds the logs of machines. May be nil.
	Logs Logs
	// Recorder emits the events of jobs. May be nil.
	Recorder events.EventRecorder

	once            sync.Once
	limiter         *rate.Limiter
	labelLimiter    *rate.Limiter
	confirmCalls    confirmCalls
	deletedMachines deletedMachines
}

//+kubebuilder:rbac:groups=hyperfleet.io,resources=runnerjobs,verbs=get;list;watch;create;update;delete
//+kubebuilder:rbac:groups=hyperfleet.io,resources=runnerjobs/status,verbs=patch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=runnerpools;hypervisormachinetemplates;machineclaims,verbs=get;list;watch

// SetupWithManager adds the controller to a manager.
func (r *JobReconciler) SetupWithManager(mgr ctrl.Manager) error {
	changed := builder.WithPredicates(predicate.GenerationChangedPredicate{})

	if err := AddIndexes(context.Background(), mgr.GetFieldIndexer()); err != nil {
		return err
	}

	err := ctrl.NewControllerManagedBy(mgr).
		Named("runnerjob").
		For(&v1alpha1.RunnerJob{},
			builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, newPoolChangedPredicate()))).
		Watches(&v1alpha1.RunnerPool{}, r.newPoolHandler()).
		Watches(&v1alpha1.MachineClaim{}, r.newClaimHandler()).
		Watches(&v1alpha1.HypervisorMachineTemplate{}, handler.EnqueueRequestsFromMapFunc(r.findUnfinishedJobs), changed).
		WithOptions(controller.Options{MaxConcurrentReconciles: maxConcurrentJobs, ReconciliationTimeout: reconcileTimeout}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add controller runnerjob: %w", err)
	}

	return nil
}

// newPoolChangedPredicate returns a predicate that accepts an update in which the job's pool has
// changed. An event of the new pool between the previous reconcile and this update did not enqueue
// the job, because the index by pool did not list the job yet.
func newPoolChangedPredicate() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		previous, oldOK := e.ObjectOld.(*v1alpha1.RunnerJob)
		current, newOK := e.ObjectNew.(*v1alpha1.RunnerJob)

		return oldOK && newOK && current.PoolName() != "" && previous.PoolName() != current.PoolName()
	}}
}

// findUnfinishedJobs returns requests for the jobs in obj's namespace that are not completed, because
// another pool may serve them now.
func (r *JobReconciler) findUnfinishedJobs(ctx context.Context, obj client.Object) []reconcile.Request {
	return watch.ListRequests[*v1alpha1.RunnerJob](ctx, r.Client, &v1alpha1.RunnerJobList{}, nil,
		client.InNamespace(obj.GetNamespace()), Unfinished())
}

// scope holds the data of one reconcile of one job.
type scope struct {
	*JobReconciler

	job   *v1alpha1.RunnerJob
	pools []loadedPool
	// confirmation is the condition that results from a call to the platform; nil if this reconcile
	// made no call.
	confirmation *metav1.Condition
	// requeueAfter is the delay until the next reconcile; zero means that only events trigger one.
	requeueAfter time.Duration
	// timelineBefore is the timeline at the start of the reconcile, and cause is what the job waits
	// for.
	timelineBefore []v1alpha1.JobEvent
	cause          Cause
	// claimBefore is status.claim at the start of the reconcile. jobMachine is the job's machine;
	// nil if it is unknown.
	claimBefore string
	jobMachine  *Machine
}

// requeueIn makes the next reconcile run after the delay, unless an earlier one is scheduled.
func (s *scope) requeueIn(delay time.Duration) {
	s.requeueAfter = step.ChooseSooner(s.requeueAfter, max(delay, time.Millisecond))
}

func steps() []step.Step[*scope] {
	return []step.Step[*scope]{
		{Name: "Claimed", Run: findClaim},               // sets status.claim
		{Name: "Confirmed", Run: reportConfirmation},    // reports the result of the call to the platform
		{Name: "TimelineRecorded", Run: recordTimeline}, // writes status.timeline
		{Name: "LogFound", Run: findLog},                // sets status.logs
		{Condition: ConditionMatched, Run: matchPool},   // sets status.pool
		{Condition: ConditionServed, Run: reportServed}, // reports the machine, or the cause of the wait
	}
}

// Reconcile updates the status of one job, or deletes a completed job whose retention has ended.
func (r *JobReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	r.once.Do(r.setDefaults)

	var job v1alpha1.RunnerJob
	if err := r.Client.Get(ctx, req.NamespacedName, &job); err != nil {
		r.confirmCalls.forget(req.NamespacedName)

		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	if !job.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil
	}

	s := &scope{JobReconciler: r, job: &job}

	if job.Spec.State == v1alpha1.JobCompleted {
		r.confirmCalls.forget(req.NamespacedName)

		remaining := completionTime(&job).Add(r.Retention).Sub(r.Clock.Now())
		if remaining <= 0 {
			return reconcile.Result{}, r.deleteJob(ctx, &job)
		}

		s.requeueIn(remaining)
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
	s.claimBefore, s.timelineBefore = s.job.Status.Claim, s.job.Status.Timeline

	result, err := step.ReconcileSteps(ctx, r.StepReconciler, s.job, steps(), s)
	if err == nil && s.job.ResourceVersion != version {
		s.publishNewEvents()
	}

	if err == nil {
		result.RequeueAfter = step.ChooseSooner(result.RequeueAfter, s.requeueAfter)
	}

	return result, err
}

func (r *JobReconciler) setDefaults() {
	if r.Clock == nil {
		r.Clock = clock.RealClock{}
	}

	if r.Retention <= 0 {
		r.Retention = defaultRetention
	}

	if r.ConfirmAfter <= 0 {
		r.ConfirmAfter = defaultConfirmAfter
	}

	if r.Live == nil {
		r.Live = r.Client
	}

	r.limiter = rate.NewLimiter(platformCallRate, platformCallBurst)
	r.labelLimiter = rate.NewLimiter(labelCallRate, labelCallBurst)
}

// deleteJob deletes exactly the object that the reconcile read (by UID and resource version), and
// the job's log.
func (r *JobReconciler) deleteJob(ctx context.Context, job *v1alpha1.RunnerJob) error {
	err := r.Client.Delete(ctx, job, client.Preconditions{UID: &job.UID, ResourceVersion: &job.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete job %s: %w", client.ObjectKeyFromObject(job), err)
	}

	if r.Logs == nil || job.Status.Logs == "" {
		return nil
	}

	return r.Logs.Delete(ctx, job.Namespace, job.Status.Logs)
}

// completionTime returns when a completed job ended, as reported by the platform. It returns the time at which the
// operator received or created the job if that time is later, or if the platform reported no time.
func completionTime(job *v1alpha1.RunnerJob) time.Time {
	timestamp := job.CreationTimestamp.Time
	if job.Spec.ReceivedAt != nil {
		timestamp = job.Spec.ReceivedAt.Time
	}

	return latestTime(timestamp, job.Spec.CompletedAt)
}

func latestTime(timestamp time.Time, others ...*metav1.Time) time.Time {
	for _, other := range others {
		if other != nil && other.After(timestamp) {
			timestamp = other.Time
		}
	}

	return timestamp
}
