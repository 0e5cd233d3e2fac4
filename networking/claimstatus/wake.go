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
	"github.com/hyperfleet/hyperfleet/kit/objects"
)

// ForClaims begins a controller of MachineClaims that a registration of theirs wakes, and
// their cluster when its settings change.
func ForClaims(mgr ctrl.Manager, name string) *builder.Builder {
	return ctrl.NewControllerManagedBy(mgr).
		Named(name).
		For(&v1alpha1.MachineClaim{}).
		Watches(&v1alpha1.DNSRegistration{},
			handler.EnqueueRequestsFromMapFunc(OfRegistration(v1alpha1.KindMachineClaim))).
		Watches(&v1alpha1.HypervisorCluster{},
			handler.EnqueueRequestsFromMapFunc(ofCluster(mgr.GetClient())), settings())
}

// ForKubevirtMachines begins a controller of KubevirtMachines that a registration of theirs
// wakes, and their node pool and the cluster that it names when their settings change.
func ForKubevirtMachines(mgr ctrl.Manager, name string) *builder.Builder {
	return ctrl.NewControllerManagedBy(mgr).
		Named(name).
		For(&infrav1.KubevirtMachine{}).
		Watches(&v1alpha1.DNSRegistration{},
			handler.EnqueueRequestsFromMapFunc(OfRegistration(v1alpha1.KindKubevirtMachine))).
		Watches(&v1alpha1.HypervisorCluster{},
			handler.EnqueueRequestsFromMapFunc(machinesOfCluster(mgr.GetClient())), settings()).
		Watches(&infrav1.KubevirtNodePool{},
			handler.EnqueueRequestsFromMapFunc(machinesOfPool(mgr.GetClient())), settings())
}

// settings lets through what changes an object's spec, and no status.
func settings() builder.WatchesOption {
	return builder.WithPredicates(predicate.GenerationChangedPredicate{})
}

// OfRegistration gives the machine of a DNSRegistration, to be woken, if it is of the kind
// (v1alpha1.KindMachineClaim or KindKubevirtMachine).
func OfRegistration(kind string) handler.MapFunc {
	return func(_ context.Context, obj client.Object) []reconcile.Request {
		reg, ok := obj.(*v1alpha1.DNSRegistration)
		if !ok || KindOf(reg) != kind {
			return nil
		}

		return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: reg.Spec.Claim.Namespace, Name: reg.Spec.Claim.Name}}}
	}
}

// KindOf is the kind of a registration's machine.
func KindOf(reg *v1alpha1.DNSRegistration) string {
	if reg.Spec.Claim.Kind == "" {
		return v1alpha1.KindMachineClaim
	}

	return reg.Spec.Claim.Kind
}

// ofCluster gives the claims of a cluster whose settings have changed, to be woken.
func ofCluster(reader client.Reader) handler.MapFunc {
	return func(ctx context.Context, cluster client.Object) []reconcile.Request {
		return objects.Requests(ctx, reader, &v1alpha1.MachineClaimList{}, func(claim *v1alpha1.MachineClaim) bool {
			return claim.Status.VMRef != nil && claim.Status.VMRef.HypervisorCluster == cluster.GetName()
		})
	}
}

// machinesOfCluster gives the KubevirtMachines of the node pools that have their names in a
// cluster's DNS.
func machinesOfCluster(reader client.Reader) handler.MapFunc {
	return func(ctx context.Context, cluster client.Object) []reconcile.Request {
		pools := objects.Requests(ctx, reader, &infrav1.KubevirtNodePoolList{}, func(pool *infrav1.KubevirtNodePool) bool {
			return pool.Spec.DNS != nil && pool.Spec.DNS.HypervisorClusterRef.Name == cluster.GetName()
		})

		var machines []reconcile.Request
		for _, pool := range pools {
			machines = append(machines, machinesOf(ctx, reader, pool.NamespacedName)...)
		}

		return machines
	}
}

// machinesOfPool gives the KubevirtMachines of a node pool, to be woken.
func machinesOfPool(reader client.Reader) handler.MapFunc {
	return func(ctx context.Context, pool client.Object) []reconcile.Request {
		return machinesOf(ctx, reader, client.ObjectKeyFromObject(pool))
	}
}

func machinesOf(ctx context.Context, reader client.Reader, pool client.ObjectKey) []reconcile.Request {
	return objects.Requests[*infrav1.KubevirtMachine](ctx, reader, &infrav1.KubevirtMachineList{}, nil,
		client.InNamespace(pool.Namespace), client.MatchingLabels{infrav1.LabelNodePool: pool.Name})
}
