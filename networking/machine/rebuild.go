// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
	"github.com/hyperfleet/hyperfleet/networking/pools"
)

// pageSize is how many machines one call lists.
const pageSize = 500

// Reader reads the machines' addresses back into a book.
func Reader(live client.Reader) pools.Reader {
	return func(ctx context.Context, b *pools.Book) error {
		machines, err := list(ctx, live)
		if err != nil {
			return err
		}

		// The older one of two that contradict each other wins.
		slices.SortStableFunc(machines, func(x, y v1alpha1.KubevirtMachine) int {
			if c := x.CreationTimestamp.Compare(y.CreationTimestamp.Time); c != 0 {
				return c
			}

			return strings.Compare(string(x.UID), string(y.UID))
		})

		for i := range machines {
			if err := restore(b, &machines[i]); err != nil {
				log.FromContext(ctx).Error(err, "an address on record is not its machine's",
					"namespace", machines[i].Namespace, "name", machines[i].Name)
			}
		}

		return nil
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

// restore puts into the book what a machine's status says.
func restore(b *pools.Book, machine *v1alpha1.KubevirtMachine) error {
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
