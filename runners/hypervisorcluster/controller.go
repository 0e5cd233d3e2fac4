// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypervisorcluster

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	"github.com/hyperfleet/hyperfleet/kit/keep"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/connect"
)

// finalizer keeps a cluster while the operator needs its credentials to delete machines.
const finalizer = "hyperfleet.io/machines"

// reconcileTimeout limits one reconcile of a cluster.
const reconcileTimeout = 45 * time.Second

// concurrency is how many clusters are reconciled in parallel, so that an unreachable hypervisor does not
// delay the others.
const concurrency = 8

// Reconciler reconciles HypervisorClusters.
type Reconciler struct {
	Client client.Client
	// Live reads the claims of all namespaces from the API server.
	Live           client.Reader
	StepReconciler *step.Reconciler
	Clusters       *connect.Clusters
	// Interval is the time between two checks of a hypervisor.
	Interval time.Duration
	// Keeper keeps the Secrets with the credentials.
	Keeper *keep.Keeper
}

//+kubebuilder:rbac:groups=hyperfleet.io,resources=hypervisorclusters,verbs=get;list;watch;patch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=hypervisorclusters/status,verbs=patch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims,verbs=get;list;watch
//+kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
//+kubebuilder:rbac:groups="",namespace=hyperfleet-system,resources=secrets,verbs=get;patch
//+kubebuilder:rbac:groups=rbac.authorization.k8s.io,resources=roles;rolebindings,resourceNames=hyperfleet-secrets,verbs=get;patch

// SetupWithManager adds the controller to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("hypervisorcluster").
		For(&v1alpha1.HypervisorCluster{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.MachineClaim{}, handler.EnqueueRequestsFromMapFunc(r.enqueueDeletingCluster),
			builder.WithPredicates(newDeletePredicate())).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency, ReconciliationTimeout: reconcileTimeout}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add controller hypervisorcluster: %w", err)
	}

	return nil
}

// enqueueDeletingCluster enqueues the cluster of a deleted claim if the cluster is being deleted, because its
// deletion waits for the last machine. It enqueues no other cluster: claims are deleted all the time, and
// clusters are reconciled every Interval anyway.
func (r *Reconciler) enqueueDeletingCluster(ctx context.Context, obj client.Object) []reconcile.Request {
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

// newDeletePredicate returns a predicate that accepts delete events only.
func newDeletePredicate() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// scope holds the state of one reconcile of one cluster.
type scope struct {
	*Reconciler
	cluster *v1alpha1.HypervisorCluster
	// provider is set by ensureConnection.
	provider hypervisor.Provider
	// keepError is the error of the Keeper.
	keepError error
}

func newPlan() step.Plan[*scope] {
	return step.Plan[*scope]{Finalizer: finalizer,
		ReadyEvent: &step.ReadyEvent{Reason: "Connected", Message: "the hypervisor is reachable and accepts the credentials"},
		Steps: []step.Step[*scope]{
			{Name: "SecretsKept", Run: reportSecrets},         // before a machine exists that has to be deleted
			{Condition: "Credentials", Run: ensureConnection}, // Secrets are read, connection is open
			{Condition: "Connected", Run: checkConnection},    // reachable, authenticated, has the privileges
			{Condition: "Inspected", Run: inspectCapacity},    // nodes and free resources are known
		}, DeletionSteps: []step.Step[*scope]{
			{Condition: "MachinesGone", Run: waitForMachineRemoval},
			{Name: "SecretsReleased", Run: releaseSecrets}, // last, because the steps above need the Secrets
		}}
}

// Reconcile checks one cluster, and requeues it after Interval at the latest.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var cluster v1alpha1.HypervisorCluster
	if err := r.Client.Get(ctx, req.NamespacedName, &cluster); err != nil {
		if apierrors.IsNotFound(err) {
			r.Clusters.Forget(req.Name) // another operator has removed the finalizer
		}

		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	s := &scope{Reconciler: r, cluster: &cluster}
	if cluster.DeletionTimestamp.IsZero() {
		// Without its own finalizer, the object could disappear and leave a Secret with a finalizer.
		if err := step.EnsureFinalizer(ctx, r.StepReconciler, &cluster, finalizer); err != nil {
			return reconcile.Result{}, err
		}

		s.keepError = s.keepSecrets(ctx)
	}

	result, err := step.Reconcile(ctx, r.StepReconciler, &cluster, newPlan(), s)

	if err == nil && (result.RequeueAfter == 0 || result.RequeueAfter > r.Interval) {
		result.RequeueAfter = r.Interval
	}

	return result, err
}

// keepSecrets prevents the deletion of the Secrets that the cluster refers to, because they are needed to delete its machines.
func (s *scope) keepSecrets(ctx context.Context) error {
	return s.Keeper.Keep(ctx, s.cluster, s.Clusters.Secrets.ListNames(ctx, s.cluster.Spec, "")...)
}

func reportSecrets(_ context.Context, s *scope) step.Result {
	return keep.Report(s.cluster, s.keepError)
}

// releaseSecrets releases the Secrets of a cluster whose machines are gone.
func releaseSecrets(ctx context.Context, s *scope) step.Result {
	return s.Keeper.ReleaseStep(ctx, s.cluster)
}
