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
	"github.com/hyperfleet/hyperfleet/kit/objects"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/kit/trigger"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

// passTimeout bounds one pass over one pool.
const passTimeout = time.Minute

// Reconciler reconciles RunnerPools.
type Reconciler struct {
	Client client.Client
	// Live reads from the API server itself, where a cache may be behind.
	Live     client.Reader
	Runner   *step.Runner
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
	// Platforms tell which jobs the pools' runners take.
	Platforms demand.Platforms
	// Sources tells how jobs are heard of, and Trigger of what is new about that. Either may be
	// nil.
	Sources SourceStatuses
	Trigger *trigger.Source

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
		WithOptions(controller.Options{ReconciliationTimeout: passTimeout}).
		Watches(&v1alpha1.RunnerJob{}, handler.EnqueueRequestsFromMapFunc(r.poolsIn),
			builder.WithPredicates(jobMoved())).
		Watches(&v1alpha1.HypervisorMachineTemplate{}, handler.EnqueueRequestsFromMapFunc(r.poolsIn)).
		Watches(&v1alpha1.HypervisorCluster{}, handler.EnqueueRequestsFromMapFunc(r.poolsIn),
			builder.WithPredicates(clusterTurned()))
	if r.Trigger != nil {
		build = build.WatchesRawSource(r.Trigger)
	}

	if err := build.Complete(r); err != nil {
		return fmt.Errorf("add controller runnerpool: %w", err)
	}

	return nil
}

// poolsIn wakes the pools of an object's namespace, or all where it has none: which of
// them a job goes to is decided anew on each pass.
func (r *Reconciler) poolsIn(ctx context.Context, obj client.Object) []reconcile.Request {
	return objects.Requests[*v1alpha1.RunnerPool](ctx, r.Client, &v1alpha1.RunnerPoolList{}, nil,
		client.InNamespace(obj.GetNamespace()))
}

// jobMoved lets through what changes how many machines are wanted.
func jobMoved() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*v1alpha1.RunnerJob)
			after, ok2 := e.ObjectNew.(*v1alpha1.RunnerJob)

			return !ok || !ok2 || asksAnew(&before.Spec, &after.Spec)
		},
	}
}

// asksAnew tells whether a job's news may change who answers for it, or that it waits.
func asksAnew(before, after *v1alpha1.RunnerJobSpec) bool {
	return before.State != after.State || before.RunnerName != after.RunnerName || before.Queue != after.Queue ||
		before.LabelsUnknown != after.LabelsUnknown || !slices.Equal(before.Labels, after.Labels)
}

// clusterTurned lets through that a cluster has become ready, or is no longer.
func clusterTurned() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*v1alpha1.HypervisorCluster)
			after, ok2 := e.ObjectNew.(*v1alpha1.HypervisorCluster)

			return !ok || !ok2 || step.IsReady(before) != step.IsReady(after)
		},
	}
}

// scope is one pass over one pool.
type scope struct {
	*Reconciler
	*memory
	pool *v1alpha1.RunnerPool
	// seen and sources are filled by observe.
	seen    *view
	sources []source
	// after is when time alone changes what is wanted.
	after time.Duration
}

// conditionScaling is that of the step that makes and removes machines.
const conditionScaling = "Scaling"

func steps() []step.Step[*scope] {
	return []step.Step[*scope]{
		{Condition: "Observed", Run: observe},            // claims and jobs counted
		{Condition: "TemplateReady", Run: templateReady}, // machines can be made from one of the templates
		{Condition: conditionScaling, Run: scale},        // as many as wanted
	}
}

// Reconcile makes one pass over one pool.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var pool v1alpha1.RunnerPool
	if err := r.Client.Get(ctx, req.NamespacedName, &pool); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.memories.forget(req.NamespacedName)
		}

		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	// The claims of a pool that is being deleted are the garbage collector's.
	if !pool.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil
	}

	s := &scope{Reconciler: r, memory: r.memories.of(req.NamespacedName), pool: &pool}
	if left := s.rest.left(r.Clock.Now()); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}

	result, err := step.Run(ctx, r.Runner, &pool, steps(), s)
	if err == nil && s.after > 0 && (result.RequeueAfter == 0 || s.after < result.RequeueAfter) {
		result.RequeueAfter = s.after
	}

	return result, err
}
