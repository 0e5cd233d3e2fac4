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
	"github.com/hyperfleet/hyperfleet/kit/keep"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/kit/watch"
)

const (
	// reconcileTimeout bounds one reconcile of one host.
	reconcileTimeout = time.Minute
	// retryInterval is when to reconcile a host again if nothing enqueues it, for example because
	// its job could not start.
	retryInterval = 2 * time.Second
	// resyncInterval is when to reconcile a host again at the latest while its job runs. Normally
	// the job enqueues the host when it ends.
	resyncInterval = 5 * time.Minute
	// FleetIndex is the field by which hosts of every kind are indexed.
	FleetIndex = "spec.fleetName"
)

// Settings are the settings that the configuration has for all hosts.
type Settings struct {
	Policy drift.Policy
	// ProbeInterval is how often the parts of a host are probed. If it is 0, hosts are not probed.
	ProbeInterval time.Duration
	// Concurrency is how many hosts are reconciled at the same time.
	Concurrency int
}

// Reconciler reconciles the hosts of one kind.
type Reconciler struct {
	Kind   Kind
	Client client.Client
	// APIReader reads from the API server, not from a cache.
	APIReader  client.Reader
	Secrets    Secrets
	Runner     *step.Reconciler
	Recorder   events.EventRecorder
	Clock      clock.PassiveClock
	WorkerPool *WorkerPool
	Metrics    *Metrics
	Settings   Settings
	// Keeper keeps the Secrets that hosts need to be released.
	Keeper *keep.Keeper

	// finishedJobs enqueues hosts whose job has ended.
	finishedJobs watch.Source
	// pendingCredentials are credentials that are not on their host yet.
	pendingCredentials pendingCredentials
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
		WatchesRawSource(&r.finishedJobs).
		WithOptions(controller.Options{MaxConcurrentReconciles: r.Settings.Concurrency, ReconciliationTimeout: reconcileTimeout}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add controller %s: %w", name, err)
	}

	return nil
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// fleetEvents enqueues the hosts that a change of a fleet affects. If the fleet was created,
// deleted or changed in its spec, these are all its hosts. Otherwise they are only the hosts with a
// new permit, because the status of a fleet of a thousand hosts changes with each of its hosts.
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
		return // the cache has stopped, so the program is stopping
	}

	for _, host := range hosts {
		q.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(host)})
	}
}

// scope is the data of one reconcile of one host.
type scope struct {
	*Reconciler

	obj    Object
	status *v1alpha1.HostStatus
	fleet  *v1alpha1.HostFleet
	// hash is the desired hash of the host's configuration.
	hash string
	// isStatusLost is true if the host has marks but no status.
	isStatusLost bool
	// keepError is the error of the Keeper.
	keepError error
}

func (r *Reconciler) plan() step.Plan[*scope] {
	return step.Plan[*scope]{
		Finalizer:  v1alpha1.FinalizerHost,
		ReadyEvent: &step.ReadyEvent{Reason: "HostReady", Message: "the host can run machines and has its fleet's configuration"},
		Steps: []step.Step[*scope]{
			{Name: "StatusRestored", Run: withPhase(readBack)},       // before anything is ordered or trusted
			{Name: "ResultCollected", Run: withPhase(collectResult)}, // save the result of a finished job first
			{Condition: v1alpha1.ConditionFleetFound, Run: withPhase(findFleet)},
			{Name: "SecretsKept", Run: withPhase(reportSecrets)}, // before anything is ordered
			{Condition: v1alpha1.ConditionProvisioned, Run: withPhase(provision)},
			{Condition: v1alpha1.ConditionHostKeyPinned, Run: withPhase(pinHostKey)}, // before anything is sent to the host
			{Condition: v1alpha1.ConditionBootstrapped, Run: withPhase(bootstrap)},
			{Name: "CredentialRenewed", Run: withPhase(requestCredentialRenewal)},
			{Condition: v1alpha1.ConditionConverged, Run: withPhase(converge)},
			{Condition: v1alpha1.ConditionIntact, Run: withPhase(inspect)},
			{Name: "NextProbeScheduled", Run: withPhase(scheduleNext)},
		},
		DeletionSteps: []step.Step[*scope]{
			{Name: "StatusRestored", Run: withPhase(readBack)},
			{Name: "ResultCollected", Run: withPhase(collectResult)},
			{Condition: v1alpha1.ConditionNodeDrained, AppliesTo: needsDrain, Run: withPhase(drainNode)},
			{Condition: v1alpha1.ConditionNodeCredentialRemoved, AppliesTo: needsCredentialRemoval, Run: withPhase(removeCredential)},
			{Condition: v1alpha1.ConditionReleased, Run: withPhase(release)},
			// No process can rejoin the Node now.
			{Condition: v1alpha1.ConditionNodeDeleted, AppliesTo: needsNodeDelete, Run: withPhase(deleteNode)},
			{Name: "SecretsReleased", Run: releaseSecrets}, // last, because the steps above need the Secrets
		},
	}
}

