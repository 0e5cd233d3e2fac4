// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/drift"
	"github.com/hyperfleet/hyperfleet/hosts/machine"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// reconcileTimeout bounds one reconcile of one fleet.
const reconcileTimeout = time.Minute

// Reconciler reconciles HostFleets.
type Reconciler struct {
	// Kinds are all kinds of hosts. Their hosts must be indexed by [machine.FleetIndex].
	Kinds  []machine.Kind
	Client client.Client
	// APIReader reads from the API server, not from a cache.
	APIReader client.Reader
	Runner    *step.Reconciler
	Recorder  events.EventRecorder
	Clock     clock.PassiveClock
	Metrics   *Metrics
	// Policy limits the attempts at each host.
	Policy drift.Policy
}

//+kubebuilder:rbac:groups=infrastructure.hyperfleet.io,resources=hostfleets,verbs=get;list;watch
//+kubebuilder:rbac:groups=infrastructure.hyperfleet.io,resources=hostfleets/status,verbs=patch
//+kubebuilder:rbac:groups=infrastructure.hyperfleet.io,resources=scalewayapplesiliconmachines,verbs=create;delete
//+kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager adds the controller to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	builder := ctrl.NewControllerManagedBy(mgr).Named(r.Runner.Controller).For(&v1alpha1.HostFleet{}).
		WithOptions(controller.Options{ReconciliationTimeout: reconcileTimeout})

	for _, kind := range r.Kinds {
		builder = builder.Watches(kind.New(), handler.EnqueueRequestsFromMapFunc(
			func(_ context.Context, obj client.Object) []reconcile.Request {
				host, ok := obj.(machine.Object)
				if !ok {
					return nil
				}

				return []reconcile.Request{{NamespacedName: types.NamespacedName{
					Namespace: host.GetNamespace(), Name: kind.FleetName(host),
				}}}
			}))
	}

	if err := builder.Complete(r); err != nil {
		return fmt.Errorf("add controller %s: %w", r.Runner.Controller, err)
	}

	return nil
}

// scope is the data of one reconcile of one fleet.
type scope struct {
	*Reconciler

	fleet *v1alpha1.HostFleet
	kind  machine.Catalog
	// requeueAfter is when to check the number of hosts again. It is 0 if only events lead to a
	// check.
	requeueAfter time.Duration
}

func steps() []step.Step[*scope] {
	return []step.Step[*scope]{
		{Condition: v1alpha1.ConditionPolicyValid, Run: validateFleet},
		{Name: "HostsScaled", AppliesTo: func(s *scope) bool { return s.fleet.Spec.Replicas != nil }, Run: scale},
		{Condition: v1alpha1.ConditionRolledOut, Run: rollOut},
	}
}

// Reconcile reconciles one fleet.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var fleet v1alpha1.HostFleet

	err := r.Client.Get(ctx, req.NamespacedName, &fleet)

	switch {
	case apierrors.IsNotFound(err):
		r.Metrics.deleteFleet(req.Namespace, req.Name)

		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("get HostFleet %s: %w", req.NamespacedName, err)
	case !fleet.DeletionTimestamp.IsZero():
		return reconcile.Result{}, nil
	}

	return step.ReconcileSteps(ctx, r.Runner, &fleet, steps(), &scope{Reconciler: r, fleet: &fleet})
}

// validateFleet finds the fleet's kind of hosts and stalls if spec.hostKind is unknown.
func validateFleet(_ context.Context, s *scope) step.Result {
	i := slices.IndexFunc(s.Kinds, func(k machine.Kind) bool { return k.Name() == s.fleet.Spec.HostKind })
	if i < 0 {
		var names []string
		for _, kind := range s.Kinds {
			names = append(names, kind.Name())
		}

		return step.Stall("UnknownHostKind", fmt.Sprintf("hostKind %q is unknown: use one of %s",
			s.fleet.Spec.HostKind, strings.Join(names, ", ")))
	}

	s.kind = s.Kinds[i]

	return step.Done()
}
