// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"fmt"
	"sync"
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
	"github.com/hyperfleet/hyperfleet/kit/objects"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/kit/trigger"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
)

// passTimeout bounds one pass over one claim.
const passTimeout = 2 * time.Minute

// Reconciler reconciles MachineClaims.
type Reconciler struct {
	Client client.Client
	// Live reads from the API server itself.
	Live      client.Reader
	Runner    *step.Runner
	Clusters  *connect.Clusters
	Workloads *connect.Workloads
	// Identity attests machines; nil where the operator has no SPIRE server.
	Identity identity.Registry
	// Reports brings what machines say of themselves; may be nil.
	Reports Reports
	// Trigger brings claims whose machines are worth a look.
	Trigger *trigger.Source
	// Settings of every machine.
	Settings vmspec.Settings
	Metrics  *Metrics
	Clock    clock.PassiveClock
	// Platforms tell which jobs a machine is for.
	Platforms demand.Platforms
	// Concurrency is how many claims are worked on at a time.
	Concurrency int

	// MaxAttempts is how many times the making of a machine may fail before its claim has
	// failed; 0 for no bound.
	MaxAttempts int

	bindings bindings
	causes   causes
	listings listings
	// retired are the claims whose deletion was asked for, and deregistered those whose runner
	// is known to be gone: their later passes need not ask again.
	retired, deregistered claimSet
	// placing is held while a machine is placed within a quota.
	placing sync.Mutex
}

// Reports puts what was reported of a claim's machine into its status, within a step; see
// report.Inbox.
type Reports interface {
	Apply(ctx context.Context, claim *v1alpha1.MachineClaim)
}

//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims,verbs=get;list;watch;patch;delete
//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims/status,verbs=patch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=hypervisorclusters;hypervisormachinetemplates;runnerjobs,verbs=get;list;watch

// SetupWithManager adds the controller to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("machineclaim").
		For(&v1alpha1.MachineClaim{}, builder.WithPredicates(changedByOthers())).
		Watches(&v1alpha1.HypervisorMachineTemplate{}, handler.EnqueueRequestsFromMapFunc(r.waiting)).
		Watches(&v1alpha1.RunnerJob{}, handler.EnqueueRequestsFromMapFunc(r.claimOfJob)).
		WatchesRawSource(r.Trigger).
		WithOptions(controller.Options{MaxConcurrentReconciles: r.Concurrency, ReconciliationTimeout: passTimeout}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add controller machineclaim: %w", err)
	}

	return nil
}

// waiting wakes the claims that have no machine yet when their template changes.
func (r *Reconciler) waiting(ctx context.Context, template client.Object) []reconcile.Request {
	return objects.Requests(ctx, r.Client, &v1alpha1.MachineClaimList{}, func(claim *v1alpha1.MachineClaim) bool {
		return claim.Spec.TemplateRef.Name == template.GetName() && claim.Status.VMRef == nil
	}, client.InNamespace(template.GetNamespace()))
}

// claimOfJob wakes the claim whose runner has the job.
func (r *Reconciler) claimOfJob(ctx context.Context, obj client.Object) []reconcile.Request {
	job, ok := obj.(*v1alpha1.RunnerJob)
	if !ok || job.Spec.RunnerName == "" {
		return nil
	}

	return objects.Requests[*v1alpha1.MachineClaim](ctx, r.Client, &v1alpha1.MachineClaimList{}, nil,
		client.InNamespace(job.Namespace), client.MatchingFields{demand.IndexRunnerName: job.Spec.RunnerName})
}

// scope is one pass over one claim.
type scope struct {
	*Reconciler
	claim *v1alpha1.MachineClaim
	// template, cluster, provider and names are filled by resolve; on the deletion list
	// by find, as far as they are there.
	template *v1alpha1.HypervisorMachineTemplate
	cluster  *v1alpha1.HypervisorCluster
	provider hypervisor.Provider
	names    vmspec.Names
	// leftBehind says that the VM bears another owner's mark, and was not touched.
	leftBehind bool
}

func plan() step.Plan[*scope] {
	attests, registered := (*scope).attests, (*scope).registered

	return step.Plan[*scope]{Finalizer: v1alpha1.FinalizerVMCleanup, Steps: []step.Step[*scope]{
		{Name: "Reported", Run: reported},                             // what the machine says of itself
		{Condition: v1alpha1.ConditionTemplateResolved, Run: resolve}, // template and cluster are ready
		{Name: "AddressAllocated", Run: address},                      // it has its addresses, where the template has a pool
		{Condition: v1alpha1.ConditionPlaced, Run: place},             // id and node are on record
		// The identity provider takes us.
		{Condition: v1alpha1.ConditionIdentityReady, When: attests, Run: identityReady},
		{Name: "JobBound", Run: bindJob},                           // it has its one job, where the platform binds them
		{Condition: v1alpha1.ConditionProvisioned, Run: provision}, // VM made and powered on
		// It has proven who it is.
		{Condition: v1alpha1.ConditionAttested, When: attests, Run: attest},
		{Condition: v1alpha1.ConditionBootstrapped, Run: bootstrap}, // runner online
		{Name: "JobSynced", Run: syncJob},                           // the ledger knows what the machine knows
		{Condition: "Finished", Run: follow},                        // job done, VM off
		{Condition: "Retired", Run: retire},                         // claim handed to deletion
	}, Deletion: []step.Step[*scope]{
		{Name: "Reported", Run: reported},                             // the machine's last word
		{Name: "JobSynced", Run: syncJob},                             // the last word on its job
		{Condition: conditionDeregistered, Run: deregister},           // runner gone from the CI platform
		{Name: "Evicted", When: registered, Run: evict},               // no further SVID
		{Condition: v1alpha1.ConditionVMCleanedUp, Run: destroy},      // VM and cloud-init ISO gone
		{Condition: "IdentityRemoved", When: registered, Run: forget}, // nothing left of its identity
		{Name: "DestroyedEmitted", Run: emitDestroyed},                // told, once
	}}
}

// reported takes what the machine says of itself.
func reported(ctx context.Context, s *scope) step.Result {
	if s.Reports != nil {
		s.Reports.Apply(ctx, s.claim)
	}

	return step.Done()
}

// Reconcile makes one pass over one claim.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var claim v1alpha1.MachineClaim
	if err := r.Client.Get(ctx, req.NamespacedName, &claim); err != nil {
		if apierrors.IsNotFound(err) {
			r.causes.forget(req.NamespacedName, r.Clock.Now())
			r.retired.forget(req.NamespacedName)
			r.deregistered.forget(req.NamespacedName)
		}

		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	s := &scope{Reconciler: r, claim: &claim}

	result, err := step.Pass(ctx, r.Runner, &claim, plan(), s)
	result.Priority = new(0) // a machine may have waited for this pass, and not for the next one

	return result, err
}

// Waker turns a provider's word on a machine into a pass over its claim.
func Waker(source *trigger.Source) func(hypervisor.Owner) {
	return func(owner hypervisor.Owner) {
		source.Enqueue(types.NamespacedName{Namespace: owner.Namespace, Name: owner.Name})
	}
}
