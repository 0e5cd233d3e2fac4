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

// NewReader returns a reader that restores the recorded addresses of all KubevirtMachines into an address
// registry.
func NewReader(live client.Reader) pools.Reader {
	return pools.NewMachineReader(live, &v1alpha1.KubevirtMachineList{}, restore, restoreWaiting)
}

// restoreWaiting adds a machine that waits for an address to the queue of its pool again, so that it comes
// before new machines.
func restoreWaiting(b *pools.AddressRegistry, machine *v1alpha1.KubevirtMachine) {
	waits := pools.IsWaiting(machine.Status.Conditions, v1alpha1.ConditionAddressesAllocated)
	pool := machine.Labels[v1alpha1.LabelNodePool]

	if !waits || pool == "" || machine.Spec.BootstrapNetworkConfig == nil || !machine.DeletionTimestamp.IsZero() {
		return
	}

	// If the network is no longer known, the reconciler of the machine reports this.
	if network, err := kubevirt.NetworkKey(machine); err == nil {
		b.RestoreWaiting(network, kubevirt.PoolName(machine.Namespace, pool), kubevirt.OwnerKey(machine))
	}
}

// restore restores the addresses in a machine's status into the address registry.
func restore(b *pools.AddressRegistry, machine *v1alpha1.KubevirtMachine) error {
	var problems []error

	for _, texts := range machine.Status.AllocatedBootstrapAddresses {
		addresses, err := parseAddresses(texts)
		problems = append(problems, err)

		for _, address := range addresses {
			problems = append(problems, b.Restore(machine.Status.BootstrapNetwork, alloc.Assignment{
				Owner: kubevirt.OwnerKey(machine), Address: address,
				Pool: kubevirt.PoolName(machine.Namespace, machine.Labels[v1alpha1.LabelNodePool]),
			}))
		}
	}

	return errors.Join(problems...)
}
