// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/keep"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/kit/watch"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
	"github.com/hyperfleet/hyperfleet/networking/pools"
)

const (
	// reconcileTimeout is the timeout of one reconcile.
	reconcileTimeout = 2 * time.Minute
	concurrency      = 4
)

// Reconciler reconciles KubevirtNodePools.
type Reconciler struct {
	Client client.Client
	// APIReader reads from the API server, not from a cache.
	APIReader client.Reader
	Runner    *step.Reconciler
	Recorder  events.EventRecorder
	Addresses *pools.AddressRegistry
	// PoolOwner returns the owner of a pool of the address registry that belongs to another kind, such as
	// "HypervisorMachineTemplate ci/linux". It returns an empty text for the pool of a node pool. It may be
	// nil.
	PoolOwner func(pool string) string
	Clock     clock.WithTicker
	// Keeper keeps the kubeconfigs with which the pools' machines are drained.
	Keeper *keep.Keeper

	changed watch.Source
}

//+kubebuilder:rbac:groups=infrastructure.hyperfleet.io,resources=kubevirtnodepools,verbs=list;watch;patch
//+kubebuilder:rbac:groups=infrastructure.hyperfleet.io,resources=kubevirtnodepools/status,verbs=patch
//+kubebuilder:rbac:groups=infrastructure.hyperfleet.io,resources=kubevirtnodepools/finalizers,verbs=update
//+kubebuilder:rbac:groups=infrastructure.hyperfleet.io,resources=kubevirtmachinetemplates,verbs=list;watch
//+kubebuilder:rbac:groups=infrastructure.hyperfleet.io,resources=kubevirtmachinetemplates,verbs=create;patch;delete
//+kubebuilder:rbac:groups=infrastructure.hyperfleet.io,resources=kubevirtmachines,verbs=get;list;watch;create;delete
//+kubebuilder:rbac:groups="",namespace=hyperfleet-system,resources=secrets,resourceNames=guest-kubeconfig,verbs=get;patch
//+kubebuilder:rbac:groups=rbac.authorization.k8s.io,resources=roles;rolebindings,resourceNames=hyperfleet-secrets,verbs=get;patch
//+kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager adds the controller to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("kubevirtnodepool").
		For(&v1alpha1.KubevirtNodePool{}).
		Owns(&v1alpha1.KubevirtMachineTemplate{}).
		Owns(&v1alpha1.KubevirtMachine{}, builder.WithPredicates(onCountedChange())).
		WatchesRawSource(r.Addresses.RebuildSource(r.Clock)).
		WatchesRawSource(&r.changed).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency, ReconciliationTimeout: reconcileTimeout}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add controller kubevirtnodepool: %w", err)
	}

	return nil
}

// onCountedChange returns a predicate for the changes of a machine that affect the status of its pool.
func onCountedChange() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*v1alpha1.KubevirtMachine)
		after, okAfter := e.ObjectNew.(*v1alpha1.KubevirtMachine)

		return !ok || !okAfter || before.Status.Ready != after.Status.Ready || before.Status.Phase != after.Status.Phase ||
			before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
			!equality.Semantic.DeepEqual(before.Status.Conditions, after.Status.Conditions)
	}}
}

// scope is the state of one reconcile of one pool.
type scope struct {
	*Reconciler

	pool *v1alpha1.KubevirtNodePool
	// spec is the spec of new machines, and templateName the name of their template. ensureTemplate sets both.
	spec         v1alpha1.KubevirtMachineSpec
	templateName string
	// keepError is the error of the Keeper.
	keepError error
}

func newPlan() step.Plan[*scope] {
	return step.Plan[*scope]{
		Finalizer:  v1alpha1.FinalizerKubevirtNodePool,
		ReadyEvent: &step.ReadyEvent{Reason: "PoolReady", Message: "all machines are ready"},
		Steps: []step.Step[*scope]{
			{Name: "SecretsKept", Run: reportSecrets},                               // before a machine exists that has to be drained
			{Condition: v1alpha1.ConditionValidNetworkConfig, Run: validateNetwork}, // the addresses are in the address registry
			{Condition: v1alpha1.ConditionTemplateReady, Run: ensureTemplate},
			{Condition: v1alpha1.ConditionMachinesScaled, Run: scaleMachines},
			{Condition: v1alpha1.ConditionMachinesReady, Run: waitForMachines},
		},
		DeletionSteps: []step.Step[*scope]{
			{Condition: v1alpha1.ConditionMachinesDeleted, Run: deleteMachines},
			{Name: "SecretsReleased", Run: releaseSecrets}, // last, because the machines need the Secrets
		},
	}
}

// Reconcile runs the steps of one pool.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var pool v1alpha1.KubevirtNodePool

	err := r.Client.Get(ctx, req.NamespacedName, &pool)
	if apierrors.IsNotFound(err) {
		r.Addresses.RemovePool(kubevirt.PoolName(req.Namespace, req.Name))

		return reconcile.Result{}, nil
	}

	if err != nil {
		return reconcile.Result{}, fmt.Errorf("get node pool: %w", err)
	}

	s := &scope{Reconciler: r, pool: &pool}
	if pool.DeletionTimestamp.IsZero() {
		// Without its own finalizer, the pool could disappear and leave a Secret with a finalizer.
		if err := step.EnsureFinalizer(ctx, r.Runner, &pool, v1alpha1.FinalizerKubevirtNodePool); err != nil {
			return reconcile.Result{}, err
		}

		s.keepError = s.keepSecrets(ctx)
	}

	return step.Reconcile(ctx, r.Runner, &pool, newPlan(), s)
}

// keepSecrets keeps the Secret with which the pool's machines are drained.
func (s *scope) keepSecrets(ctx context.Context) error {
	if s.pool.Spec.Drain == nil {
		return s.Keeper.Keep(ctx, s.pool)
	}

	return s.Keeper.Keep(ctx, s.pool, types.NamespacedName{
		Namespace: s.pool.Namespace, Name: s.pool.Spec.Drain.KubeconfigSecretRef.Name,
	})
}

func reportSecrets(_ context.Context, s *scope) step.Result { return keep.Report(s.pool, s.keepError) }

// releaseSecrets releases the Secrets of a pool whose machines are deleted.
func releaseSecrets(ctx context.Context, s *scope) step.Result {
	return s.Keeper.ReleaseStep(ctx, s.pool)
}
