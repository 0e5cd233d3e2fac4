// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
	"github.com/hyperfleet/hyperfleet/networking/pools"
)

// Reader reads the machines' addresses back into an address registry.
func Reader(live client.Reader) pools.Reader {
	return pools.MachineReader(live, &v1alpha1.KubevirtMachineList{}, restore, expect)
}

// expect has a machine that found its pool full wait in it still, before those who come
// now.
func expect(b *pools.AddressRegistry, machine *v1alpha1.KubevirtMachine) {
	waits := pools.Waits(machine.Status.Conditions, v1alpha1.ConditionAddressesAllocated)
	pool := machine.Labels[v1alpha1.LabelNodePool]

	if !waits || pool == "" || machine.Spec.BootstrapNetworkConfig == nil || !machine.DeletionTimestamp.IsZero() {
		return
	}

	// Where the network can't be told any more the machine's own condition will say so.
	if network, err := kubevirt.NetworkOf(machine); err == nil {
		b.Expect(network, kubevirt.PoolName(machine.Namespace, pool), kubevirt.Owner(machine))
	}
}

// restore puts into the address registry what a machine's status says.
func restore(b *pools.AddressRegistry, machine *v1alpha1.KubevirtMachine) error {
	var problems []error

	for _, texts := range machine.Status.AllocatedBootstrapAddresses {
		addresses, err := read(texts)
		problems = append(problems, err)

		for _, address := range addresses {
			problems = append(problems, b.Restore(machine.Status.BootstrapNetwork, alloc.Held{
				Owner: kubevirt.Owner(machine), Address: address,
				Pool: kubevirt.PoolName(machine.Namespace, machine.Labels[v1alpha1.LabelNodePool]),
			}))
		}
	}

	return errors.Join(problems...)
}
