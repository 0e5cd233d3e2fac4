// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypervisorcluster

import (
	"context"
	"fmt"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/connect"
)

// finalizer keeps a cluster while machines need its credentials to be removed.
const finalizer = "hyperfleet.io/machines"

// checkTimeout bounds one look at a hypervisor.
const checkTimeout = 45 * time.Second

// concurrency is how many clusters are looked at side by side: one that does not answer
// must not hold up the rest.
const concurrency = 8

// Reconciler reconciles HypervisorClusters.
type Reconciler struct {
	Client   client.Client
	Runner   *step.Runner
	Clusters *connect.Clusters
	// Interval between two looks at a hypervisor.
	Interval time.Duration
}

//+kubebuilder:rbac:groups=hyperfleet.io,resources=hypervisorclusters,verbs=get;list;watch;patch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=hypervisorclusters/status,verbs=patch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims,verbs=get;list;watch
//+kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
//+kubebuilder:rbac:groups="",namespace=hyperfleet-system,resources=secrets,verbs=get

// SetupWithManager adds the controller to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("hypervisorcluster").
		For(&v1alpha1.HypervisorCluster{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.MachineClaim{}, handler.EnqueueRequestsFromMapFunc(r.clusterOf),
			builder.WithPredicates(gone())).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency, ReconciliationTimeout: checkTimeout}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add controller hypervisorcluster: %w", err)
	}

	return nil
}

// clusterOf wakes a cluster that waits for its last machine to go. Claims come and go all
// the time: a cluster that stays has its own rhythm.
func (r *Reconciler) clusterOf(ctx context.Context, obj client.Object) []reconcile.Request {
	claim, ok := obj.(*v1alpha1.MachineClaim)
	if !ok || claim.Status.VMRef == nil {
		return nil
	}

	key := client.ObjectKey{Name: claim.Status.VMRef.HypervisorCluster}

	var cluster v1alpha1.HypervisorCluster
	if err := r.Client.Get(ctx, key, &cluster); err != nil || cluster.DeletionTimestamp.IsZero() {
		return nil
	}

	return []reconcile.Request{{NamespacedName: key}}
}

// gone lets through only that something is no more.
func gone() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// scope is one pass over one cluster.
type scope struct {
	*Reconciler
	cluster *v1alpha1.HypervisorCluster
	// provider is filled by credentials.
	provider hypervisor.Provider
}

func plan() step.Plan[*scope] {
	return step.Plan[*scope]{Finalizer: finalizer, Ready: &step.ReadyEvent{Reason: "Connected", Message: "the hypervisor answers"},
		Steps: []step.Step[*scope]{
			{Condition: "Credentials", Run: credentials}, // secrets read, connection made
			{Condition: "Connected", Run: connected},     // reached, authenticated, privileged
			{Condition: "Inspected", Run: inspected},     // nodes and free resources known
		}, Deletion: []step.Step[*scope]{
			{Condition: "MachinesGone", Run: machinesGone},
		}}
}

// Reconcile looks at one cluster.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var cluster v1alpha1.HypervisorCluster
	if err := r.Client.Get(ctx, req.NamespacedName, &cluster); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	s := &scope{Reconciler: r, cluster: &cluster}

	result, err := step.Pass(ctx, r.Runner, &cluster, plan(), s)

	if err == nil && (result.RequeueAfter == 0 || result.RequeueAfter > r.Interval) {
		result.RequeueAfter = r.Interval
	}

	return result, err
}
