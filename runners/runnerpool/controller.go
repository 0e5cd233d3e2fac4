// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool

import (
	"context"
	"fmt"
	"slices"
	"time"

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
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

// reconcileTimeout is the timeout of one reconcile of one pool.
const reconcileTimeout = time.Minute

// Reconciler reconciles RunnerPools.
type Reconciler struct {
	Client client.Client
	// Live reads from the API server, for reads for which the cache may be stale.
	Live           client.Reader
	StepReconciler *step.Reconciler
	Recorder       events.EventRecorder
	Clock          clock.PassiveClock
	// Platforms decide which jobs the pools' runners can run.
	Platforms demand.Platforms
	// Sources returns the status of the job sources, and Trigger enqueues a pool when that status
	// changes. Either may be nil.
	Sources SourceStatuses
	Trigger *watch.Source

	memories memories
}

//+kubebuilder:rbac:groups=hyperfleet.io,resources=runnerpools,verbs=get;list;watch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=runnerpools/status,verbs=patch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=runnerpools/finalizers,verbs=update
//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims,verbs=get;list;watch;create;patch;delete
//+kubebuilder:rbac:groups=hyperfleet.io,resources=hypervisorclusters;hypervisormachinetemplates;runnerjobs,verbs=get;list;watch

// SetupWithManager adds the controller to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	build := ctrl.NewControllerManagedBy(mgr).
		Named("runnerpool").
		For(&v1alpha1.RunnerPool{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&v1alpha1.MachineClaim{}).
		WithOptions(controller.Options{ReconciliationTimeout: reconcileTimeout}).
		Watches(&v1alpha1.RunnerJob{}, handler.EnqueueRequestsFromMapFunc(r.findPools),
			builder.WithPredicates(newJobPredicate())).
		Watches(&v1alpha1.HypervisorMachineTemplate{}, handler.EnqueueRequestsFromMapFunc(r.findPools)).
		Watches(&v1alpha1.HypervisorCluster{}, handler.EnqueueRequestsFromMapFunc(r.findPools),
			builder.WithPredicates(newClusterPredicate()))
	if r.Trigger != nil {
		build = build.WatchesRawSource(r.Trigger)
	}

	if err := build.Complete(r); err != nil {
		return fmt.Errorf("add controller runnerpool: %w", err)
	}

	return nil
}

// findPools returns requests for the pools in obj's namespace, or for all pools if obj has no
// namespace. All of them are needed, because each reconcile decides again which pool serves a job.
func (r *Reconciler) findPools(ctx context.Context, obj client.Object) []reconcile.Request {
	return watch.ListRequests[*v1alpha1.RunnerPool](ctx, r.Client, &v1alpha1.RunnerPoolList{}, nil,
		client.InNamespace(obj.GetNamespace()))
}

// newJobPredicate returns a predicate that accepts the updates of a job that may change the desired
// number of machines.
func newJobPredicate() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			previous, oldOK := e.ObjectOld.(*v1alpha1.RunnerJob)
			current, newOK := e.ObjectNew.(*v1alpha1.RunnerJob)

			return !oldOK || !newOK || hasDemandChanged(&previous.Spec, &current.Spec)
		},
	}
}

// hasDemandChanged reports whether a job's update may change which pool serves the job, or whether
// the job waits.
func hasDemandChanged(previous, current *v1alpha1.RunnerJobSpec) bool {
	return previous.State != current.State || previous.RunnerName != current.RunnerName || previous.Queue != current.Queue ||
		previous.LabelsUnknown != current.LabelsUnknown || !slices.Equal(previous.Labels, current.Labels)
}

// newClusterPredicate returns a predicate that accepts an update of a cluster in which the readiness of the cluster or of a
// node changes, or the memory that its nodes have in total, because other machines can be created or deleted now.
func newClusterPredicate() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			previous, oldOK := e.ObjectOld.(*v1alpha1.HypervisorCluster)
			current, newOK := e.ObjectNew.(*v1alpha1.HypervisorCluster)

			return !oldOK || !newOK || step.IsReady(previous) != step.IsReady(current) ||
				!slices.EqualFunc(previous.Status.Nodes, current.Status.Nodes, isSameNode)
		},
	}
}

func isSameNode(a, b v1alpha1.HypervisorNodeStatus) bool {
	if a.Name != b.Name || a.Online != b.Online {
		return false
	}

	if a.Capacity == nil || b.Capacity == nil {
		return a.Capacity == b.Capacity
	}

	return a.Capacity.Memory.Cmp(b.Capacity.Memory) == 0
}

// scope holds the data of one reconcile of one pool.
type scope struct {
	*Reconciler
	*memory
	pool *v1alpha1.RunnerPool
	// view and sources are set by the step observe.
	view    *view
	sources []source
	// clusters are the HypervisorClusters that the reconcile has read, by name.
	clusters map[string]*v1alpha1.HypervisorCluster
	// requeueAfter is the delay until the time alone changes the desired state; zero means never.
	requeueAfter time.Duration
	// recheckIn is the delay until a machine that waits may be created from another template; zero means never.
	recheckIn time.Duration
}

// conditionScaling is the condition of the step that creates and deletes machines.
const conditionScaling = "Scaling"

func steps() []step.Step[*scope] {
	return []step.Step[*scope]{
		{Condition: "Observed", Run: observe},             // counts claims and jobs
		{Condition: "TemplateReady", Run: checkTemplates}, // checks that a template is usable
		{Condition: conditionScaling, Run: scale},         // creates and deletes machines
	}
}

// Reconcile scales one pool.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var pool v1alpha1.RunnerPool
	if err := r.Client.Get(ctx, req.NamespacedName, &pool); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.memories.forget(req.NamespacedName)
		}

		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	// The garbage collector deletes the claims of a pool that is being deleted.
	if !pool.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil
	}

	s := &scope{Reconciler: r, memory: r.memories.get(req.NamespacedName), pool: &pool}
	if remaining := s.throttle.remaining(r.Clock.Now()); remaining > 0 {
		return reconcile.Result{RequeueAfter: remaining}, nil
	}

	result, err := step.ReconcileSteps(ctx, r.StepReconciler, &pool, steps(), s)
	if err == nil {
		result.RequeueAfter = step.ChooseSooner(result.RequeueAfter, s.requeueAfter)
	}

	return result, err
}
