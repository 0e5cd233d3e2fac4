// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/kit/watch"
	"github.com/hyperfleet/hyperfleet/networking/claimstatus"
)

const (
	// Finalizer keeps a DNSRegistration until its records are deleted.
	Finalizer = "hyperfleet.io/dns-records"

	reconcileTimeout = 2 * time.Minute
	// minBackoff and maxBackoff are the minimum and maximum delay before a failed reconcile is retried.
	minBackoff, maxBackoff = time.Second, 2 * time.Minute
	concurrency            = 8
)

// RegistrationReconciler reconciles DNSRegistrations. It creates and deletes their records.
type RegistrationReconciler struct {
	Client   client.Client
	Runner   *step.Reconciler
	Services *Services
	// OperatorUID identifies the operator in the ownership records.
	OperatorUID string
	Clock       clock.PassiveClock
	// Interval is the time after which a registration is reconciled again. If somebody deleted its records,
	// the operator then adds them again.
	Interval time.Duration

	names nameLocks
}

//+kubebuilder:rbac:groups=hyperfleet.io,resources=dnsregistrations,verbs=get;list;watch;create;update;patch;delete
//+kubebuilder:rbac:groups=hyperfleet.io,resources=dnsregistrations/status,verbs=patch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=hypervisorclusters;machineclaims,verbs=get;list;watch
//+kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
//+kubebuilder:rbac:groups="",namespace=hyperfleet-system,resources=secrets,resourceNames=dns-credentials;dns-tsig,verbs=get

// SetupWithManager adds the controller to a manager.
func (r *RegistrationReconciler) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("dnsregistration").
		For(&v1alpha1.DNSRegistration{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.HypervisorCluster{}, handler.EnqueueRequestsFromMapFunc(r.enqueueForCluster),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: concurrency,
			ReconciliationTimeout:   reconcileTimeout,
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](
				minBackoff, maxBackoff),
		}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add controller dnsregistration: %w", err)
	}

	return nil
}

// enqueueForCluster enqueues the registrations of a cluster whose settings have changed.
func (r *RegistrationReconciler) enqueueForCluster(ctx context.Context, cluster client.Object) []reconcile.Request {
	return watch.ListRequests(ctx, r.Client, &v1alpha1.DNSRegistrationList{}, func(reg *v1alpha1.DNSRegistration) bool {
		return reg.Spec.HypervisorCluster == cluster.GetName()
	})
}

// scope is the state of one reconcile of one registration.
type scope struct {
	*RegistrationReconciler

	reg *v1alpha1.DNSRegistration
	// access is set by connect.
	access *access
}

func (s *scope) owner() Owner {
	claim := s.reg.Spec.Claim

	return Owner{
		Operator: s.OperatorUID, UID: claim.UID, Kind: claimstatus.KindOf(s.reg), Claim: claim.Namespace + "/" + claim.Name,
	}
}

func newPlan() step.Plan[*scope] {
	return step.Plan[*scope]{
		Finalizer: Finalizer, ReadyEvent: &step.ReadyEvent{Reason: ReasonRegistered, Message: "the machine is registered in DNS"},
		Steps: []step.Step[*scope]{
			{Condition: "Connected", Run: connect},          // the cluster exists and its credentials are valid
			{Condition: "Registered", Run: registerRecords}, // the records and ownership records are in their zones
		}, DeletionSteps: []step.Step[*scope]{
			{Condition: "Connected", Run: connectForRemoval},
			{Condition: "Removed", Run: removeRecords},
		},
	}
}

// Reconcile brings the records of one machine to their desired state.
func (r *RegistrationReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var reg v1alpha1.DNSRegistration
	if err := r.Client.Get(ctx, req.NamespacedName, &reg); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	result, err := step.Reconcile(ctx, r.Runner, &reg, newPlan(), &scope{RegistrationReconciler: r, reg: &reg})

	if err == nil && result.IsZero() && reg.DeletionTimestamp.IsZero() {
		result.RequeueAfter = wait.Jitter(r.Interval*9/10, 2.0/9) // 90 to 110 percent, to spread the load
	}

	return result, err
}

// nameLocks has a lock for each name that a reconcile works on. Without it, two machines with the same name
// could list the zone at the same time and both find the name free.
type nameLocks struct {
	mu     sync.Mutex
	locked map[string]bool
}

// tryLock locks all names of the records at a DNS service, or none of them. It returns the function that
// releases the locks.
func (h *nameLocks) tryLock(service string, records []v1alpha1.DNSRecord) (release func(), ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.locked == nil {
		h.locked = map[string]bool{}
	}

	// Copy the names, because the list of records changes while the names are locked.
	keys := make([]string, 0, len(records))

	for _, record := range records {
		key := service + " " + record.Name
		if h.locked[key] {
			return nil, false
		}

		keys = append(keys, key)
	}

	for _, key := range keys {
		h.locked[key] = true
	}

	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()

		for _, key := range keys {
			delete(h.locked, key)
		}
	}, true
}
