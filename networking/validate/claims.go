// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/networking/claimstatus"
)

//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims;hypervisorclusters;dnsregistrations,verbs=get;list;watch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims/status,verbs=patch

// addClaims adds the controller that validates MachineClaims to a manager.
func addClaims(mgr ctrl.Manager, opts Options) error {
	r := newReconciler(mgr, opts)
	r.find = findClaim

	err := claimstatus.NewClaimController(mgr, "networkvalidation").
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add controller networkvalidation: %w", err)
	}

	return nil
}

// findClaim reads a machine from its claim and the claim's cluster. It returns nil if there is no such claim.
func findClaim(ctx context.Context, reader client.Reader, key client.ObjectKey) (*subject, error) {
	var claim v1alpha1.MachineClaim
	if err := reader.Get(ctx, key, &claim); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil, nil //nolint:nilnil // a missing machine is not an error
		}

		return nil, fmt.Errorf("get MachineClaim %s: %w", key, err)
	}

	out := &subject{object: &claim, noAddressMessage: "the machine's address is unknown: its guest agent has not reported it yet"}

	info := claim.Status.NetworkInfo
	if claim.Status.Phase != v1alpha1.MachineClaimReady || claim.Status.VMRef == nil || info == nil {
		return out, nil
	}

	var cluster v1alpha1.HypervisorCluster
	if err := reader.Get(ctx, client.ObjectKey{Name: claim.Status.VMRef.HypervisorCluster}, &cluster); err != nil {
		return out, client.IgnoreNotFound(err)
	}

	out.cluster, out.fqdn = &cluster, strings.ToLower(strings.TrimSuffix(info.FQDN, "."))
	if cluster.Spec.DNS != nil {
		out.domain = cluster.Spec.DNS.Domain
	}

	if addr, err := netip.ParseAddr(info.IPAddress); err == nil {
		out.addrs = []netip.Addr{addr}
	}

	if times := claim.Status.Times; times != nil && times.Ready != nil {
		out.readySince = times.Ready.Time
	}

	return out, nil
}
