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
	"github.com/hyperfleet/hyperfleet/hypervisor/tenancy"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/networking/claimstatus"
)

//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims/status,verbs=patch

// addClaims adds the controller of MachineClaims' registrations to a manager.
func addClaims(mgr ctrl.Manager, opts Options) error {
	m := &Machines{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: opts.Clock, kind: v1alpha1.KindMachineClaim,
		fresh: func() claimstatus.Machine { return &v1alpha1.MachineClaim{} },
		wish:  claimWish(mgr.GetClient(), mgr.GetAPIReader()),
	}

	err := claimstatus.ForClaims(mgr, "dnsclaim").
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency, ReconciliationTimeout: passTimeout}).
		Complete(m)
	if err != nil {
		return fmt.Errorf("add controller dnsclaim: %w", err)
	}

	return nil
}

// claimWish decides on what a claim and its cluster say.
func claimWish(reader, live client.Reader) func(context.Context, claimstatus.Machine) (wish, error) {
	return func(ctx context.Context, machine claimstatus.Machine) (wish, error) {
		claim, ok := machine.(*v1alpha1.MachineClaim)
		if !ok {
			return wish{}, fmt.Errorf("decide on %T: it is no MachineClaim", machine)
		}

		ref := claim.Status.VMRef
		if ref == nil || ended(claim) {
			return wish{ended: ended(claim)}, nil
		}

		var cluster v1alpha1.HypervisorCluster

		err := reader.Get(ctx, client.ObjectKey{Name: ref.HypervisorCluster}, &cluster)
		if apierrors.IsNotFound(err) {
			return wish{keep: true}, nil
		}

		if err != nil {
			return wish{}, fmt.Errorf("read HypervisorCluster %s: %w", ref.HypervisorCluster, err)
		}

		if registers(&cluster) {
			if refused, err := notFor(ctx, live, &cluster, claim.Namespace); err != nil || refused.reason != "" {
				return refused, err
			}
		}

		return decide(claim, &cluster), nil
	}
}

// notFor is the wish of a machine whose namespace may not use the cluster, whoever says that it is
// there; that of one that may is empty. Names that it had before stay, as machines do.
func notFor(ctx context.Context, live client.Reader, cluster *v1alpha1.HypervisorCluster, namespace string) (wish, error) {
	_, err := tenancy.Find(cluster, namespace, tenancy.LabelsOf(ctx, live, namespace))
	if errclass.Of(err) == errclass.Configuration {
		return wish{keep: true, reason: tenancy.ReasonNamespace, message: fmt.Sprintf("HypervisorCluster %s, whose zones the name "+
			"would be in, is not for namespace %s (its spec.allowedNamespaces): ask whoever administers it", cluster.Name, namespace)}, nil
	}

	return wish{}, err
}

// ended says whether the machine is, or is about to be, no more.
func ended(claim *v1alpha1.MachineClaim) bool {
	phase := claim.Status.Phase

	return claim.Status.EndReason != "" || phase == v1alpha1.MachineClaimTerminating || phase == v1alpha1.MachineClaimFailed
}

// decide says what is to become of the registration of a machine that is there.
func decide(claim *v1alpha1.MachineClaim, cluster *v1alpha1.HypervisorCluster) wish {
	if !registers(cluster) {
		return wish{}
	}

	info := claim.Status.NetworkInfo

	switch {
	case claim.Status.Phase != v1alpha1.MachineClaimReady:
		return wish{keep: true}
	case info == nil || info.IPAddress == "":
		return wish{
			keep: true, reason: "NoAddress", message: "the machine's address is not known yet: its guest agent reports it",
		}
	case !strings.Contains(info.FQDN, "."):
		return wish{
			keep: true, reason: "NoDomain",
			message: "the machine was made without a domain: set dns.domain of the HypervisorCluster",
		}
	}

	return wish{want: true, spec: v1alpha1.DNSRegistrationSpec{
		Claim:             machineRef(v1alpha1.KindMachineClaim, claim),
		HypervisorCluster: cluster.Name,
		FQDN:              canonical(info.FQDN),
		Addresses:         []string{info.IPAddress},
	}}
}

// registers says whether a cluster's machines are put into DNS.
func registers(cluster *v1alpha1.HypervisorCluster) bool {
	settings := cluster.Spec.DNS

	return settings != nil && settings.RegisterVMs && settings.DNSProvider != nil
}
