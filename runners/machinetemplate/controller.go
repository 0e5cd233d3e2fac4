// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machinetemplate

import (
	"context"
	"fmt"
	"time"

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
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/keep"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/kit/watch"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
)

// finalizer keeps a template while the operator needs its credentials to clean up claims.
const finalizer = "hyperfleet.io/claims"

// reconcileTimeout limits one reconcile of a template.
const reconcileTimeout = 45 * time.Second

// concurrency is how many templates are reconciled in parallel, so that a template that waits for a
// response does not delay the others.
const concurrency = 8

// Reconciler reconciles HypervisorMachineTemplates.
type Reconciler struct {
	Client client.Client
	// Live reads from the API server, because namespaces are not cached.
	Live           client.Reader
	StepReconciler *step.Reconciler
	Clusters       *connect.Clusters
	Workloads      *connect.Workloads
	// Settings apply to every machine.
	Settings vmspec.Settings
	// Interval is the time between two checks of a template.
	Interval time.Duration
	Clock    clock.PassiveClock
	// Keeper keeps the Secrets with the credentials.
	Keeper *keep.Keeper
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
		Watches(&v1alpha1.HypervisorCluster{}, handler.EnqueueRequestsFromMapFunc(r.enqueueTemplates),
			builder.WithPredicates(newReadyChangedPredicate())).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency, ReconciliationTimeout: reconcileTimeout}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add controller machinetemplate: %w", err)
	}

	return nil
}

func (r *Reconciler) enqueueTemplates(ctx context.Context, cluster client.Object) []reconcile.Request {
	return watch.ListRequests(ctx, r.Client, &v1alpha1.HypervisorMachineTemplateList{},
		func(template *v1alpha1.HypervisorMachineTemplate) bool {
			return template.Spec.HypervisorClusterRef.Name == cluster.GetName()
		})
}

// newReadyChangedPredicate returns a predicate that accepts an update only if it changes whether the object
// is ready. It accepts all other events.
func newReadyChangedPredicate() predicate.Predicate {
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

// scope holds the state of one reconcile of one template.
type scope struct {
	*Reconciler
	template *v1alpha1.HypervisorMachineTemplate
	// cluster and provider are set by waitForCluster.
	cluster  *v1alpha1.HypervisorCluster
	provider hypervisor.Provider
	// keepError is the error of the Keeper.
	keepError error
}

func newPlan() step.Plan[*scope] {
	return step.Plan[*scope]{Finalizer: finalizer,
		ReadyEvent: &step.ReadyEvent{Reason: "TemplateReady", Message: "machines can be created from the template"},
		Steps: []step.Step[*scope]{
			{Name: "SecretsKept", Run: reportSecrets},                   // before a machine exists that has to be deleted
			{Condition: "Rendered", Run: renderCloudInit},               // cloud-init texts are valid
			{Condition: "ClusterReady", Run: waitForCluster},            // the hypervisor cluster is ready
			{Condition: "Allowed", Run: checkNamespaceAccess},           // the namespace may use everything that the template refers to
			{Condition: "Resolved", Run: resolveTemplate},               // the hypervisor has the template
			{Condition: "WorkloadReady", Run: checkPlatformCredentials}, // the CI platform accepts our credentials
		}, DeletionSteps: []step.Step[*scope]{
			{Condition: "ClaimsGone", Run: waitForClaimRemoval},
			{Name: "SecretsReleased", Run: releaseSecrets}, // last, because the steps above need the Secrets
		}}
}

// Reconcile checks one template, and requeues it after Interval at the latest.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var template v1alpha1.HypervisorMachineTemplate
	if err := r.Client.Get(ctx, req.NamespacedName, &template); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.Workloads.Forget(req.NamespacedName)
		}

		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	s := &scope{Reconciler: r, template: &template}
	if template.DeletionTimestamp.IsZero() {
		// Without its own finalizer, the object could disappear and leave a Secret with a finalizer.
		if err := step.EnsureFinalizer(ctx, r.StepReconciler, &template, finalizer); err != nil {
			return reconcile.Result{}, err
		}

		s.keepError = s.keepSecrets(ctx)
	}

	result, err := step.Reconcile(ctx, r.StepReconciler, &template, newPlan(), s)

	if err == nil && (result.RequeueAfter == 0 || result.RequeueAfter > r.Interval) {
		result.RequeueAfter = r.Interval
	}

	return result, err
}

// keepSecrets prevents the deletion of the Secrets that the template refers to, because they are needed to remove runners.
func (s *scope) keepSecrets(ctx context.Context) error {
	return s.Keeper.Keep(ctx, s.template, s.Workloads.Secrets.ListNames(ctx, s.template.Spec, s.template.Namespace)...)
}

func reportSecrets(_ context.Context, s *scope) step.Result {
	return keep.Report(s.template, s.keepError)
}

// releaseSecrets releases the Secrets of a template whose claims are gone.
func releaseSecrets(ctx context.Context, s *scope) step.Result {
	return s.Keeper.ReleaseStep(ctx, s.template)
}
