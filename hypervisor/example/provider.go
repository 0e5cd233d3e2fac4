// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package example

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

const (
	node = "node-1"
	// defaultMinID is the lowest ID of a machine if the configuration has none.
	defaultMinID = 100
)

// Provider serves one HypervisorCluster.
type Provider struct {
	cloud   *Cloud
	options hypervisor.Options
	minID   int

	mu sync.Mutex
	// reserved holds the reserved ids by the owner's UID until the machine exists. If the process
	// ends, the claims' status still records the ids.
	reserved map[string]int
}

var _ hypervisor.Connection = (*Provider)(nil)

// Connect returns a provider for the cloud. It makes no call to the cloud.
func Connect(cloud *Cloud, config hypervisor.Config, options hypervisor.Options) (*Provider, error) {
	if err := cloud.load(); err != nil {
		return nil, err
	}

	p := &Provider{
		cloud: cloud, options: options, minID: cmp.Or(config.IDMin, defaultMinID), reserved: map[string]int{},
	}

	cloud.mu.Lock()
	defer cloud.mu.Unlock()

	cloud.listeners[p] = true

	return p, nil
}

// Close stops the watch. It does not change machines.
func (p *Provider) Close() {
	p.cloud.mu.Lock()
	defer p.cloud.mu.Unlock()

	delete(p.cloud.listeners, p)
}

// Check returns the product and its node. In a real provider, an error of kind Rejected names what a
// person must fix.
func (p *Provider) Check(context.Context) (hypervisor.Info, error) {
	return hypervisor.Info{Product: "example", Version: "1", Nodes: p.nodes()}, nil
}

// Resolve finds the template and verifies that the node can run a machine of the shape.
func (p *Provider) Resolve(
	_ context.Context, ref hypervisor.TemplateRef, shape hypervisor.Shape,
) ([]hypervisor.Template, error) {
	if ref.Name != p.cloud.Template {
		return nil, hypervisor.Errorf(hypervisor.NotFound, "TemplateNotFound",
			"template %q does not exist: use the template %q", ref.Name, p.cloud.Template)
	}

	if shape.Memory > p.cloud.Memory {
		return nil, hypervisor.Errorf(hypervisor.Rejected, "ResourcesExceedNode",
			"no node has %d bytes of memory: request less memory", shape.Memory)
	}

	if len(shape.Devices) > 0 {
		return nil, hypervisor.Errorf(hypervisor.Rejected, "DeviceNotFound",
			"this hypervisor has no device %s: remove resources.devices", shape.Devices[0].Name)
	}

	if shape.TPM {
		return nil, hypervisor.Errorf(hypervisor.Rejected, "TPMUnavailable",
			"this hypervisor has no TPM for machines: remove tpm")
	}

	return []hypervisor.Template{{Name: ref.Name, Node: node}}, nil
}

// Reserve chooses an id. If a machine of the owner exists already, because the claim lost the id,
// Reserve returns the id of that machine.
func (p *Provider) Reserve(_ context.Context, spec hypervisor.MachineSpec) (hypervisor.Reservation, error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	vms, free := p.cloud.list()

	for id, current := range vms {
		if current.Operator == p.options.OperatorUID && current.Owner.UID == spec.Owner.UID {
			return hypervisor.Reservation{ID: id, Node: node, Exists: true, Addresses: current.Record.ListAddresses()}, nil
		}
	}

	if err := p.checkAddresses(vms, spec); err != nil {
		return hypervisor.Reservation{}, err
	}

	if id, ok := p.reserved[spec.Owner.UID]; ok {
		return hypervisor.Reservation{ID: id, Node: node}, nil
	}

	// A standby machine uses no memory until it starts, so its memory need not be free now.
	if spec.Standby {
		free = p.cloud.Memory
	}

	if spec.Shape.Memory > free {
		return hypervisor.Reservation{}, hypervisor.Errorf(hypervisor.NoCapacity, "NoCapacity",
			"node %s has %d bytes of free memory", node, free)
	}

	taken := slices.Collect(maps.Values(p.reserved))
	for id := p.minID; ; id++ {
		if _, exists := vms[id]; !exists && !slices.Contains(taken, id) {
			p.reserved[spec.Owner.UID] = id

			return hypervisor.Reservation{ID: id, Node: node}, nil
		}
	}
}

// Ensure creates the machine.
func (p *Provider) Ensure(ctx context.Context, spec hypervisor.MachineSpec) (hypervisor.Machine, error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if current, exists := p.cloud.get(spec.ID); exists {
		delete(p.reserved, spec.Owner.UID)

		if !p.isOwner(current, spec.Owner) {
			return hypervisor.Machine{}, hypervisor.Errorf(hypervisor.IDTaken, "IDTaken", "machine %d has another owner", spec.ID)
		}

		return newMachine(spec.ID, current), nil
	}

	vms, _ := p.cloud.list()
	if err := p.checkAddresses(vms, spec); err != nil {
		return hypervisor.Machine{}, err
	}

	created := vm{
		Owner: spec.Owner, Operator: p.options.OperatorUID, Created: p.now(), Memory: spec.Shape.Memory,
		Record: hypervisor.Identity{OperatorUID: p.options.OperatorUID}.NewRecord(spec.Owner, spec.Network, p.now()),
	}

	// The call that creates the machine also writes its owner. So if the process ends now, the next
	// process finds the machine.
	err := p.cloud.update(ctx, "create", spec.ID, func(_ vm, exists bool) (vm, error) {
		if exists {
			return vm{}, errExists
		}

		return created, nil
	})
	if err != nil {
		return hypervisor.Machine{}, hypervisor.Errorf(hypervisor.UnknownOutcome, "MakeFailed",
			"create machine %d: %v", spec.ID, err)
	}

	m := newMachine(spec.ID, created)
	m.State, m.Message = hypervisor.StateCreating, "the machine was created"

	return m, nil
}

