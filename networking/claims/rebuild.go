// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/objects"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/pools"
)

// PoolReader finds the templates' pools for a registry's addresses.
func PoolReader(live client.Reader, registry *Registry) pools.PoolReader {
	return func(ctx context.Context) ([]pools.Found, error) {
		templates, err := objects.All[*v1alpha1.HypervisorMachineTemplate](ctx, live, &v1alpha1.HypervisorMachineTemplateList{})
		if err != nil {
			return nil, fmt.Errorf("list templates: %w", err)
		}

		registry.clear()

		var out []pools.Found

		for _, template := range templates {
			if template.Spec.Network.AddressPool() == nil {
				continue
			}

			var cluster v1alpha1.HypervisorCluster

			err := live.Get(ctx, client.ObjectKey{Name: template.Spec.HypervisorClusterRef.Name}, &cluster)
			if apierrors.IsNotFound(err) {
				continue
			}

			if err != nil {
				return nil, fmt.Errorf("get cluster of template %s: %w", client.ObjectKeyFromObject(template), err)
			}

			if err := allowed(ctx, live, template, &cluster); errclass.Of(err) == errclass.Configuration {
				continue
			} else if err != nil {
				return nil, err
			}

			// What is wrong with it, its own pass says.
			out = append(out, pools.Found{Object: template, Put: func(*pools.AddressRegistry) { registry.Set(template, &cluster, nil) }})
		}

		return out, nil
	}
}

// Reader reads the claims' addresses back into a registry's addresses.
func Reader(live client.Reader, registry *Registry) pools.Reader {
	return pools.MachineReader(live, &v1alpha1.MachineClaimList{},
		func(b *pools.AddressRegistry, claim *v1alpha1.MachineClaim) error { return restore(b, registry, claim) },
		func(b *pools.AddressRegistry, claim *v1alpha1.MachineClaim) { expect(b, registry, claim) })
}

// expect has a claim that found its pool full wait in it still, before those who come now.
func expect(b *pools.AddressRegistry, registry *Registry, claim *v1alpha1.MachineClaim) {
	waits := pools.Waits(claim.Status.Conditions, v1alpha1.ConditionAddressAllocated)

	if !waits || len(onRecord(claim)) > 0 || started(claim) || !claim.DeletionTimestamp.IsZero() {
		return
	}

	entry, there := registry.Of(types.NamespacedName{Namespace: claim.Namespace, Name: claim.Spec.TemplateRef.Name})
	if there && entry.Reason == "" {
		b.Expect(entry.Network, entry.Pool, Owner(claim))
	}
}

// clear forgets all templates, for an address registry that is empty.
func (r *Registry) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.templates = map[types.NamespacedName]Entry{}
}

// restore puts into the address registry what a claim's status says.
func restore(b *pools.AddressRegistry, registry *Registry, claim *v1alpha1.MachineClaim) error {
	if len(onRecord(claim)) == 0 {
		return nil
	}

	entry, _ := registry.Of(types.NamespacedName{Namespace: claim.Namespace, Name: claim.Spec.TemplateRef.Name})

	var problems []error

	for _, text := range onRecord(claim) {
		address, err := netip.ParsePrefix(text)
		if err != nil {
			problems = append(problems,
				fmt.Errorf("read status.networkInfo.addresses: %q: it must be an address with its prefix length", text))

			continue
		}

		problems = append(problems, b.Restore(claim.Status.NetworkInfo.AddressNetwork,
			alloc.Held{Owner: Owner(claim), Pool: entry.Pool, Address: address}))
	}

	return errors.Join(problems...)
}
