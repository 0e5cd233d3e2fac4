// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/networking/claimstatus"
)

//+kubebuilder:rbac:groups=infrastructure.hyperfleet.io,resources=kubevirtmachines,verbs=get;list;watch
//+kubebuilder:rbac:groups=infrastructure.hyperfleet.io,resources=kubevirtnodepools,verbs=list;watch
//+kubebuilder:rbac:groups=infrastructure.hyperfleet.io,resources=kubevirtmachines/status,verbs=patch

// addKubevirtMachines adds the controller that registers KubevirtMachines to a manager.
func addKubevirtMachines(mgr ctrl.Manager, opts Options) error {
	m := &MachineReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Clock: opts.Clock, kind: v1alpha1.KindKubevirtMachine,
		newObject: func() claimstatus.Machine { return &infrav1.KubevirtMachine{} },
		decide:    newKubevirtDecider(mgr.GetClient(), mgr.GetAPIReader()),
	}

	err := claimstatus.NewKubevirtMachineController(mgr, "dnskubevirtmachine").
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency, ReconciliationTimeout: reconcileTimeout}).
		Complete(m)
	if err != nil {
		return fmt.Errorf("add controller dnskubevirtmachine: %w", err)
	}

	return nil
}

// FindRegistration returns the registration of a machine, and nil if it does not exist. While the
// registration exists, DNS may still have records of the machine.
func FindRegistration(ctx context.Context, reader client.Reader, machine client.Object) (*v1alpha1.DNSRegistration, error) {
	var reg v1alpha1.DNSRegistration

	err := reader.Get(ctx, client.ObjectKey{Name: RegistrationName(machine)}, &reg)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // a missing registration is not an error
	}

	if err != nil {
		return nil, fmt.Errorf("get DNSRegistration of machine %s: %w", client.ObjectKeyFromObject(machine), err)
	}

	return &reg, nil
}

// KubevirtName is the DNS name of a KubevirtMachine, with the cluster whose DNS settings apply.
type KubevirtName struct {
	// Cluster is the cluster whose DNS settings apply.
	Cluster *v1alpha1.HypervisorCluster
	// Domain and FQDN are the names of the machine without a dot at the end. They are empty if neither the
	// pool nor the cluster has a domain.
	Domain, FQDN string
	// Addresses are the static addresses of the machine. Addresses from DHCP are unknown.
	Addresses []netip.Addr
}

// ResolveKubevirtName returns the DNS name of a machine from the settings of its node pool. It returns nil
// if the pool does not exist or has no spec.dns, and a NotFound error if the HypervisorCluster does not
// exist.
func ResolveKubevirtName(
	ctx context.Context, reader client.Reader, machine *infrav1.KubevirtMachine,
) (*KubevirtName, error) {
	var pool infrav1.KubevirtNodePool

	err := reader.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: machine.Labels[infrav1.LabelNodePool]}, &pool)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get node pool of machine %s: %w", client.ObjectKeyFromObject(machine), err)
	}

	dns := pool.Spec.DNS // nil if the pool does not exist
	if dns == nil {
		return nil, nil //nolint:nilnil // a machine without a name is not an error
	}

	var cluster v1alpha1.HypervisorCluster
	if err := reader.Get(ctx, client.ObjectKey{Name: dns.HypervisorClusterRef.Name}, &cluster); err != nil {
		return nil, fmt.Errorf("get HypervisorCluster %s from dns.hypervisorClusterRef of KubevirtNodePool %s: %w",
			dns.HypervisorClusterRef.Name, pool.Name, err)
	}

	out := &KubevirtName{Cluster: &cluster, Addresses: parseStaticAddresses(machine)}
	if cluster.Spec.DNS != nil {
		out.Domain = canonicalName(cmp.Or(dns.Domain, cluster.Spec.DNS.Domain))
	}

	if out.Domain != "" {
		out.FQDN = canonicalName(machine.Name) + "." + out.Domain
	}

	return out, nil
}

// parseStaticAddresses returns the addresses in the machine's status. It skips invalid texts, which can
// occur if a status was edited by hand.
func parseStaticAddresses(machine *infrav1.KubevirtMachine) []netip.Addr {
	config := machine.Spec.BootstrapNetworkConfig
	if config == nil {
		return nil
	}

	var out []netip.Addr

	for _, text := range machine.Status.AllocatedBootstrapAddresses[config.Interface] {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			out = append(out, prefix.Addr())
		}
	}

	return out
}

// newKubevirtDecider returns a function that returns the intent for a KubevirtMachine from the machine, its
// pool and its cluster.
func newKubevirtDecider(reader, apiReader client.Reader) func(context.Context, claimstatus.Machine) (registrationIntent, error) {
	return func(ctx context.Context, object claimstatus.Machine) (registrationIntent, error) {
		machine, ok := object.(*infrav1.KubevirtMachine)
		if !ok {
			return registrationIntent{}, fmt.Errorf("decide registration of %T: it is not a KubevirtMachine", object)
		}

		if machine.DeletionTimestamp != nil {
			return registrationIntent{hasEnded: true}, nil
		}

		name, err := ResolveKubevirtName(ctx, reader, machine)
		if apierrors.IsNotFound(err) {
			return registrationIntent{shouldKeep: true, reason: "ClusterNotFound", message: err.Error()}, nil
		}

		if err != nil {
			return registrationIntent{}, err
		}

		out := decideKubevirtMachine(machine, name)
		if name == nil {
			return out, nil
		}

		return out.checkTenancy(ctx, apiReader, name.Cluster)
	}
}

// decideKubevirtMachine returns the intent for a machine that is not being deleted. A machine that was
// Ready stays registered while it is stopped or restarted, because it keeps its addresses.
func decideKubevirtMachine(machine *infrav1.KubevirtMachine, name *KubevirtName) registrationIntent {
	switch {
	case name == nil || !isRegistrationEnabled(name.Cluster):
		return registrationIntent{}
	case !machine.Status.Ready:
		return registrationIntent{shouldKeep: true}
	case len(name.Addresses) == 0:
		return registrationIntent{
			shouldKeep: true, reason: "NoAddress", message: "the machine has no static address: addresses from DHCP are not registered",
		}
	case name.FQDN == "":
		return registrationIntent{
			shouldKeep: true, reason: "NoDomain",
			message: "the machine has no domain: set dns.domain of the KubevirtNodePool or of its HypervisorCluster",
		}
	}

	addresses := make([]string, 0, len(name.Addresses))
	for _, addr := range name.Addresses {
		addresses = append(addresses, addr.String())
	}

	return registrationIntent{shouldRegister: true, spec: v1alpha1.DNSRegistrationSpec{
		Claim:             machineRef(v1alpha1.KindKubevirtMachine, machine),
		HypervisorCluster: name.Cluster.Name,
		FQDN:              name.FQDN,
		Addresses:         addresses,
	}}
}
