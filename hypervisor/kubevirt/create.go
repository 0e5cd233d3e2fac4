// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Ensure makes the machine; see hypervisor.Provider.
func (p *Provider) Ensure(ctx context.Context, spec hypervisor.MachineSpec) (hypervisor.Machine, error) {
	spec.Standby = true

	return p.advance(ctx, spec, nil)
}

// Start makes and starts the machine; see hypervisor.Provider.
func (p *Provider) Start(
	ctx context.Context, spec hypervisor.MachineSpec, seed func(context.Context) (hypervisor.Seed, error),
) (hypervisor.Machine, error) {
	spec.Standby = false

	return p.advance(ctx, spec, seed)
}

// advance takes the machine as far as it gets without waiting: until it is prepared if it is
// on standby, else until it runs.
func (p *Provider) advance(
	ctx context.Context, spec hypervisor.MachineSpec, seed func(context.Context) (hypervisor.Seed, error),
) (hypervisor.Machine, error) {
	if spec.ID == 0 {
		return hypervisor.Machine{}, errors.New("make machine: it needs a reserved id")
	}

	if _, err := p.view.start(); err != nil {
		return hypervisor.Machine{}, err
	}

	if err := p.ids.Seed(ctx, p.options.Claimed); err != nil {
		return hypervisor.Machine{}, err
	}

	// One call at a time makes a machine, so that one credential is made for it.
	defer p.busy.lock(spec.Owner.UID)()

	p.ids.Confirm(spec.ID, spec.Owner.UID)

	if m, waits := p.waits(ctx, spec); waits {
		return m, nil
	}

	vm, instance, err := p.read(ctx, nameOf(spec.Owner, spec.ID))
	if err != nil {
		return hypervisor.Machine{}, err
	}

	if vm == nil {
		if vm, err = p.make(ctx, spec); err != nil {
			return hypervisor.Machine{}, err
		}
	}

	record, ours := p.id.isOf(vm, spec.Owner)
	if !ours {
		p.ids.Reject(spec.ID, spec.Owner.UID)

		return hypervisor.Machine{}, hypervisor.Errorf(hypervisor.IDTaken, "IDTaken",
			"VirtualMachine %s is there already and is not this claim's", p.key(vm.Name))
	}

	return p.further(ctx, spec, vm, instance, record, seed)
}

// waits tells whether the watches show a machine that needs nothing but time. What they
// show may be late, and then only the next look is.
func (p *Provider) waits(ctx context.Context, spec hypervisor.MachineSpec) (hypervisor.Machine, bool) {
	vm, instance, err := p.seen(ctx, nameOf(spec.Owner, spec.ID))
	if err != nil || vm == nil {
		return hypervisor.Machine{}, false
	}

	record, ours := p.id.isOf(vm, spec.Owner)
	m := describe(vm, instance, record)

	switch strategyOf(vm) {
	case virtv1.RunStrategyHalted:
		return m, ours && spec.Standby && m.State == hypervisor.StateCreating
	case virtv1.RunStrategyOnce:
		// With an instance there is something to do: see further.
		return m, ours && instance == nil && m.State == hypervisor.StateCreating
	default:
		return m, ours && m.State == hypervisor.StateCreating
	}
}

// Reserve chooses an id, or finds the one under which the owner's machine is there
// already; see hypervisor.Provider.
func (p *Provider) Reserve(ctx context.Context, spec hypervisor.MachineSpec) (hypervisor.Reservation, error) {
	var reserved hypervisor.Reservation

	if _, err := p.view.start(); err != nil {
		return reserved, err
	}

	if err := p.ids.Seed(ctx, p.options.Claimed); err != nil {
		return reserved, err
	}

	old, err := p.find(ctx, spec.Owner)
	if err != nil {
		return reserved, err
	}

	if old != nil {
		if record, ours := p.id.isOf(old, spec.Owner); ours {
			reserved.ID = record.ID

			return reserved, nil
		}
	}

	if err := p.fits(ctx, spec.Shape, hypervisor.NoCapacity); err != nil {
		return reserved, err
	}

	for {
		id, err := p.ids.Reserve(spec.Owner.UID, struct{}{}, nil)
		if err != nil {
			return reserved, err
		}

		reserved.ID = id

		vm, _, err := p.read(ctx, nameOf(spec.Owner, id))
		if err != nil || vm == nil {
			return reserved, err
		}

		if _, ours := p.id.isOf(vm, spec.Owner); ours {
			return reserved, nil
		}

		p.ids.Reject(id, spec.Owner.UID)
	}
}

// find looks for the owner's machine under whatever id; nil is none.
func (p *Provider) find(ctx context.Context, owner hypervisor.Owner) (*virtv1.VirtualMachine, error) {
	ctx, cancel := p.in(ctx)
	defer cancel()

	var all virtv1.VirtualMachineList
	if err := p.api.List(ctx, &all, client.InNamespace(p.config.Namespace), p.id.of(owner)); err != nil {
		return nil, explain("find machine of "+owner.Name, false, err)
	}

	for i := range all.Items {
		if _, ours := p.id.isOf(&all.Items[i], owner); ours {
			return &all.Items[i], nil
		}
	}

	return nil, nil //nolint:nilnil // nil is none
}

