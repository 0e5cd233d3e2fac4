// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Get returns the state of the machine; see hypervisor.Provider.
func (p *Provider) Get(ctx context.Context, ref hypervisor.MachineRef) (hypervisor.Machine, error) {
	if ref.ID == 0 {
		return hypervisor.Machine{}, newNotFoundError(ref)
	}

	if !ref.PowerOffReported {
		m, isCertain, err := p.getCached(ctx, ref)
		if err != nil || isCertain {
			return m, err
		}
	}

	vm, instance, err := p.readMachine(ctx, hypervisor.MachineName(ref.Owner, ref.ID))
	if err != nil {
		return hypervisor.Machine{}, err
	}

	if vm == nil {
		return hypervisor.Machine{}, newNotFoundError(ref)
	}

	record, isOurs := p.identity.claimRecord(vm, ref.Owner)
	if !isOurs {
		return hypervisor.Machine{}, newNotFoundError(ref)
	}

	return newMachine(vm, instance, record), nil
}

// getCached returns the machine from the cache, and whether the result is certain. The result is not
// certain if the cache has no machine or shows it as stopped. The caller must then read the machine
// from the API server.
func (p *Provider) getCached(
	ctx context.Context, ref hypervisor.MachineRef,
) (machine hypervisor.Machine, isCertain bool, err error) {
	vm, instance, err := p.readCached(ctx, hypervisor.MachineName(ref.Owner, ref.ID))
	if err != nil || vm == nil {
		return hypervisor.Machine{}, false, err
	}

	record, isOurs := p.identity.claimRecord(vm, ref.Owner)
	m := newMachine(vm, instance, record)

	return m, isOurs && m.State != hypervisor.StateStopped, nil
}

// readCached returns a machine and its instance from the cache. Each is nil if the cache does not have
// it.
func (p *Provider) readCached(
	ctx context.Context, name string,
) (*virtv1.VirtualMachine, *virtv1.VirtualMachineInstance, error) {
	ctx, cancel := p.withCallTimeout(ctx)
	defer cancel()

	reader, err := p.cache.syncedReader(ctx)
	if err != nil {
		return nil, nil, err
	}

	vm, instance := &virtv1.VirtualMachine{}, &virtv1.VirtualMachineInstance{}

	switch err := reader.Get(ctx, p.objectKey(name), vm); {
	case apierrors.IsNotFound(err):
		return nil, nil, nil
	case err != nil:
		return nil, nil, wrapAPIError("read machine "+name, readCall, err)
	}

	switch err := reader.Get(ctx, p.objectKey(name), instance); {
	case apierrors.IsNotFound(err):
		return vm, nil, nil
	case err != nil:
		return nil, nil, wrapAPIError("read machine "+name, readCall, err)
	}

	return vm, instance, nil
}

func newNotFoundError(ref hypervisor.MachineRef) error {
	return hypervisor.Errorf(hypervisor.NotFound, "NotFound", "machine %s does not exist", hypervisor.MachineName(ref.Owner, ref.ID))
}

// List returns this operator's machines and remains; see hypervisor.Provider.
func (p *Provider) List(ctx context.Context) ([]hypervisor.Machine, error) {
	ctx, cancel := p.withCallTimeout(ctx)
	defer cancel()

	// Secrets are listed first. A machine is created before its cloud-init Secret. So if the later
	// list has no machine for a Secret, the machine no longer exists.
	var (
		seeds     corev1.SecretList
		vms       virtv1.VirtualMachineList
		instances virtv1.VirtualMachineInstanceList
	)

	for _, list := range []client.ObjectList{&seeds, &vms, &instances} {
		if err := p.api.List(ctx, list, client.InNamespace(p.config.Namespace), p.identity.selector()); err != nil {
			return nil, wrapAPIError("list machines", readCall, err)
		}
	}

	instanceByName := map[string]*virtv1.VirtualMachineInstance{}
	for i := range instances.Items {
		instanceByName[instances.Items[i].Name] = &instances.Items[i]
	}

	var out []hypervisor.Machine

	seen := map[string]bool{}

	for i := range vms.Items {
		vm := &vms.Items[i]
		if record, isOurs := p.identity.ownedRecord(vm); isOurs {
			seen[vm.Name] = true

			out = append(out, newMachine(vm, instanceByName[vm.Name], record))
		}
	}

	return p.appendRemains(out, seen, seeds.Items, instances.Items), nil
}

// appendRemains appends the remains of machines that no longer exist. These are cloud-init Secrets, and
// instances whose VirtualMachine somebody has deleted. It skips the names in seen.
func (p *Provider) appendRemains(
	out []hypervisor.Machine, seen map[string]bool, seeds []corev1.Secret, instances []virtv1.VirtualMachineInstance,
) []hypervisor.Machine {
	add := func(obj client.Object) {
		record, isOurs := p.identity.ownedRecord(obj)
		if !isOurs || seen[obj.GetName()] {
			return
		}

		seen[obj.GetName()] = true

		out = append(out, hypervisor.Machine{
			ID: record.ID, Name: obj.GetName(), Owner: record.Owner(), CreatedAt: record.CreatedAt, State: hypervisor.StateRemains,
		})
	}

	for i := range seeds {
		add(&seeds[i])
	}

	for i := range instances {
		add(&instances[i])
	}

	return out
}
