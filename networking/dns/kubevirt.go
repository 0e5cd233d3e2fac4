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

// addKubevirtMachines adds the controller of KubevirtMachines' registrations to a manager.
func addKubevirtMachines(mgr ctrl.Manager, opts Options) error {
	m := &Machines{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: opts.Clock, kind: v1alpha1.KindKubevirtMachine,
		fresh: func() claimstatus.Machine { return &infrav1.KubevirtMachine{} },
		wish:  kubevirtWish(mgr.GetClient(), mgr.GetAPIReader()),
	}

	err := claimstatus.ForKubevirtMachines(mgr, "dnskubevirtmachine").
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency, ReconciliationTimeout: passTimeout}).
		Complete(m)
	if err != nil {
		return fmt.Errorf("add controller dnskubevirtmachine: %w", err)
	}

	return nil
}

// Left gives the registration of a machine, by the word of the reader, as long as any of the
// machine's records may be in DNS; nil if none is.
func Left(ctx context.Context, reader client.Reader, machine client.Object) (*v1alpha1.DNSRegistration, error) {
	var reg v1alpha1.DNSRegistration

	err := reader.Get(ctx, client.ObjectKey{Name: NameFor(machine)}, &reg)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // nothing left is no error
	}

	if err != nil {
		return nil, fmt.Errorf("read DNS registration of machine %s: %w", client.ObjectKeyFromObject(machine), err)
	}

	return &reg, nil
}

// KubevirtName is what a KubevirtMachine is called, and where that is looked after.
type KubevirtName struct {
	// Cluster whose DNS settings count.
	Cluster *v1alpha1.HypervisorCluster
	// Domain and FQDN of the machine, without dots at their ends; empty where neither the
	// pool nor the cluster has a domain.
	Domain, FQDN string
	// Addresses are the machine's static ones. Those that DHCP gives are not known.
	Addresses []netip.Addr
}

// NameKubevirtMachine reads what a machine's node pool says of its name. It is nil if there
// is no such pool, or it has no dns; a NotFound error if the HypervisorCluster is not there.
func NameKubevirtMachine(
	ctx context.Context, reader client.Reader, machine *infrav1.KubevirtMachine,
) (*KubevirtName, error) {
	var pool infrav1.KubevirtNodePool

	err := reader.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: machine.Labels[infrav1.LabelNodePool]}, &pool)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read the node pool of machine %s: %w", client.ObjectKeyFromObject(machine), err)
	}

	dns := pool.Spec.DNS // nil where there is no pool
	if dns == nil {
		return nil, nil //nolint:nilnil // no name is no error
	}

	var cluster v1alpha1.HypervisorCluster
	if err := reader.Get(ctx, client.ObjectKey{Name: dns.HypervisorClusterRef.Name}, &cluster); err != nil {
		return nil, fmt.Errorf("read HypervisorCluster %s, which dns.hypervisorClusterRef of KubevirtNodePool %s names: %w",
			dns.HypervisorClusterRef.Name, pool.Name, err)
	}

	out := &KubevirtName{Cluster: &cluster, Addresses: staticAddresses(machine)}
	if cluster.Spec.DNS != nil {
		out.Domain = canonical(cmp.Or(dns.Domain, cluster.Spec.DNS.Domain))
	}

	if out.Domain != "" {
		out.FQDN = canonical(machine.Name) + "." + out.Domain
	}

	return out, nil
}

// staticAddresses are those on record, in their order. What a hand has written there that
// is none is left out.
func staticAddresses(machine *infrav1.KubevirtMachine) []netip.Addr {
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

// kubevirtWish decides on what a KubevirtMachine, its pool and its cluster say.
func kubevirtWish(reader, live client.Reader) func(context.Context, claimstatus.Machine) (wish, error) {
	return func(ctx context.Context, object claimstatus.Machine) (wish, error) {
		machine, ok := object.(*infrav1.KubevirtMachine)
		if !ok {
			return wish{}, fmt.Errorf("decide on %T: it is no KubevirtMachine", object)
		}

		if machine.DeletionTimestamp != nil {
			return wish{ended: true}, nil
		}

		name, err := NameKubevirtMachine(ctx, reader, machine)
		if apierrors.IsNotFound(err) {
			return wish{keep: true, reason: "ClusterNotFound", message: err.Error()}, nil
		}

		if err != nil {
			return wish{}, err
		}

		if name != nil && registers(name.Cluster) {
			if refused, err := notFor(ctx, live, name.Cluster, machine.Namespace); err != nil || refused.reason != "" {
				return refused, err
			}
		}

		return decideKubevirt(machine, name), nil
	}
}

// decideKubevirt says what is to become of the registration of a machine that is there. One
// that was Ready once stays registered while it is stopped or restarts: it keeps its
// addresses.
func decideKubevirt(machine *infrav1.KubevirtMachine, name *KubevirtName) wish {
	switch {
	case name == nil || !registers(name.Cluster):
		return wish{}
	case !machine.Status.Ready:
		return wish{keep: true}
	case len(name.Addresses) == 0:
		return wish{
			keep: true, reason: "NoAddress", message: "the machine has no static address: those that DHCP gives are not registered",
		}
	case name.FQDN == "":
		return wish{
			keep: true, reason: "NoDomain",
			message: "there is no domain: set dns.domain of the KubevirtNodePool or of its HypervisorCluster",
		}
	}

	addresses := make([]string, 0, len(name.Addresses))
	for _, addr := range name.Addresses {
		addresses = append(addresses, addr.String())
	}

	return wish{want: true, spec: v1alpha1.DNSRegistrationSpec{
		Claim:             machineRef(v1alpha1.KindKubevirtMachine, machine),
		HypervisorCluster: name.Cluster.Name,
		FQDN:              name.FQDN,
		Addresses:         addresses,
	}}
}