// read reads a machine and its instance; nil is none. The instance is only asked for
// where there can be one.
func (p *Provider) read(
	ctx context.Context, name string,
) (*virtv1.VirtualMachine, *virtv1.VirtualMachineInstance, error) {
	vm, err := fetch(ctx, p, name, &virtv1.VirtualMachine{})
	if err != nil || vm == nil {
		return nil, nil, err
	}

	if strategyOf(vm) == virtv1.RunStrategyHalted && !vm.Status.Created {
		return vm, nil, nil
	}

	instance, err := fetch(ctx, p, name, &virtv1.VirtualMachineInstance{})

	return vm, instance, err
}

// fetch reads an object; nil is none.
func fetch[T client.Object](ctx context.Context, p *Provider, name string, into T) (T, error) {
	ctx, cancel := p.in(ctx)
	defer cancel()

	var none T

	err := p.api.Get(ctx, p.key(name), into)

	switch {
	case apierrors.IsNotFound(err):
		return none, nil
	case err != nil:
		return none, explain(fmt.Sprintf("read machine %s", p.key(name)), false, err)
	default:
		return into, nil
	}
}

// make makes the machine, or finds that another call has made it.
func (p *Provider) make(ctx context.Context, spec hypervisor.MachineSpec) (*virtv1.VirtualMachine, error) {
	vm, err := p.build(spec, p.clock.Now())
	if err != nil {
		return nil, err
	}

	name := vm.Name
	call, cancel := p.in(ctx)
	err = p.api.Create(call, vm)

	cancel()

	if !apierrors.IsAlreadyExists(err) {
		return vm, explain(fmt.Sprintf("make machine %s", p.key(name)), true, err)
	}

	other, err := fetch(ctx, p, name, &virtv1.VirtualMachine{})
	if err != nil {
		return nil, err
	}

	if other == nil {
		return nil, hypervisor.Errorf(hypervisor.Busy, "Busy",
			"make machine %s: another of its name is just going", p.key(name))
	}

	return other, nil
}

// further takes a machine that is there as far as it gets without waiting.
func (p *Provider) further(
	ctx context.Context, spec hypervisor.MachineSpec, vm *virtv1.VirtualMachine, instance *virtv1.VirtualMachineInstance,
	record Record, seed func(context.Context) (hypervisor.Seed, error),
) (hypervisor.Machine, error) {
	m := describe(vm, instance, record)

	switch m.State {
	case hypervisor.StateDeleting:
		return m, nil
	case hypervisor.StatePrepared, hypervisor.StateCreating:
		// A machine whose instance is there needs nothing more than time.
		if strategyOf(vm) == virtv1.RunStrategyHalted && !spec.Standby {
			return p.release(ctx, vm, m, seed)
		}
	case hypervisor.StateRunning, hypervisor.StateStopped:
		if err := p.emptySeed(ctx, vm); err != nil {
			return m, err
		}
	case hypervisor.StateRemains:
		// No machine that is there is so.
	}

	if instance != nil && strategyOf(vm) == virtv1.RunStrategyOnce {
		if err := p.setStrategy(ctx, vm, virtv1.RunStrategyManual); err != nil {
			return m, err
		}
	}

	return m, nil
}

// release gives a machine its cloud-init Secret and starts it.
func (p *Provider) release(
	ctx context.Context, vm *virtv1.VirtualMachine, m hypervisor.Machine, seed func(context.Context) (hypervisor.Seed, error),
) (hypervisor.Machine, error) {
	if err := p.giveSeed(ctx, vm, m, seed); err != nil {
		return m, err
	}

	if err := p.setStrategy(ctx, vm, virtv1.RunStrategyOnce); err != nil {
		return m, err
	}

	m.State, m.Message = hypervisor.StateCreating, "it is being started"

	return m, nil
}

// setStrategy changes how the machine is run, if nobody else has changed it meanwhile.
func (p *Provider) setStrategy(ctx context.Context, vm *virtv1.VirtualMachine, to virtv1.VirtualMachineRunStrategy) error {
	ctx, cancel := p.in(ctx)
	defer cancel()

	// Both are named: what was read must still be so.
	patch := fmt.Appendf(nil, `[{"op":"test","path":"/metadata/uid","value":%q},`+
		`{"op":"test","path":"/spec/runStrategy","value":%q},{"op":"replace","path":"/spec/runStrategy","value":%q}]`,
		vm.UID, strategyOf(vm), to)

	err := p.api.Patch(ctx, vm.DeepCopy(), client.RawPatch(types.JSONPatchType, patch))
	if apierrors.IsInvalid(err) && !strings.Contains(err.Error(), textWebhook) {
		// A test of the patch failed: another call was faster. The next look shows what it did.
		return &hypervisor.Error{
			Kind: hypervisor.Busy, Reason: "Busy",
			Message: fmt.Sprintf("set runStrategy of machine %s to %s: it has changed", p.key(vm.Name), to), Err: err,
		}
	}

	return explain(fmt.Sprintf("set runStrategy of machine %s to %s", p.key(vm.Name), to), true, err)
}
