// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package claimstatus

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// OfRegistration gives the claim of a DNSRegistration, to be woken.
func OfRegistration(_ context.Context, obj client.Object) []reconcile.Request {
	reg, ok := obj.(*v1alpha1.DNSRegistration)
	if !ok {
		return nil
	}

	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: reg.Spec.Claim.Namespace, Name: reg.Spec.Claim.Name}}}
}

// OfCluster gives the claims of a cluster whose settings have changed, to be woken.
func OfCluster(reader client.Reader) handler.MapFunc {
	return func(ctx context.Context, cluster client.Object) []reconcile.Request {
		var claims v1alpha1.MachineClaimList
		if err := reader.List(ctx, &claims); err != nil {
			return nil
		}

		var requests []reconcile.Request

		for i := range claims.Items {
			if ref := claims.Items[i].Status.VMRef; ref != nil && ref.HypervisorCluster == cluster.GetName() {
				requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&claims.Items[i])})
			}
		}

		return requests
	}
}
