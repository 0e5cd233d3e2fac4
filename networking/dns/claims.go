// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/networking/claimstatus"
)

//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims/status,verbs=patch

// addClaims adds the controller that registers MachineClaims to a manager.
func addClaims(mgr ctrl.Manager, opts Options) error {
	m := &MachineReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Clock: opts.Clock, kind: v1alpha1.KindMachineClaim,
		newObject: func() claimstatus.Machine { return &v1alpha1.MachineClaim{} },
		decide:    newClaimDecider(mgr.GetClient(), mgr.GetAPIReader()),
	}

	err := claimstatus.NewClaimController(mgr, "dnsclaim").
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency, ReconciliationTimeout: reconcileTimeout}).
		Complete(m)
	if err != nil {
		return fmt.Errorf("add controller dnsclaim: %w", err)
	}

	return nil
}

// newClaimDecider returns a function that returns the intent for a claim from the claim and its cluster.
func newClaimDecider(reader, apiReader client.Reader) func(context.Context, claimstatus.Machine) (registrationIntent, error) {
	return func(ctx context.Context, machine claimstatus.Machine) (registrationIntent, error) {
		claim, ok := machine.(*v1alpha1.MachineClaim)
		if !ok {
			return registrationIntent{}, fmt.Errorf("decide registration of %T: it is not a MachineClaim", machine)
		}

		ref := claim.Status.VMRef
		if ref == nil || hasEnded(claim) {
			return registrationIntent{hasEnded: hasEnded(claim)}, nil
		}

		var cluster v1alpha1.HypervisorCluster

		err := reader.Get(ctx, client.ObjectKey{Name: ref.HypervisorCluster}, &cluster)
		if apierrors.IsNotFound(err) {
			return registrationIntent{shouldKeep: true}, nil
		}

		if err != nil {
			return registrationIntent{}, fmt.Errorf("get HypervisorCluster %s: %w", ref.HypervisorCluster, err)
		}

		return decideClaim(claim, &cluster).checkTenancy(ctx, apiReader, &cluster)
	}
}

// hasEnded returns whether the machine is deleted or is about to be deleted.
func hasEnded(claim *v1alpha1.MachineClaim) bool {
	phase := claim.Status.Phase

	return claim.Status.EndReason != "" || phase == v1alpha1.MachineClaimTerminating || phase == v1alpha1.MachineClaimFailed
}

// decideClaim returns the intent for a claim that has not ended.
func decideClaim(claim *v1alpha1.MachineClaim, cluster *v1alpha1.HypervisorCluster) registrationIntent {
	if !isRegistrationEnabled(cluster) {
		return registrationIntent{}
	}

	info := claim.Status.NetworkInfo

	switch {
	case claim.Status.Phase != v1alpha1.MachineClaimReady:
		return registrationIntent{shouldKeep: true}
	case info == nil || info.IPAddress == "":
		return registrationIntent{
			shouldKeep: true, reason: "NoAddress", message: "the machine's address is unknown: its guest agent has not reported it yet",
		}
	case !strings.Contains(info.FQDN, "."):
		return registrationIntent{
			shouldKeep: true, reason: "NoDomain",
			message: "the machine was created without a domain: set dns.domain of the HypervisorCluster",
		}
	}

	return registrationIntent{shouldRegister: true, spec: v1alpha1.DNSRegistrationSpec{
		Claim:             machineRef(v1alpha1.KindMachineClaim, claim),
		HypervisorCluster: cluster.Name,
		FQDN:              canonicalName(info.FQDN),
		Addresses:         []string{info.IPAddress},
	}}
}

// isRegistrationEnabled returns whether the machines of a cluster are registered in DNS.
func isRegistrationEnabled(cluster *v1alpha1.HypervisorCluster) bool {
	settings := cluster.Spec.DNS

	return settings != nil && settings.RegisterVMs && settings.DNSProvider != nil
}
