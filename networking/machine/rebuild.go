// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/watch"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
	"github.com/hyperfleet/hyperfleet/networking/pools"
)

// NewReader returns a reader that first restores the addresses in the statuses of all KubevirtMachines into an
// address registry, and then the addresses of all VirtualMachines, because the status of a machine may be lost.
func NewReader(apiReader client.Reader) pools.Reader {
	readMachines := pools.NewMachineReader(apiReader, &v1alpha1.KubevirtMachineList{}, restore, restoreWaiting)

	return func(ctx context.Context, registry *pools.AddressRegistry) error {
		if err := readMachines(ctx, registry); err != nil {
			return err
		}

		return readVirtualMachines(ctx, apiReader, registry)
	}
}

// readVirtualMachines restores the addresses in the annotations of all VirtualMachines into the address
// registry. It marks the pool of each VirtualMachine whose addresses are unknown.
func readVirtualMachines(ctx context.Context, apiReader client.Reader, registry *pools.AddressRegistry) error {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kubevirt.VirtualMachineKind())

	vms, err := watch.ListAll[*unstructured.Unstructured](ctx, apiReader, list, client.HasLabels{v1alpha1.LabelMachine})
	if meta.IsNoMatchError(err) {
		return nil // KubeVirt is not installed
	}

	if err != nil {
		return fmt.Errorf("list VirtualMachines: %w", err)
	}

	machines, err := watch.ListAll[*v1alpha1.KubevirtMachine](ctx, apiReader, &v1alpha1.KubevirtMachineList{})
	if err != nil {
		return fmt.Errorf("list machines: %w", err)
	}

	byName := map[types.NamespacedName]*v1alpha1.KubevirtMachine{}
	for _, machine := range machines {
		byName[client.ObjectKeyFromObject(machine)] = machine
	}

	for _, vm := range vms {
		if err := restoreVM(registry, vm, byName[client.ObjectKeyFromObject(vm)]); err != nil {
			log.FromContext(ctx).Error(err, "cannot restore the addresses of a VirtualMachine",
				"namespace", vm.GetNamespace(), "name", vm.GetName())
		}
	}

	return nil
}

// restoreVM restores the addresses of a VirtualMachine into the address registry. machine is nil if there is
// no machine with its name.
func restoreVM(registry *pools.AddressRegistry, vm *unstructured.Unstructured, machine *v1alpha1.KubevirtMachine) error {
	owner := kubevirt.OwnerKeyPrefix(vm.GetNamespace(), vm.GetName()) + string(formerOwner(vm))

	switch {
	case machine == nil && vm.GetLabels()[v1alpha1.LabelMachine] != vm.GetName(),
		machine != nil && !isOwned(vm, machine):
		return nil // it belongs to somebody else
	case machine != nil:
		owner = kubevirt.OwnerKey(machine)
	}

	assigned, err := kubevirt.ReadAddresses(vm)
	pool := kubevirt.PoolName(vm.GetNamespace(), vm.GetLabels()[v1alpha1.LabelNodePool])

	if err != nil || len(assigned.Addresses) == 0 {
		if kubevirt.NetworkDataSecret(vm) != "" && len(registry.AddressesOf(owner)) == 0 {
			registry.MarkUnread(pool, owner)
		}

		return err
	}

	var problems []error
	for _, address := range assigned.Addresses {
		problems = append(problems, registry.Restore(assigned.Network, alloc.Assignment{Owner: owner, Address: address, Pool: pool}))
	}

	return errors.Join(problems...)
}

// formerOwner returns the UID of the machine to which a VirtualMachine belonged, or the UID of the VirtualMachine
// if it has no owner.
func formerOwner(vm *unstructured.Unstructured) types.UID {
	if ref := metav1.GetControllerOf(vm); ref != nil {
		return ref.UID
	}

	return vm.GetUID()
}

// restoreOrphan restores the addresses of a VirtualMachine without a machine into the address registry. The
// machine may be restored later than its VirtualMachine.
func (r *Reconciler) restoreOrphan(ctx context.Context, name types.NamespacedName) error {
	vm := kubevirt.NewObject(kubevirt.VirtualMachineKind())
	if err := r.Client.Get(ctx, name, vm); err != nil {
		return client.IgnoreNotFound(err)
	}

	if err := restoreVM(r.Addresses, vm, nil); err != nil {
		log.FromContext(ctx).Error(err, "cannot restore the addresses of a VirtualMachine without a KubevirtMachine")
	}

	return nil
}

// restoreWaiting adds a machine that waits for an address to the queue of its pool again, so that it comes
// before new machines.
func restoreWaiting(registry *pools.AddressRegistry, machine *v1alpha1.KubevirtMachine) {
	isWaiting := pools.IsWaiting(machine.Status.Conditions, v1alpha1.ConditionAddressesAllocated)
	pool := machine.Labels[v1alpha1.LabelNodePool]

	if !isWaiting || pool == "" || machine.Spec.BootstrapNetworkConfig == nil || !machine.DeletionTimestamp.IsZero() {
		return
	}

	// If the network is no longer known, the reconciler of the machine reports this.
	if network, err := kubevirt.NetworkKey(machine); err == nil {
		registry.RestoreWaiting(network, kubevirt.PoolName(machine.Namespace, pool), kubevirt.OwnerKey(machine))
	}
}

// restore restores the addresses in a machine's status into the address registry.
func restore(registry *pools.AddressRegistry, machine *v1alpha1.KubevirtMachine) error {
	var problems []error

	for _, texts := range machine.Status.AllocatedBootstrapAddresses {
		addresses, err := parseAddresses(texts)
		problems = append(problems, err)

		for _, address := range addresses {
			problems = append(problems, registry.Restore(machine.Status.BootstrapNetwork, alloc.Assignment{
				Owner: kubevirt.OwnerKey(machine), Address: address,
				Pool: kubevirt.PoolName(machine.Namespace, machine.Labels[v1alpha1.LabelNodePool]),
			}))
		}
	}

	return errors.Join(problems...)
}
