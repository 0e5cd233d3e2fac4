// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
	"github.com/hyperfleet/hyperfleet/networking/pools"
)

// pageSize is how many machines one call lists.
const pageSize = 500

// Reader reads the machines' addresses back into an address registry.
func Reader(live client.Reader) pools.Reader {
	return func(ctx context.Context, b *pools.AddressRegistry) error {
		machines, err := list(ctx, live)
		if err != nil {
			return err
		}

		slices.SortFunc(machines, func(x, y v1alpha1.KubevirtMachine) int { return pools.Older(&x, &y) })

		for i := range machines {
			if err := restore(b, &machines[i]); err != nil {
				log.FromContext(ctx).Error(err, "an address on record is not its machine's",
					"namespace", machines[i].Namespace, "name", machines[i].Name)
			}
		}

		for i := range machines {
			expect(b, &machines[i])
		}

		return nil
	}
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

func list(ctx context.Context, live client.Reader) ([]v1alpha1.KubevirtMachine, error) {
	var (
		out  []v1alpha1.KubevirtMachine
		next string
	)

	for {
		var page v1alpha1.KubevirtMachineList
		if err := live.List(ctx, &page, client.Limit(pageSize), client.Continue(next)); err != nil {
			return nil, fmt.Errorf("list machines: %w", err)
		}

		out = append(out, page.Items...)

		if next = page.Continue; next == "" {
			return out, nil
		}
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
