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
	"github.com/hyperfleet/hyperfleet/kit/watch"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/pools"
)

// NewPoolReader returns a reader that adds the pools of all templates to the template registry and its
// address registry. It skips templates whose cluster does not exist or does not allow them.
func NewPoolReader(apiReader client.Reader, registry *TemplateRegistry) pools.PoolReader {
	return func(ctx context.Context) ([]pools.PoolObject, error) {
		templates, err := watch.ListAll[*v1alpha1.HypervisorMachineTemplate](ctx, apiReader, &v1alpha1.HypervisorMachineTemplateList{})
		if err != nil {
			return nil, fmt.Errorf("list templates: %w", err)
		}

		registry.reset()

		var out []pools.PoolObject

		for _, template := range templates {
			if template.Spec.Network.AddressPool() == nil {
				continue
			}

			var cluster v1alpha1.HypervisorCluster

			err := apiReader.Get(ctx, client.ObjectKey{Name: template.Spec.HypervisorClusterRef.Name}, &cluster)
			if apierrors.IsNotFound(err) {
				continue
			}

			if err != nil {
				return nil, fmt.Errorf("get cluster of template %s: %w", client.ObjectKeyFromObject(template), err)
			}

			if err := checkAllowed(ctx, apiReader, template, &cluster); errclass.ClassOf(err) == errclass.Configuration {
				continue
			} else if err != nil {
				return nil, err
			}

			// TemplateReconciler reports an invalid pool.
			put := func(*pools.AddressRegistry) { registry.Set(template, &cluster, nil) }
			out = append(out, pools.PoolObject{Object: template, Put: put})
		}

		return out, nil
	}
}

// NewReader returns a reader that restores the recorded addresses of all claims into an address registry.
func NewReader(apiReader client.Reader, registry *TemplateRegistry) pools.Reader {
	return pools.NewMachineReader(apiReader, &v1alpha1.MachineClaimList{},
		func(addresses *pools.AddressRegistry, claim *v1alpha1.MachineClaim) error {
			if hasUnknownAddresses(claim) {
				markAddressesUnknown(addresses, registry, claim)
			}

			return restore(addresses, registry, claim)
		},
		func(addresses *pools.AddressRegistry, claim *v1alpha1.MachineClaim) {
			restoreWaiting(addresses, registry, claim)
		})
}

// restoreWaiting adds a claim that found its pool exhausted to the queue of the pool again, before new claims
// come.
func restoreWaiting(addresses *pools.AddressRegistry, registry *TemplateRegistry, claim *v1alpha1.MachineClaim) {
	isWaiting := pools.IsWaiting(claim.Status.Conditions, v1alpha1.ConditionAddressAllocated)

	if !isWaiting || len(recordedAddresses(claim)) > 0 || hasStarted(claim) || !claim.DeletionTimestamp.IsZero() {
		return
	}

	entry, found := registry.EntryOf(types.NamespacedName{Namespace: claim.Namespace, Name: claim.Spec.TemplateRef.Name})
	if found && entry.Reason == "" {
		addresses.RestoreWaiting(entry.Network, entry.Pool, OwnerKey(claim))
	}
}

// reset removes all templates. It is for an address registry that is empty.
func (r *TemplateRegistry) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.templates = map[types.NamespacedName]Entry{}
}

// restore restores the addresses in a claim's status, or else in its annotation, into the address registry.
func restore(addresses *pools.AddressRegistry, registry *TemplateRegistry, claim *v1alpha1.MachineClaim) error {
	entry := registry.entryOfClaim(claim)

	if len(recordedAddresses(claim)) == 0 || hasObservedAddresses(claim) {
		return restoreMark(addresses, entry, claim)
	}

	var problems []error

	for _, text := range recordedAddresses(claim) {
		address, err := netip.ParsePrefix(text)
		if err != nil {
			problems = append(problems,
				fmt.Errorf("parse status.networkInfo.addresses: %q is not an address with a prefix length", text))

			continue
		}

		problems = append(problems, addresses.Restore(claim.Status.NetworkInfo.AddressNetwork,
			alloc.Assignment{Owner: OwnerKey(claim), Pool: entry.Pool, Address: address}))
	}

	return errors.Join(problems...)
}
