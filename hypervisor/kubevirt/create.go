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

// Ensure creates the machine; see hypervisor.Provider.
func (p *Provider) Ensure(ctx context.Context, spec hypervisor.MachineSpec) (hypervisor.Machine, error) {
	spec.Standby = true

	return p.advance(ctx, spec, nil)
}

// Start creates and starts the machine; see hypervisor.Provider.
func (p *Provider) Start(
	ctx context.Context, spec hypervisor.MachineSpec, seed func(context.Context) (hypervisor.Seed, error),
) (hypervisor.Machine, error) {
	spec.Standby = false

	return p.advance(ctx, spec, seed)
}

// advance does as much for the machine as it can without waiting. A standby machine is done when it
// is prepared, and another machine when it runs.
func (p *Provider) advance(
	ctx context.Context, spec hypervisor.MachineSpec, seed func(context.Context) (hypervisor.Seed, error),
) (hypervisor.Machine, error) {
	if spec.ID == 0 {
		return hypervisor.Machine{}, errors.New("create machine: the spec has no reserved id")
	}

	if _, err := p.cache.start(); err != nil {
		return hypervisor.Machine{}, err
	}

	if err := p.ids.LoadClaimed(ctx, p.config.Name, p.options.ListClaimed, nil); err != nil {
		return hypervisor.Machine{}, err
	}

	// Only one call at a time works on a machine, so that only one credential is created for it.
	p.machineLocks.LockKey(spec.Owner.UID)
	defer p.machineLocks.UnlockKey(spec.Owner.UID) //nolint:errcheck // a hashed mutex returns no error

	p.ids.Confirm(spec.ID, spec.Owner.UID)

	if m, isWaiting := p.findWaiting(ctx, spec); isWaiting {
		return m, nil
	}

	vm, instance, err := p.readMachine(ctx, hypervisor.MachineName(spec.Owner, spec.ID))
	if err != nil {
		return hypervisor.Machine{}, err
	}

	if vm == nil {
		if vm, err = p.createVM(ctx, spec); err != nil {
			return hypervisor.Machine{}, err
		}
	}

	record, isOurs := p.identity.claimRecord(vm, spec.Owner)
	if !isOurs {
		p.ids.MarkTaken(spec.ID, spec.Owner.UID)

		return hypervisor.Machine{}, hypervisor.Errorf(hypervisor.IDTaken, "IDTaken",
			"create machine: VirtualMachine %s exists already and has another owner", p.objectKey(vm.Name))
	}

	return p.advanceExisting(ctx, spec, vm, instance, record, seed)
}

// findWaiting returns the machine from the cache, and whether the operator only has to wait for it. If the
// cache is out of date, the operator waits one reconcile too long, which does no harm.
func (p *Provider) findWaiting(ctx context.Context, spec hypervisor.MachineSpec) (hypervisor.Machine, bool) {
	vm, instance, err := p.readCached(ctx, hypervisor.MachineName(spec.Owner, spec.ID))
	if err != nil || vm == nil {
		return hypervisor.Machine{}, false
	}

	record, isOurs := p.identity.claimRecord(vm, spec.Owner)
	m := newMachine(vm, instance, record)

	switch runStrategyOf(vm) {
	case virtv1.RunStrategyHalted:
		return m, isOurs && spec.Standby && m.State == hypervisor.StateCreating
	case virtv1.RunStrategyOnce:
		// If the instance exists, the strategy has to be set to Manual; see advanceExisting.
		return m, isOurs && instance == nil && m.State == hypervisor.StateCreating
	default:
		return m, isOurs && m.State == hypervisor.StateCreating
	}
}

// Reserve chooses an id, or returns the id of the owner's machine if it exists already; see
// hypervisor.Provider.
func (p *Provider) Reserve(ctx context.Context, spec hypervisor.MachineSpec) (hypervisor.Reservation, error) {
	var reserved hypervisor.Reservation

	if _, err := p.cache.start(); err != nil {
		return reserved, err
	}

	if err := p.ids.LoadClaimed(ctx, p.config.Name, p.options.ListClaimed, nil); err != nil {
		return reserved, err
	}

	old, err := p.findMachine(ctx, spec.Owner)
	if err != nil {
		return reserved, err
	}

	if old != nil {
		if record, isOurs := p.identity.claimRecord(old, spec.Owner); isOurs {
			reserved.ID, reserved.Exists, reserved.Addresses = record.ID, true, record.ListAddresses()

			return reserved, nil
		}
	}

	if err := p.checkNamesake(ctx, spec.Owner); err != nil {
		return reserved, err
	}

	if err := p.checkAddresses(ctx, spec); err != nil {
		return reserved, err
	}

	if err := p.checkNodeSize(ctx, spec.Shape, hypervisor.NoCapacity); err != nil {
		return reserved, err
	}

	if !spec.Standby { // a standby machine needs its devices later
		if err := p.checkFreeDevices(ctx, spec.Shape); err != nil {
			return reserved, err
		}
	}

	for {
		id, err := p.ids.Reserve(spec.Owner.UID, struct{}{}, nil)
		if err != nil {
			return reserved, err
		}

		reserved.ID = id

		vm, _, err := p.readMachine(ctx, hypervisor.MachineName(spec.Owner, id))
		if err != nil || vm == nil {
			return reserved, err
		}

		if _, isOurs := p.identity.claimRecord(vm, spec.Owner); isOurs {
			return reserved, nil
		}

		p.ids.MarkTaken(id, spec.Owner.UID)
	}
}

