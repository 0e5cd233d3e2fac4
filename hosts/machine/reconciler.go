// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"
	"hash/fnv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/drift"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/kit/trigger"
)

const (
	// passTimeout bounds one pass over one host.
	passTimeout = time.Minute
	// lookAgain is how soon a host is looked at that nothing enqueues, such as when work could
	// not begin.
	lookAgain = 2 * time.Second
	// safety is how soon a host is looked at whose work enqueues it when it is over.
	safety = 5 * time.Minute
	// FleetIndex is the field that hosts of every kind are indexed by.
	FleetIndex = "spec.fleetName"
)

// Settings are what the configuration says of all hosts.
type Settings struct {
	Policy drift.Policy
	// ProbeInterval is how often a host's parts are looked at; 0 for never.
	ProbeInterval time.Duration
	// Concurrency is how many hosts are worked on at a time.
	Concurrency int
}

// Reconciler reconciles the hosts of one kind.
type Reconciler struct {
	Kind   Kind
	Client client.Client
	// Live reads from the API server itself.
	Live       client.Reader
	Secrets    Secrets
	Runner     *step.Runner
	Recorder   events.EventRecorder
	Clock      clock.PassiveClock
	WorkerPool *WorkerPool
	Metrics    *Metrics
	Settings   Settings

	// done are hosts whose work is over.
	done trigger.Source
	// wanted are credentials on their way to hosts.
	wanted wanted
}

//+kubebuilder:rbac:groups=infrastructure.hyperfleet.io,resources=hostfleets,verbs=list;watch
//+kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager adds the controller to a manager, and the index of hosts by fleet.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	name := r.Runner.Controller

	fleetOf := func(obj client.Object) []string {
		if host, ok := obj.(Object); ok {
			return []string{r.Kind.FleetName(host)}
		}

		return nil
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, r.Kind.New(), FleetIndex, fleetOf); err != nil {
		return fmt.Errorf("index %s by fleet: %w", r.Kind.Name(), err)
	}

	err := ctrl.NewControllerManagedBy(mgr).
		Named(name).
		For(r.Kind.New()).
		Watches(&v1alpha1.HostFleet{}, r.fleetEvents()).
		WatchesRawSource(&r.done).
		WithOptions(controller.Options{MaxConcurrentReconciles: r.Settings.Concurrency, ReconciliationTimeout: passTimeout}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add controller %s: %w", name, err)
	}

	return nil
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// fleetEvents enqueues the hosts that a change of a fleet concerns: all when its spec has
// changed or it is gone, else those that have got a permit. A fleet of a thousand hosts changes with each
// of them.
func (r *Reconciler) fleetEvents() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { r.enqueueAll(ctx, e.Object, q) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { r.enqueueAll(ctx, e.Object, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			before, ok := e.ObjectOld.(*v1alpha1.HostFleet)
			after, alsoOK := e.ObjectNew.(*v1alpha1.HostFleet)

			if !ok || !alsoOK || before.Generation != after.Generation {
				r.enqueueAll(ctx, e.ObjectNew, q)

				return
			}

			for _, permit := range after.Status.Permits {
				if permit.Number > before.Status.LastPermit {
					q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: after.Namespace, Name: permit.Host}})
				}
			}
		},
	}
}

func (r *Reconciler) enqueueAll(ctx context.Context, fleet client.Object, q queue) {
	hosts, err := List(ctx, r.Client, r.Kind, fleet.GetNamespace(), fleet.GetName())
	if err != nil {
		return // the cache is gone, and the program with it
	}

	for _, host := range hosts {
		q.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(host)})
	}
}

// scope is one pass over one host.
type scope struct {
	*Reconciler

	obj    Object
	status *v1alpha1.HostStatus
	fleet  *v1alpha1.HostFleet
	// hash that the host should have.
	hash string
}