// withPhase returns a step that also updates the phase of the host, whatever its result is.
func withPhase(run func(context.Context, *scope) step.Result) func(context.Context, *scope) step.Result {
	return func(ctx context.Context, s *scope) step.Result {
		result := run(ctx, s)
		s.updatePhase()

		return result
	}
}

// Reconcile reconciles one host.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	obj := r.Kind.New()
	if err := r.Client.Get(ctx, req.NamespacedName, obj); err != nil {
		if apierrors.IsNotFound(err) {
			r.pendingCredentials.set(req.NamespacedName, nil)

			return reconcile.Result{}, nil
		}

		return reconcile.Result{}, fmt.Errorf("get %s %s: %w", r.Kind.Name(), req.NamespacedName, err)
	}

	if obj.Host().Push != nil && !r.WorkerPool.hasJob(obj.GetUID()) {
		// No job runs for the recorded push. Either this process is new, or the cache does not show
		// yet that the push has ended. Read from the API server, so that a finished push is not
		// repeated.
		if err := r.APIReader.Get(ctx, req.NamespacedName, obj); err != nil {
			if apierrors.IsNotFound(err) {
				return reconcile.Result{}, nil
			}

			return reconcile.Result{}, fmt.Errorf("get %s %s from the API server: %w", r.Kind.Name(), req.NamespacedName, err)
		}
	}

	isStatusLost, err := r.recordMarks(ctx, obj)
	if err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	s := &scope{Reconciler: r, obj: obj, status: obj.Host(), hash: r.Kind.Hash(), isStatusLost: isStatusLost}
	if err := s.findFleetOnDelete(ctx); err != nil {
		return reconcile.Result{}, err
	}

	if obj.GetDeletionTimestamp().IsZero() {
		// Without its own finalizer, the object could disappear and leave a Secret with a finalizer.
		if err := step.EnsureFinalizer(ctx, r.Runner, obj, v1alpha1.FinalizerHost); err != nil {
			return reconcile.Result{}, err
		}

		s.keepError = s.keepSecrets(ctx)
	}

	return step.Reconcile(ctx, r.Runner, obj, r.plan(), s)
}

// updatePhase sets the phase and the ready field of the host. A host with a failure is Failed, unless it is being
// deleted.
func (s *scope) updatePhase() {
	h := s.status
	isDeleting := !s.obj.GetDeletionTimestamp().IsZero()
	h.Ready = !isDeleting && h.Bootstrapped && h.FailureReason == "" && h.UnreachableSince == nil && h.OSUpdate == nil

	switch {
	case isDeleting:
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

// hashFraction maps a text to a number in [0, 1). The same text always gives the same number.
func hashFraction(text string) float64 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(text))

	return float64(h.Sum32()) / (1 << 32)
}