// checkNamesake returns a NewNamesakeError while the machine of an earlier claim of the same name exists. Both machines
// would have the same hostname and address.
func (p *Provider) checkNamesake(ctx context.Context, owner hypervisor.Owner) error {
	return p.checkMachines(ctx, func(record Record, name string) error {
		if other := record.Owner(); other.UID != owner.UID && other.Namespace == owner.Namespace && other.Name == owner.Name {
			return hypervisor.NewNamesakeError(other, "machine "+name)
		}

		return nil
	})
}

// checkAddresses returns an error if another machine has an address of spec.
func (p *Provider) checkAddresses(ctx context.Context, spec hypervisor.MachineSpec) error {
	if spec.Network.AddressNetwork == "" {
		return nil
	}

	return p.checkMachines(ctx, func(record Record, name string) error {
		return record.CheckAddresses(spec, "VirtualMachine "+p.objectKey(name).String())
	})
}

// checkMachines calls check for all machines until it returns an error. It reads the cache, because a list of all
// machines for each machine would be too much for the API server.
func (p *Provider) checkMachines(ctx context.Context, check func(record Record, name string) error) error {
	ctx, cancel := p.withCallTimeout(ctx)
	defer cancel()

	reader, err := p.cache.syncedReader(ctx)
	if err != nil {
		return err
	}

	var all virtv1.VirtualMachineList
	if err := reader.List(ctx, &all, client.InNamespace(p.config.Namespace), p.identity.selector()); err != nil {
		return wrapAPIError("list machines", readCall, err)
	}

	for i := range all.Items {
		if record, isOurs := p.identity.ownedRecord(&all.Items[i]); isOurs {
			if err := check(record, all.Items[i].Name); err != nil {
				return err
			}
		}
	}

	return nil
}

// findMachine finds the owner's machine with any id. It returns nil if the owner has none.
func (p *Provider) findMachine(ctx context.Context, owner hypervisor.Owner) (*virtv1.VirtualMachine, error) {
	ctx, cancel := p.withCallTimeout(ctx)
	defer cancel()

	var all virtv1.VirtualMachineList
	if err := p.api.List(ctx, &all, client.InNamespace(p.config.Namespace), p.identity.ownerSelector(owner)); err != nil {
		return nil, wrapAPIError("find machine of MachineClaim "+owner.Name, readCall, err)
	}

	for i := range all.Items {
		if _, isOurs := p.identity.claimRecord(&all.Items[i], owner); isOurs {
			return &all.Items[i], nil
		}
	}

	return nil, nil //nolint:nilnil // nil means that no machine exists
}

// readMachine reads a machine and its instance. Each is nil if it does not exist. readMachine does not
// request the instance of a halted machine that cannot have one.
func (p *Provider) readMachine(
	ctx context.Context, name string,
) (*virtv1.VirtualMachine, *virtv1.VirtualMachineInstance, error) {
	vm, err := getOrNil(ctx, p, name, &virtv1.VirtualMachine{})
	if err != nil || vm == nil {
		return nil, nil, err
	}

	if runStrategyOf(vm) == virtv1.RunStrategyHalted && !vm.Status.Created {
		return vm, nil, nil
	}

	instance, err := getOrNil(ctx, p, name, &virtv1.VirtualMachineInstance{})

	return vm, instance, err
}

// getOrNil reads an object into the argument into and returns it. It returns nil if the object does
// not exist.
func getOrNil[T client.Object](ctx context.Context, p *Provider, name string, into T) (T, error) {
	ctx, cancel := p.withCallTimeout(ctx)
	defer cancel()

	var zero T

	err := p.api.Get(ctx, p.objectKey(name), into)

	switch {
	case apierrors.IsNotFound(err):
		return zero, nil
	case err != nil:
		return zero, wrapAPIError(fmt.Sprintf("read machine %s", p.objectKey(name)), readCall, err)
	default:
		return into, nil
	}
}

