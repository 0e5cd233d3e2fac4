// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machinetemplate

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
	"github.com/hyperfleet/hyperfleet/kit/objects"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
)

// finalizer keeps a template while claims need its credentials to be removed.
const finalizer = "hyperfleet.io/claims"

// checkTimeout bounds one look at a template.
const checkTimeout = 45 * time.Second

// concurrency is how many templates are looked at side by side: one that waits for an answer
// must not hold up the rest.
const concurrency = 8

// Reconciler reconciles HypervisorMachineTemplates.
type Reconciler struct {
	Client client.Client
	// Live reads from the API server itself: namespaces are not cached.
	Live      client.Reader
	Runner    *step.Runner
	Clusters  *connect.Clusters
	Workloads *connect.Workloads
	// Settings of every machine.
	Settings vmspec.Settings
	// Interval between two looks at a template.
	Interval time.Duration
}

//+kubebuilder:rbac:groups=hyperfleet.io,resources=hypervisormachinetemplates,verbs=get;list;watch;patch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=hypervisormachinetemplates/status,verbs=patch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=hypervisorclusters;machineclaims,verbs=get;list;watch
//+kubebuilder:rbac:groups="",resources=namespaces,verbs=get

// SetupWithManager adds the controller to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("machinetemplate").
		For(&v1alpha1.HypervisorMachineTemplate{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.HypervisorCluster{}, handler.EnqueueRequestsFromMapFunc(r.templatesOf),
			builder.WithPredicates(readyChanged())).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency, ReconciliationTimeout: checkTimeout}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add controller machinetemplate: %w", err)
	}

	return nil
}

// templatesOf wakes the templates of a cluster.
func (r *Reconciler) templatesOf(ctx context.Context, cluster client.Object) []reconcile.Request {
	return objects.Requests(ctx, r.Client, &v1alpha1.HypervisorMachineTemplateList{},
		func(template *v1alpha1.HypervisorMachineTemplate) bool {
			return template.Spec.HypervisorClusterRef.Name == cluster.GetName()
		})
}

// readyChanged lets through what changes whether an object is ready.
func readyChanged() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			return isReady(e.ObjectOld) != isReady(e.ObjectNew)
		},
	}
}

func isReady(obj client.Object) bool {
	reporter, ok := obj.(step.Object)

	return ok && step.IsReady(reporter)
}

// scope is one pass over one template.
type scope struct {
	*Reconciler
	template *v1alpha1.HypervisorMachineTemplate
	// cluster and provider are filled by clusterReady.
	cluster  *v1alpha1.HypervisorCluster
	provider hypervisor.Provider
}

func plan() step.Plan[*scope] {
	return step.Plan[*scope]{Finalizer: finalizer,
		Ready: &step.ReadyEvent{Reason: "TemplateReady", Message: "machines can be made from the template"},
		Steps: []step.Step[*scope]{
			{Condition: "Rendered", Run: rendered},           // cloud-init texts are sound
			{Condition: "ClusterReady", Run: clusterReady},   // the hypervisor answers
			{Condition: "Allowed", Run: allowed},             // the namespace may use all that the template names
			{Condition: "Resolved", Run: resolved},           // the hypervisor has the template
			{Condition: "WorkloadReady", Run: workloadReady}, // the CI platform takes our credentials
		}, Deletion: []step.Step[*scope]{
			{Condition: "ClaimsGone", Run: claimsGone},
		}}
}

// Reconcile looks at one template.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var template v1alpha1.HypervisorMachineTemplate
	if err := r.Client.Get(ctx, req.NamespacedName, &template); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.Workloads.Forget(req.NamespacedName)
		}

		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	s := &scope{Reconciler: r, template: &template}

	result, err := step.Pass(ctx, r.Runner, &template, plan(), s)

	if err == nil && (result.RequeueAfter == 0 || result.RequeueAfter > r.Interval) {
		result.RequeueAfter = r.Interval
	}

	return result, err
}
