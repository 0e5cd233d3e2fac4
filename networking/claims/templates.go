// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor/tenancy"
	"github.com/hyperfleet/hyperfleet/kit/errclass"

	"github.com/hyperfleet/hyperfleet/kit/watch"
	"github.com/hyperfleet/hyperfleet/networking/claimstatus"
	"github.com/hyperfleet/hyperfleet/networking/pools"
)

const (
	// reconcileTimeout is the timeout of one reconcile.
	reconcileTimeout = time.Minute
	// notAllowedRetry is the delay before the labels of a namespace are read again, because namespaces are
	// not watched.
	notAllowedRetry = time.Minute

	kindTemplate = "HypervisorMachineTemplate"
	kindClaim    = "MachineClaim"
)

// TemplateReconciler adds the pools of HypervisorMachineTemplates to the address registry, and reports the
// result in the conditions of the templates.
type TemplateReconciler struct {
	Client client.Client
	// APIReader reads from the API server, because namespaces are not cached.
	APIReader client.Reader
	Addresses *pools.AddressRegistry
	Registry  *TemplateRegistry
	Clock     clock.WithTicker

	changed watch.Source
}

func (t *TemplateReconciler) writer() *claimstatus.Writer {
	return &claimstatus.Writer{
		Client: t.Client, Clock: t.Clock, Owner: fieldOwner,
		Types: []string{v1alpha1.ConditionAddressPoolReady, v1alpha1.ConditionAddressesFewerThanMachines},
	}
}

//+kubebuilder:rbac:groups=hyperfleet.io,resources=hypervisormachinetemplates;runnerpools,verbs=list;watch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=hypervisorclusters,verbs=get;list;watch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=hypervisormachinetemplates/status,verbs=patch
//+kubebuilder:rbac:groups="",resources=namespaces,verbs=get

// SetupWithManager adds the controller to a manager.
func (t *TemplateReconciler) SetupWithManager(mgr ctrl.Manager) error {
	changed := builder.WithPredicates(predicate.GenerationChangedPredicate{})

	err := ctrl.NewControllerManagedBy(mgr).
		Named("addresspool").
		For(&v1alpha1.HypervisorMachineTemplate{}). // also after changes of the status, because a backup may be restored into it
		Watches(&v1alpha1.HypervisorCluster{}, handler.EnqueueRequestsFromMapFunc(t.enqueueForCluster), changed).
		Watches(&v1alpha1.RunnerPool{}, handler.EnqueueRequestsFromMapFunc(t.enqueueForRunnerPool), changed).
		WatchesRawSource(t.Addresses.RebuildSource(t.Clock)).
		WatchesRawSource(&t.changed).
		WithOptions(controller.Options{ReconciliationTimeout: reconcileTimeout}).
		Complete(t)
	if err != nil {
		return fmt.Errorf("add controller addresspool: %w", err)
	}

	return nil
}

// enqueueForCluster enqueues the templates of a cluster, because they use the default network of the cluster.
func (t *TemplateReconciler) enqueueForCluster(ctx context.Context, cluster client.Object) []reconcile.Request {
	return watch.ListRequests(ctx, t.Client, &v1alpha1.HypervisorMachineTemplateList{},
		func(template *v1alpha1.HypervisorMachineTemplate) bool {
			return template.Spec.HypervisorClusterRef.Name == cluster.GetName()
		})
}

// enqueueForRunnerPool enqueues the template of a RunnerPool and all templates that share its address pool.
func (t *TemplateReconciler) enqueueForRunnerPool(_ context.Context, obj client.Object) []reconcile.Request {
	pool, ok := obj.(*v1alpha1.RunnerPool)
	if !ok {
		return nil
	}

	template := types.NamespacedName{Namespace: pool.Namespace, Name: pool.Spec.TemplateRef.Name}
	sharers := []types.NamespacedName{template}

	if entry, found := t.Registry.EntryOf(template); found {
		sharers = t.Registry.Sharers(entry.Pool)
	}

	out := make([]reconcile.Request, 0, len(sharers))
	for _, name := range sharers {
		out = append(out, reconcile.Request{NamespacedName: name})
	}

	return out
}

