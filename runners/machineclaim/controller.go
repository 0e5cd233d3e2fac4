// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/kit/watch"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
)

const (
	// reconcileTimeout limits one reconcile of one claim.
	reconcileTimeout = 2 * time.Minute
	// pollInterval is how often external state that causes no event is polled.
	pollInterval = 5 * time.Second
	// resyncInterval is how often a machine is read even if its provider has reported no change.
	resyncInterval = 30 * time.Second
)

// Reconciler reconciles MachineClaims.
type Reconciler struct {
	Client client.Client
	// Live reads from the API server and bypasses the cache.
	Live           client.Reader
	StepReconciler *step.Reconciler
	Clusters       *connect.Clusters
	Workloads      *connect.Workloads
	// Identity registers the SPIFFE IDs of machines. It is nil if the operator has no SPIRE server.
	Identity identity.Registry
	// Reports applies the reports of machines to their claims. It may be nil.
	Reports Reports
	// Ends receives the last state of each claim before its finalizer is removed. It may be nil.
	Ends Ends
	// Consoles stores the output of machines' serial consoles. If it is nil, the output is dropped.
	Consoles ConsoleLogs
	// Trigger enqueues claims whose machine has changed or whose report has arrived.
	Trigger *watch.Source
	// Settings apply to every machine.
	Settings vmspec.Settings
	Metrics  *Metrics
	Clock    clock.PassiveClock
	// Platforms select the jobs that a machine can run.
	Platforms demand.Platforms
	// Concurrency is how many claims are reconciled in parallel.
	Concurrency int

	// MaxAttempts is how many attempts to create a machine may fail before its claim fails. 0 means no limit.
	MaxAttempts int

	bindings    bindings
	assignments assignments
	breakers    circuitBreakers
	runnerLists runnerLists
	// retired holds the claims that the controller has deleted, and deregistered the claims whose runner no
	// longer exists. Later reconciles of these claims skip the API call.
	retired, deregistered claimSet
	// issued holds the claims for whose jobs this process has issued the credentials.
	issued claimSet
	// consolesKept holds the claims whose console output is stored.
	consolesKept claimSet
	// placements are the machines that are being placed on clusters with a quota.
	placements placements
}

// Reports copies the latest report of a machine to the status of its claim. It is called within a step; see
// report.Inbox.
type Reports interface {
	Apply(ctx context.Context, claim *v1alpha1.MachineClaim)
}

// Ends receives the last state of claims, which is not written to the API server any more; see
// demand.JobReconciler.RecordEnd.
type Ends interface {
	RecordEnd(claim *v1alpha1.MachineClaim)
}

//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims,verbs=get;list;watch;patch;delete
//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims/status,verbs=patch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=hypervisorclusters;hypervisormachinetemplates;runnerjobs,verbs=get;list;watch

// SetupWithManager adds the controller to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("machineclaim").
		For(&v1alpha1.MachineClaim{}, builder.WithPredicates(newExternalChangePredicate())).
		Watches(&v1alpha1.HypervisorMachineTemplate{}, handler.EnqueueRequestsFromMapFunc(r.enqueueWaitingClaims)).
		Watches(&v1alpha1.RunnerJob{}, handler.EnqueueRequestsFromMapFunc(r.enqueueClaimOfJob)).
		WatchesRawSource(r.Trigger).
		WithOptions(controller.Options{MaxConcurrentReconciles: r.Concurrency, ReconciliationTimeout: reconcileTimeout}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add controller machineclaim: %w", err)
	}

	return nil
}

// enqueueWaitingClaims enqueues the claims of a changed template that have no machine yet.
func (r *Reconciler) enqueueWaitingClaims(ctx context.Context, template client.Object) []reconcile.Request {
	return watch.ListRequests[*v1alpha1.MachineClaim](ctx, r.Client, &v1alpha1.MachineClaimList{}, nil,
		client.InNamespace(template.GetNamespace()), client.MatchingFields{demand.IndexWaitingTemplate: template.GetName()})
}

// enqueueClaimOfJob enqueues the claim whose runner runs the job. A cache fails only when the process ends.
func (r *Reconciler) enqueueClaimOfJob(ctx context.Context, obj client.Object) []reconcile.Request {
	job, ok := obj.(*v1alpha1.RunnerJob)
	if !ok {
		return nil
	}

	claims, err := demand.ListClaimsOfRunner(ctx, r.Client, job.Namespace, job.Spec.RunnerName)
	if err != nil {
		return nil
	}

	var out []reconcile.Request

	for i := range claims {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&claims[i])})
	}

	return out
}

