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
	"github.com/hyperfleet/hyperfleet/kit/objects"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/networking/claimstatus"
)

const (
	// Finalizer keeps a DNSRegistration until its records are gone.
	Finalizer = "hyperfleet.io/dns-records"

	passTimeout = 2 * time.Minute
	// minBackoff and maxBackoff bound how soon a zone that did not answer is tried again.
	minBackoff, maxBackoff = time.Second, 2 * time.Minute
	concurrency            = 8
)

// Registrations reconciles DNSRegistrations: it writes their records and removes them.
type Registrations struct {
	Client   client.Client
	Runner   *step.Runner
	Services *Services
	// OperatorUID is on the marks.
	OperatorUID string
	Clock       clock.PassiveClock
	// Interval after which records are looked at again, and put back if somebody took
	// them away.
	Interval time.Duration

	names heldNames
}

//+kubebuilder:rbac:groups=hyperfleet.io,resources=dnsregistrations,verbs=get;list;watch;create;update;patch;delete
//+kubebuilder:rbac:groups=hyperfleet.io,resources=dnsregistrations/status,verbs=patch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=hypervisorclusters;machineclaims,verbs=get;list;watch
//+kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
//+kubebuilder:rbac:groups="",namespace=hyperfleet-system,resources=secrets,resourceNames=dns-credentials;dns-tsig,verbs=get

// SetupWithManager adds the controller to a manager.
func (r *Registrations) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("dnsregistration").
		For(&v1alpha1.DNSRegistration{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.HypervisorCluster{}, handler.EnqueueRequestsFromMapFunc(r.ofCluster),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: concurrency,
			ReconciliationTimeout:   passTimeout,
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](
				minBackoff, maxBackoff),
		}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add controller dnsregistration: %w", err)
	}

	return nil
}

// ofCluster wakes the registrations of a cluster whose settings have changed.
func (r *Registrations) ofCluster(ctx context.Context, cluster client.Object) []reconcile.Request {
	return objects.Requests(ctx, r.Client, &v1alpha1.DNSRegistrationList{}, func(reg *v1alpha1.DNSRegistration) bool {
		return reg.Spec.HypervisorCluster == cluster.GetName()
	})
}

// scope is one pass over one registration.
type scope struct {
	*Registrations

	reg *v1alpha1.DNSRegistration
	// access is filled by connected.
	access *access
}

// owner is who the records belong to.
func (s *scope) owner() Owner {
	claim := s.reg.Spec.Claim

	return Owner{
		Operator: s.OperatorUID, UID: claim.UID, Kind: claimstatus.KindOf(s.reg), Claim: claim.Namespace + "/" + claim.Name,
	}
}

func steps() step.Plan[*scope] {
	return step.Plan[*scope]{Finalizer: Finalizer, Ready: &step.ReadyEvent{Reason: ReasonRegistered, Message: "its name is in DNS"},
		Steps: []step.Step[*scope]{
			{Condition: "Connected", Run: connected},   // cluster there, credentials read
			{Condition: "Registered", Run: registered}, // records and marks are in their zones
		}, Deletion: []step.Step[*scope]{
			{Condition: "Connected", Run: connectedToRemove},
			{Condition: "Removed", Run: removed},
		}}
}

// Reconcile brings the records of one machine to what they should be.
func (r *Registrations) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var reg v1alpha1.DNSRegistration
	if err := r.Client.Get(ctx, req.NamespacedName, &reg); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	result, err := step.Pass(ctx, r.Runner, &reg, steps(), &scope{Registrations: r, reg: &reg})

	if err == nil && result.IsZero() && reg.DeletionTimestamp.IsZero() {
		result.RequeueAfter = wait.Jitter(r.Interval*9/10, 2.0/9) // give or take a tenth: they do not stay in step
	}

	return result, err
}

// heldNames are the names that passes are at work on: two machines that want one name
// must not look at the zone at the same time and both find it free.
type heldNames struct {
	mu   sync.Mutex
	held map[string]bool
}

// take holds all the names at a DNS service, or none.
func (h *heldNames) take(service string, records []v1alpha1.DNSRecord) (release func(), ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.held == nil {
		h.held = map[string]bool{}
	}

	// The records' own list changes while its names are held.
	keys := make([]string, 0, len(records))

	for _, record := range records {
		key := service + " " + record.Name
		if h.held[key] {
			return nil, false
		}

		keys = append(keys, key)
	}

	for _, key := range keys {
		h.held[key] = true
	}

	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()

		for _, key := range keys {
			delete(h.held, key)
		}
	}, true
}
