// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package claimstatus

import (
	"context"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/watch"
)

// NewClaimController returns the builder of a controller of MachineClaims. The controller also reconciles a
// claim when its DNSRegistration changes, and when the spec of its cluster changes.
func NewClaimController(mgr ctrl.Manager, name string) *builder.Builder {
	return ctrl.NewControllerManagedBy(mgr).
		Named(name).
		For(&v1alpha1.MachineClaim{}).
		Watches(&v1alpha1.DNSRegistration{},
			handler.EnqueueRequestsFromMapFunc(EnqueueForRegistration(v1alpha1.KindMachineClaim))).
		Watches(&v1alpha1.HypervisorCluster{},
			handler.EnqueueRequestsFromMapFunc(enqueueClaimsOfCluster(mgr.GetClient())), onSpecChange())
}

// NewKubevirtMachineController returns the builder of a controller of KubevirtMachines. The controller also
// reconciles a machine when its DNSRegistration changes, and when the spec of its node pool or of the node
// pool's cluster changes.
func NewKubevirtMachineController(mgr ctrl.Manager, name string) *builder.Builder {
	return ctrl.NewControllerManagedBy(mgr).
		Named(name).
		For(&infrav1.KubevirtMachine{}).
		Watches(&v1alpha1.DNSRegistration{},
			handler.EnqueueRequestsFromMapFunc(EnqueueForRegistration(v1alpha1.KindKubevirtMachine))).
		Watches(&v1alpha1.HypervisorCluster{},
			handler.EnqueueRequestsFromMapFunc(enqueueMachinesOfCluster(mgr.GetClient())), onSpecChange()).
		Watches(&infrav1.KubevirtNodePool{},
			handler.EnqueueRequestsFromMapFunc(enqueueMachinesOfPool(mgr.GetClient())), onSpecChange())
}

// onSpecChange returns a watch option that ignores events without a change of the generation.
func onSpecChange() builder.WatchesOption {
	return builder.WithPredicates(predicate.GenerationChangedPredicate{})
}

// EnqueueForRegistration returns a function that enqueues the machine of a DNSRegistration, if the machine
// is of the kind (v1alpha1.KindMachineClaim or KindKubevirtMachine).
func EnqueueForRegistration(kind string) handler.MapFunc {
	return func(_ context.Context, obj client.Object) []reconcile.Request {
		reg, ok := obj.(*v1alpha1.DNSRegistration)
		if !ok || KindOf(reg) != kind {
			return nil
		}

		return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: reg.Spec.Claim.Namespace, Name: reg.Spec.Claim.Name}}}
	}
}

// KindOf returns the kind of a registration's machine. An empty kind means MachineClaim.
func KindOf(reg *v1alpha1.DNSRegistration) string {
	if reg.Spec.Claim.Kind == "" {
		return v1alpha1.KindMachineClaim
	}

	return reg.Spec.Claim.Kind
}

// enqueueClaimsOfCluster returns a function that enqueues the claims whose VM is on a cluster.
func enqueueClaimsOfCluster(reader client.Reader) handler.MapFunc {
	return func(ctx context.Context, cluster client.Object) []reconcile.Request {
		return watch.ListRequests(ctx, reader, &v1alpha1.MachineClaimList{}, func(claim *v1alpha1.MachineClaim) bool {
			return claim.Status.VMRef != nil && claim.Status.VMRef.HypervisorCluster == cluster.GetName()
		})
	}
}

// enqueueMachinesOfCluster returns a function that enqueues the KubevirtMachines of the node pools whose
// names are in the DNS zones of a cluster.
func enqueueMachinesOfCluster(reader client.Reader) handler.MapFunc {
	return func(ctx context.Context, cluster client.Object) []reconcile.Request {
		pools := watch.ListRequests(ctx, reader, &infrav1.KubevirtNodePoolList{}, func(pool *infrav1.KubevirtNodePool) bool {
			return pool.Spec.DNS != nil && pool.Spec.DNS.HypervisorClusterRef.Name == cluster.GetName()
		})

		var machines []reconcile.Request
		for _, pool := range pools {
			machines = append(machines, listMachineRequests(ctx, reader, pool.NamespacedName)...)
		}

		return machines
	}
}

// enqueueMachinesOfPool returns a function that enqueues the KubevirtMachines of a node pool.
func enqueueMachinesOfPool(reader client.Reader) handler.MapFunc {
	return func(ctx context.Context, pool client.Object) []reconcile.Request {
		return listMachineRequests(ctx, reader, client.ObjectKeyFromObject(pool))
	}
}

func listMachineRequests(ctx context.Context, reader client.Reader, pool client.ObjectKey) []reconcile.Request {
	return watch.ListRequests[*infrav1.KubevirtMachine](ctx, reader, &infrav1.KubevirtMachineList{}, nil,
		client.InNamespace(pool.Namespace), client.MatchingLabels{infrav1.LabelNodePool: pool.Name})
}