// createVM creates the VirtualMachine. If another call has created it, createVM returns the existing
// one, which can have another owner.
func (p *Provider) createVM(ctx context.Context, spec hypervisor.MachineSpec) (*virtv1.VirtualMachine, error) {
	// A claim of a restored backup may have an address that was allocated again since.
	if err := p.checkAddresses(ctx, spec); err != nil {
		return nil, err
	}

	vm, err := p.buildVM(spec, p.clock.Now())
	if err != nil {
		return nil, err
	}

	name := vm.Name
	call, cancel := p.withCallTimeout(ctx)
	err = p.api.Create(call, vm)

	cancel()

	if !apierrors.IsAlreadyExists(err) {
		return vm, wrapAPIError(fmt.Sprintf("create machine %s", p.objectKey(name)), writeCall, err)
	}

	existing, err := getOrNil(ctx, p, name, &virtv1.VirtualMachine{})
	if err != nil {
		return nil, err
	}

	if existing == nil {
		return nil, hypervisor.Errorf(hypervisor.Busy, "Busy",
			"create machine %s: a VirtualMachine with the same name was just deleted", p.objectKey(name))
	}

	return existing, nil
}

// advanceExisting does as much for an existing machine as it can without waiting.
func (p *Provider) advanceExisting(
	ctx context.Context, spec hypervisor.MachineSpec, vm *virtv1.VirtualMachine, instance *virtv1.VirtualMachineInstance,
	record Record, seed func(context.Context) (hypervisor.Seed, error),
) (hypervisor.Machine, error) {
	m := newMachine(vm, instance, record)

	switch m.State {
	case hypervisor.StateDeleting:
		return m, nil
	case hypervisor.StatePrepared, hypervisor.StateCreating:
		// A machine that is not halted was started already.
		if runStrategyOf(vm) == virtv1.RunStrategyHalted && !spec.Standby {
			if err := p.checkFreeDevices(ctx, spec.Shape); err != nil {
				return m, err
			}

			return p.startVM(ctx, vm, m, seed)
		}
	case hypervisor.StateRunning, hypervisor.StateStopped:
		if err := p.emptySeedSecret(ctx, vm); err != nil {
			return m, err
		}
	case hypervisor.StateRemains:
		// An existing machine is never in this state.
	}

	if instance != nil && runStrategyOf(vm) == virtv1.RunStrategyOnce {
		if err := p.setRunStrategy(ctx, vm, virtv1.RunStrategyManual); err != nil {
			return m, err
		}
	}

	return m, nil
}

// startVM creates the machine's cloud-init Secret and starts the machine.
func (p *Provider) startVM(
	ctx context.Context, vm *virtv1.VirtualMachine, m hypervisor.Machine, seed func(context.Context) (hypervisor.Seed, error),
) (hypervisor.Machine, error) {
	if err := p.ensureSeedSecret(ctx, vm, m, seed); err != nil {
		return m, err
	}

	if err := p.setRunStrategy(ctx, vm, virtv1.RunStrategyOnce); err != nil {
		return m, err
	}

	m.State, m.Message = hypervisor.StateCreating, "the machine is being started"

	return m, nil
}

// setRunStrategy sets the machine's run strategy. If the strategy has changed since vm was read,
// setRunStrategy changes nothing and returns an error of kind Busy.
func (p *Provider) setRunStrategy(
	ctx context.Context, vm *virtv1.VirtualMachine, strategy virtv1.VirtualMachineRunStrategy,
) error {
	ctx, cancel := p.withCallTimeout(ctx)
	defer cancel()

	// The patch applies only if the UID and the strategy are still the ones that were read.
	patch := fmt.Appendf(nil, `[{"op":"test","path":"/metadata/uid","value":%q},`+
		`{"op":"test","path":"/spec/runStrategy","value":%q},{"op":"replace","path":"/spec/runStrategy","value":%q}]`,
		vm.UID, runStrategyOf(vm), strategy)

	err := p.api.Patch(ctx, vm.DeepCopy(), client.RawPatch(types.JSONPatchType, patch))
	if apierrors.IsInvalid(err) && !strings.Contains(err.Error(), textWebhook) {
		// A test of the patch failed because another call has changed the machine. The next reconcile
		// reads the new state.
		return &hypervisor.Error{
			Kind: hypervisor.Busy, Reason: "Busy",
			Message: fmt.Sprintf("set runStrategy of machine %s to %s: the machine has changed", p.objectKey(vm.Name), strategy),
			Err:     err,
		}
	}

	return wrapAPIError(fmt.Sprintf("set runStrategy of machine %s to %s", p.objectKey(vm.Name), strategy), writeCall, err)
}