// Reconcile adds, updates or removes the address pool of one template.
func (t *TemplateReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var template v1alpha1.HypervisorMachineTemplate

	err := t.Client.Get(ctx, req.NamespacedName, &template)
	if apierrors.IsNotFound(err) {
		t.Registry.Remove(req.NamespacedName)

		return reconcile.Result{}, nil
	}

	if err != nil {
		return reconcile.Result{}, fmt.Errorf("get template: %w", err)
	}

	if template.Spec.Network.AddressPool() == nil {
		t.Registry.Remove(req.NamespacedName)

		return reconcile.Result{}, t.writer().Clear(ctx, &template)
	}

	var cluster v1alpha1.HypervisorCluster

	name := template.Spec.HypervisorClusterRef.Name

	err = t.Client.Get(ctx, client.ObjectKey{Name: name}, &cluster)
	if apierrors.IsNotFound(err) {
		t.Registry.Remove(req.NamespacedName)

		return reconcile.Result{}, t.report(ctx, &template, metav1.Condition{
			Type: v1alpha1.ConditionAddressPoolReady, Status: metav1.ConditionFalse, Reason: "ClusterNotFound",
			Message: fmt.Sprintf("HypervisorCluster %q does not exist, so the network of the pool is unknown", name),
		})
	}

	if err != nil {
		return reconcile.Result{}, fmt.Errorf("get cluster %s: %w", name, err)
	}

	// Remove a pool that is not allowed, so it cannot overlap other pools.
	if err := checkAllowed(ctx, t.APIReader, &template, &cluster); errclass.ClassOf(err) == errclass.Configuration {
		t.Registry.Remove(req.NamespacedName)

		return reconcile.Result{RequeueAfter: notAllowedRetry}, t.report(ctx, &template, metav1.Condition{
			Type: v1alpha1.ConditionAddressPoolReady, Status: metav1.ConditionFalse,
			Reason: errclass.ReasonOf(err, tenancy.ReasonAddress), Message: err.Error(),
		})
	} else if err != nil {
		return reconcile.Result{}, err
	}

	return reconcile.Result{}, t.setPool(ctx, &template, &cluster)
}

// checkAllowed checks that the cluster allows the template's namespace to use the resources in the
// template. If not, it returns an error of class Configuration that says what is allowed.
func checkAllowed(
	ctx context.Context, apiReader client.Reader, template *v1alpha1.HypervisorMachineTemplate, cluster *v1alpha1.HypervisorCluster,
) error {
	entry, err := tenancy.FindEntry(cluster, template.Namespace, tenancy.NewLabelsFunc(ctx, apiReader, template.Namespace))
	if err != nil {
		return err
	}

	return tenancy.CheckTemplate(entry, cluster, template)
}

// setPool adds the template's pool to the address registry, and reports the result in the conditions.
func (t *TemplateReconciler) setPool(
	ctx context.Context, template *v1alpha1.HypervisorMachineTemplate, cluster *v1alpha1.HypervisorCluster,
) error {
	entry := t.Registry.Set(template, cluster, t.changed.EnqueueFunc)
	ready := metav1.Condition{
		Type: v1alpha1.ConditionAddressPoolReady, Status: metav1.ConditionTrue, Reason: "Ready",
		Message: fmt.Sprintf("the pool has addresses for %d machines on network %s", entry.MachineCapacity, entry.Network),
	}

	if entry.Reason != "" {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, entry.Reason, entry.Message

		return t.report(ctx, template, ready)
	}

	capacityCondition, err := t.checkCapacity(ctx, entry)
	if err != nil {
		return err
	}

	return t.report(ctx, template, ready, capacityCondition)
}

// checkCapacity returns the condition AddressesFewerThanMachines. It is True if the pool has fewer
// addresses than the RunnerPools that use it can have machines.
func (t *TemplateReconciler) checkCapacity(ctx context.Context, entry Entry) (metav1.Condition, error) {
	condition := metav1.Condition{
		Type: v1alpha1.ConditionAddressesFewerThanMachines, Status: metav1.ConditionFalse, Reason: "Enough",
	}

	var list v1alpha1.RunnerPoolList
	if err := t.Client.List(ctx, &list); err != nil {
		return condition, fmt.Errorf("list runner pools: %w", err)
	}

	sharers := t.Registry.Sharers(entry.Pool)
	maxMachines := uint64(0)

	for i := range list.Items {
		pool := &list.Items[i]
		if slices.Contains(sharers, types.NamespacedName{Namespace: pool.Namespace, Name: pool.Spec.TemplateRef.Name}) {
			maxMachines += uint64(max(0, pool.Spec.Scaling.MaxReplicas))
		}
	}

	if entry.MachineCapacity < maxMachines {
		condition.Status, condition.Reason = metav1.ConditionTrue, "TooFewAddresses"
		condition.Message = fmt.Sprintf("the pool has addresses for %d machines, but the RunnerPools that use it can have %d: "+
			"add addresses to network.static.pool, or lower maxReplicas", entry.MachineCapacity, maxMachines)
	}

	return condition, nil
}

// report writes the conditions, unless the template already has them. AddressesFewerThanMachines is removed
// if it is not among the conditions.
func (t *TemplateReconciler) report(
	ctx context.Context, template *v1alpha1.HypervisorMachineTemplate, conditions ...metav1.Condition,
) error {
	warning := meta.FindStatusCondition(template.Status.Conditions, v1alpha1.ConditionAddressesFewerThanMachines)
	isUnchanged := len(conditions) > 1 || warning == nil // AddressesFewerThanMachines does not have to be removed

	for _, condition := range conditions {
		isUnchanged = isUnchanged && claimstatus.HasCondition(template, condition)
	}

	if isUnchanged {
		return nil
	}

	return claimstatus.IgnoreGone(t.writer().Apply(ctx, template, map[string]any{}, conditions...))
}