// scope holds the state of one reconcile of one claim.
type scope struct {
	*Reconciler
	claim *v1alpha1.MachineClaim
	// template, cluster, provider and names are set by resolve. While the claim is being deleted they are set
	// by load, and are nil if they do not exist.
	template *v1alpha1.HypervisorMachineTemplate
	cluster  *v1alpha1.HypervisorCluster
	provider hypervisor.Provider
	names    vmspec.Names
	// isVMNotDeleted is true if the VM has another owner, and was not touched.
	isVMNotDeleted bool
}

// newPlan returns the steps of a claim. The comment of a step says what normally holds once the step is done.
func newPlan() step.Plan[*scope] {
	hasIdentity, mayBeRegistered := (*scope).hasIdentity, (*scope).mayBeRegistered

	return step.Plan[*scope]{Finalizer: v1alpha1.FinalizerVMCleanup, Steps: []step.Step[*scope]{
		{Name: "Reported", Run: applyReport},                          // the status has the machine's latest report
		{Condition: v1alpha1.ConditionTemplateResolved, Run: resolve}, // template and cluster are ready
		{Name: "AddressAllocated", Run: waitForAddress},               // machine has its addresses if its template has a pool
		{Condition: v1alpha1.ConditionPlaced, Run: place},             // ID and node are recorded
		// The identity provider accepts our credentials.
		{Condition: v1alpha1.ConditionIdentityReady, AppliesTo: hasIdentity, Run: checkIdentityProvider},
		{Name: "JobBound", Run: bindJob},                           // machine has its job if the platform binds runners to jobs
		{Condition: v1alpha1.ConditionProvisioned, Run: provision}, // VM is created and powered on
		// The machine has attested.
		{Condition: v1alpha1.ConditionAttested, AppliesTo: hasIdentity, Run: attest},
		{Condition: v1alpha1.ConditionBootstrapped, Run: bootstrap}, // runner is online
		{Name: "JobSynced", Run: syncJob},                           // RunnerJob has the state that the machine reports
		{Condition: "Finished", Run: follow},                        // job is done, VM is off
		{Condition: "Retired", Run: retire},                         // claim is deleted
	}, DeletionSteps: []step.Step[*scope]{
		{Name: "Reported", Run: applyReport},                                            // the status has the machine's last report
		{Name: "JobSynced", Run: syncJob},                                               // RunnerJob has the final state of the job
		{Condition: conditionDeregistered, Run: deregister},                             // runner is removed from the CI platform
		{Name: "Evicted", AppliesTo: mayBeRegistered, Run: evictIdentity},               // machine gets no new SVID
		{Name: "ConsoleKept", Run: keepConsole},                                         // output of the console is stored
		{Condition: v1alpha1.ConditionVMCleanedUp, Run: destroy},                        // VM and cloud-init ISO are deleted
		{Condition: "IdentityRemoved", AppliesTo: mayBeRegistered, Run: removeIdentity}, // registration is deleted
		{Name: "DestroyedEmitted", Run: emitDestroyed},                                  // event and metrics are emitted, once
	}}
}

// applyReport copies the latest report of the machine to the claim's status.
func applyReport(ctx context.Context, s *scope) step.Result {
	if s.Reports != nil {
		s.Reports.Apply(ctx, s.claim)
	}

	return step.Done()
}

// Reconcile reconciles one claim.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var claim v1alpha1.MachineClaim
	if err := r.Client.Get(ctx, req.NamespacedName, &claim); err != nil {
		if apierrors.IsNotFound(err) {
			r.breakers.forget(req.NamespacedName, r.Clock.Now())
			r.retired.forget(req.NamespacedName)
			r.deregistered.forget(req.NamespacedName)
			r.issued.forget(req.NamespacedName)
			r.consolesKept.forget(req.NamespacedName)
		}

		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	isStarted := claim.Status.Times != nil && claim.Status.Times.Started != nil || r.issued.has(&claim)
	if !claim.DeletionTimestamp.IsZero() && !isStarted {
		r.bindings.release(&claim) // the machine that replaces it gets its job at once
	}

	s := &scope{Reconciler: r, claim: &claim}

	result, err := step.Reconcile(ctx, r.StepReconciler, &claim, newPlan(), s)
	result.Priority = new(0) // a requeue is not urgent, even if this reconcile is (Inbox.Enqueue)

	return result, err
}

// NewWakeFunc returns a function with which a provider enqueues the claim of a machine that has changed. namespaces are
// those of the operator, or empty for all. Other operators may have machines on the same hypervisor, and the cache has
// no claims of theirs.
func NewWakeFunc(source *watch.Source, namespaces []string) func(hypervisor.Owner) {
	return func(owner hypervisor.Owner) {
		if owner.Name == "" { // the cloud-init ISO of a machine that no longer exists
			return
		}

		if len(namespaces) > 0 && !slices.Contains(namespaces, owner.Namespace) {
			return
		}

		source.Enqueue(types.NamespacedName{Namespace: owner.Namespace, Name: owner.Name})
	}
}
