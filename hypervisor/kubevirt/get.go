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

// Get gives the machine's state; see hypervisor.Provider.
func (p *Provider) Get(ctx context.Context, ref hypervisor.MachineRef) (hypervisor.Machine, error) {
	if ref.ID == 0 {
		return hypervisor.Machine{}, gone(ref)
	}

	if !ref.Suspect {
		m, sure, err := p.glance(ctx, ref)
		if err != nil || sure {
			return m, err
		}
	}

	vm, instance, err := p.read(ctx, nameOf(ref.Owner, ref.ID))
	if err != nil {
		return hypervisor.Machine{}, err
	}

	if vm == nil {
		return hypervisor.Machine{}, gone(ref)
	}

	record, ours := p.id.isOf(vm, ref.Owner)
	if !ours {
		return hypervisor.Machine{}, gone(ref)
	}

	return describe(vm, instance, record), nil
}

// glance looks at what the watches have seen. It is not sure of an end: a machine is
// only called off or gone when the API server says so itself.
func (p *Provider) glance(ctx context.Context, ref hypervisor.MachineRef) (hypervisor.Machine, bool, error) {
	vm, instance, err := p.seen(ctx, nameOf(ref.Owner, ref.ID))
	if err != nil || vm == nil {
		return hypervisor.Machine{}, false, err
	}

	record, ours := p.id.isOf(vm, ref.Owner)
	m := describe(vm, instance, record)

	return m, ours && m.State != hypervisor.StateStopped, nil
}

// seen gives a machine and its instance as the watches last saw them; nil is none.
func (p *Provider) seen(
	ctx context.Context, name string,
) (*virtv1.VirtualMachine, *virtv1.VirtualMachineInstance, error) {
	ctx, cancel := p.in(ctx)
	defer cancel()

	reader, err := p.view.reader(ctx)
	if err != nil {
		return nil, nil, err
	}

	vm, instance := &virtv1.VirtualMachine{}, &virtv1.VirtualMachineInstance{}

	switch err := reader.Get(ctx, p.key(name), vm); {
	case apierrors.IsNotFound(err):
		return nil, nil, nil
	case err != nil:
		return nil, nil, explain("read machine "+name, false, err)
	}

	switch err := reader.Get(ctx, p.key(name), instance); {
	case apierrors.IsNotFound(err):
		return vm, nil, nil
	case err != nil:
		return nil, nil, explain("read machine "+name, false, err)
	}

	return vm, instance, nil
}

func gone(ref hypervisor.MachineRef) error {
	return hypervisor.Errorf(hypervisor.NotFound, "NotFound", "there is no machine %s", nameOf(ref.Owner, ref.ID))
}

// List gives what is this operator's; see hypervisor.Provider.
func (p *Provider) List(ctx context.Context) ([]hypervisor.Machine, error) {
	ctx, cancel := p.in(ctx)
	defer cancel()

	// Secrets first: a machine is made before its cloud-init Secret, so a Secret without a machine
	// in the later list has lost it.
	var (
		seed      corev1.SecretList
		vms       virtv1.VirtualMachineList
		instances virtv1.VirtualMachineInstanceList
	)

	for _, list := range []client.ObjectList{&seed, &vms, &instances} {
		if err := p.api.List(ctx, list, client.InNamespace(p.config.Namespace), p.id.selector()); err != nil {
			return nil, explain("list machines", false, err)
		}
	}

	running := map[string]*virtv1.VirtualMachineInstance{}
	for i := range instances.Items {
		running[instances.Items[i].Name] = &instances.Items[i]
	}

	var out []hypervisor.Machine

	seen := map[string]bool{}

	for i := range vms.Items {
		vm := &vms.Items[i]
		if record, ours := p.id.owns(vm); ours {
			seen[vm.Name] = true

			out = append(out, describe(vm, running[vm.Name], record))
		}
	}

	return p.remains(out, seen, seed.Items, instances.Items), nil
}

// remains adds what is left of machines that are gone: cloud-init Secrets, and instances that somebody
// has taken the machine away from.
func (p *Provider) remains(
	out []hypervisor.Machine, seen map[string]bool, seed []corev1.Secret, instances []virtv1.VirtualMachineInstance,
) []hypervisor.Machine {
	add := func(obj client.Object) {
		record, ours := p.id.owns(obj)
		if !ours || seen[obj.GetName()] {
			return
		}

		seen[obj.GetName()] = true

		out = append(out, hypervisor.Machine{
			ID: record.ID, Name: obj.GetName(), Owner: record.Owner(), Created: record.CreatedAt, State: hypervisor.StateRemains,
		})
	}

	for i := range seed {
		add(&seed[i])
	}

	for i := range instances {
		add(&instances[i])
	}

	return out
}