func (r *Reconciler) plan() step.Plan[*scope] {
	named := func(name, condition string, run func(context.Context, *scope) step.Result) step.Step[*scope] {
		return step.Step[*scope]{Name: name, Condition: condition, Run: func(ctx context.Context, s *scope) step.Result {
			result := run(ctx, s)
			s.phase()

			return result
		}}
	}

	when := func(is func(*scope) bool, of step.Step[*scope]) step.Step[*scope] {
		of.When = is

		return of
	}

	return step.Plan[*scope]{
		Finalizer: v1alpha1.FinalizerHost,
		Ready:     &step.ReadyEvent{Reason: "HostReady", Message: "the host carries machines and has its fleet's configuration"},
		Steps: []step.Step[*scope]{
			named("ResultCollected", "", collectResult), // what became of work at the host is on record
			named("", v1alpha1.ConditionFleetFound, findFleet),
			named("", v1alpha1.ConditionProvisioned, provision),
			named("", v1alpha1.ConditionHostKeyPinned, pin), // before anything is sent to the host
			named("", v1alpha1.ConditionBootstrapped, boot),
			named("CredentialRenewed", "", renew),
			named("", v1alpha1.ConditionConverged, converge),
			named("", v1alpha1.ConditionIntact, inspect),
			named("Resting", "", rest),
		},
		Deletion: []step.Step[*scope]{
			named("ResultCollected", "", collectResult),
			when(drains, named("", v1alpha1.ConditionNodeDrained, drained)),
			when(removes, named("", v1alpha1.ConditionNodeCredentialRemoved, removed)),
			named("", v1alpha1.ConditionReleased, release),
			when(leavesNode, named("", v1alpha1.ConditionNodeDeleted, nodeGone)), // nobody joins again under its name now
		},
	}
}

// Reconcile looks at one host.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	obj := r.Kind.New()
	if err := r.Client.Get(ctx, req.NamespacedName, obj); err != nil {
		if apierrors.IsNotFound(err) {
			r.wanted.set(req.NamespacedName, nil)

			return reconcile.Result{}, nil
		}

		return reconcile.Result{}, fmt.Errorf("get host: %w", err)
	}

	if obj.Host().Push != nil && !r.WorkerPool.knows(obj.GetUID()) {
		// Nobody works on a push that is on record: the program is a new one, or the cache has
		// not seen yet that the push is over, and it would be done a second time.
		if err := r.Live.Get(ctx, req.NamespacedName, obj); err != nil {
			if apierrors.IsNotFound(err) {
				return reconcile.Result{}, nil
			}

			return reconcile.Result{}, fmt.Errorf("get host past the cache: %w", err)
		}
	}

	s := &scope{Reconciler: r, obj: obj, status: obj.Host(), hash: r.Kind.Hash()}
	if err := s.lookForFleet(ctx); err != nil {
		return reconcile.Result{}, err
	}

	return step.Pass(ctx, r.Runner, obj, r.plan(), s)
}

// phase puts where the host is in its life into one word. A host that has failed stays
// Failed, whatever else is done with it.
func (s *scope) phase() {
	h := s.status
	deleting := !s.obj.GetDeletionTimestamp().IsZero()
	h.Ready = !deleting && h.Bootstrapped && h.FailureReason == "" && h.UnreachableSince == nil && h.OSUpdate == nil

	switch {
	case deleting:
		h.Phase = v1alpha1.HostDeleting
	case h.FailureReason != "":
		h.Phase = v1alpha1.HostFailed
	case h.OSUpdate != nil:
		h.Phase = v1alpha1.HostUpdating
	case h.Bootstrapped:
		h.Phase = v1alpha1.HostReady
	case h.SSHHostKey != "" || h.Push != nil:
		h.Phase = v1alpha1.HostBootstrapping
	case h.Phase == "" || h.Phase == v1alpha1.HostFailed:
		h.Phase = v1alpha1.HostPending
	}
}

// share gives a number from 0 to below 1 that is always the same for the same text.
func share(text string) float64 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(text))

	return float64(h.Sum32()) / (1 << 32)
}