// Start starts the machine. If the machine does not exist, Start creates it first.
func (p *Provider) Start(
	ctx context.Context, spec hypervisor.MachineSpec, seed func(context.Context) (hypervisor.Seed, error),
) (hypervisor.Machine, error) {
	m, err := p.Ensure(ctx, spec)
	if err != nil || m.State != hypervisor.StatePrepared {
		return m, err
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	// If another call has started the machine in the meantime, the machine has the credential of
	// that call.
	if current, exists := p.cloud.get(spec.ID); exists && current.Starts > 0 {
		return newMachine(spec.ID, current), nil
	}

	if _, free := p.cloud.list(); spec.Shape.Memory > free {
		return m, hypervisor.Errorf(hypervisor.NoCapacity, "NoCapacity", "node %s has %d bytes of free memory", node, free)
	}

	iso, err := seed(ctx)
	if err != nil {
		return m, err
	}

	err = p.cloud.update(ctx, "start", spec.ID, func(current vm, exists bool) (vm, error) {
		if !exists {
			return vm{}, errNotFound
		}

		if current.Starts == 0 { // a machine is never started a second time
			current.Seed, current.Running, current.Starts = &iso, true, 1
		}

		m = newMachine(spec.ID, current)

		return current, nil
	})
	if err != nil {
		return m, hypervisor.Errorf(hypervisor.UnknownOutcome, "StartFailed", "start machine %d: %v", spec.ID, err)
	}

	return m, nil
}

// Get returns the state of the machine.
func (p *Provider) Get(_ context.Context, ref hypervisor.MachineRef) (hypervisor.Machine, error) {
	current, exists := p.cloud.get(ref.ID)
	if !exists || !p.isOwner(current, ref.Owner) {
		return hypervisor.Machine{}, hypervisor.Errorf(hypervisor.NotFound, "NotFound", "machine %d does not exist", ref.ID)
	}

	return newMachine(ref.ID, current), nil
}

// List returns this operator's machines.
func (p *Provider) List(context.Context) ([]hypervisor.Machine, error) {
	var out []hypervisor.Machine

	vms, _ := p.cloud.list()
	for id, current := range vms {
		if current.Operator == p.options.OperatorUID {
			out = append(out, newMachine(id, current))
		}
	}

	return out, nil
}

// Delete deletes the machine with its cloud-init ISO.
func (p *Provider) Delete(ctx context.Context, ref hypervisor.MachineRef) error {
	current, exists := p.cloud.get(ref.ID)

	switch {
	case !exists:
		return hypervisor.Errorf(hypervisor.NotFound, "NotFound", "machine %d does not exist", ref.ID)
	case !p.isOwner(current, ref.Owner):
		return hypervisor.Errorf(hypervisor.NotOwned, "NotOwned", "machine %d has another owner and was not changed", ref.ID)
	}

	err := p.cloud.update(ctx, "delete", ref.ID, func(latest vm, exists bool) (vm, error) {
		if exists && !p.isOwner(latest, ref.Owner) {
			return latest, errExists
		}

		return vm{}, nil
	})
	if err != nil {
		return hypervisor.Errorf(hypervisor.UnknownOutcome, "DeleteFailed", "delete machine %d: %v", ref.ID, err)
	}

	return nil
}

// Capacity returns the total and the free resources, and the number of this operator's machines.
func (p *Provider) Capacity(ctx context.Context) (hypervisor.Capacity, error) {
	nodes := p.nodes()
	own, err := p.List(ctx)

	return hypervisor.Capacity{Nodes: nodes, Free: nodes[0].Free, Total: nodes[0].Total, Machines: len(own)}, err
}

func (p *Provider) nodes() []hypervisor.Node {
	_, free := p.cloud.list()
	total := hypervisor.Resources{CPU: 8, Memory: p.cloud.Memory}

	return []hypervisor.Node{{Name: node, Online: true, Total: total, Free: hypervisor.Resources{CPU: 8, Memory: free}}}
}

// checkAddresses returns an error if another machine of this operator has an address of spec.
func (p *Provider) checkAddresses(vms map[int]vm, spec hypervisor.MachineSpec) error {
	for id, current := range vms {
		if current.Operator != p.options.OperatorUID {
			continue
		}

		if err := current.Record.CheckAddresses(spec, fmt.Sprintf("machine %d", id)); err != nil {
			return err
		}
	}

	return nil
}

func (p *Provider) isOwner(current vm, owner hypervisor.Owner) bool {
	return current.Operator == p.options.OperatorUID && current.Owner.UID == owner.UID
}

func (p *Provider) now() time.Time {
	if p.options.Clock != nil {
		return p.options.Clock.Now()
	}

	return time.Now()
}

func newMachine(id int, current vm) hypervisor.Machine {
	m := hypervisor.Machine{
		ID: id, Name: current.Owner.Name, Node: node, Owner: current.Owner, CreatedAt: current.Created, Cloned: true,
		State: hypervisor.StatePrepared,
	}

	switch {
	case current.Running:
		m.State = hypervisor.StateRunning
	case current.Starts > 0:
		m.State = hypervisor.StateStopped
	}

	return m
}
