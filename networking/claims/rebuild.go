// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/pools"
)

// pageSize is how many objects one call lists.
const pageSize = 500

// PoolReader finds the templates' pools for a registry's addresses.
func PoolReader(live client.Reader, registry *Registry) pools.PoolReader {
	return func(ctx context.Context) ([]pools.Found, error) {
		templates, err := pages(ctx, live,
			func(l *v1alpha1.HypervisorMachineTemplateList) []v1alpha1.HypervisorMachineTemplate { return l.Items })
		if err != nil {
			return nil, fmt.Errorf("list templates: %w", err)
		}

		registry.clear()

		var out []pools.Found

		for i := range templates {
			template := &templates[i]
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
	return func(ctx context.Context, b *pools.AddressRegistry) error {
		claims, err := pages(ctx, live,
			func(l *v1alpha1.MachineClaimList) []v1alpha1.MachineClaim { return l.Items })
		if err != nil {
			return fmt.Errorf("list claims: %w", err)
		}

		slices.SortFunc(claims, func(x, y v1alpha1.MachineClaim) int { return pools.Older(&x, &y) })

		for i := range claims {
			if err := restore(b, registry, &claims[i]); err != nil {
				log.FromContext(ctx).Error(err, "an address on record is not its machine's",
					"namespace", claims[i].Namespace, "name", claims[i].Name)
			}
		}

		for i := range claims {
			expect(b, registry, &claims[i])
		}

		return nil
	}
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

// pages reads a list page by page.
func pages[T, L any, P interface {
	*L
	client.ObjectList
}](ctx context.Context, live client.Reader, items func(P) []T) ([]T, error) {
	var (
		out  []T
		next string
	)

	for {
		list := P(new(L))
		if err := live.List(ctx, list, client.Limit(pageSize), client.Continue(next)); err != nil {
			return nil, err
		}

		out = append(out, items(list)...)

		if next = list.GetContinue(); next == "" {
			return out, nil
		}
	}
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
