// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package example

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

const (
	node  = "node-1"
	minID = 100
)

// Provider serves one HypervisorCluster.
type Provider struct {
	cloud   *Cloud
	options hypervisor.Options

	mu sync.Mutex
	// reserved ids by owner's uid, until the machine is there. What is lost of it with the
	// process is on the claims' record.
	reserved map[string]int
}

var _ hypervisor.Connection = (*Provider)(nil)

// Connect makes a provider. It makes no call.
func Connect(cloud *Cloud, options hypervisor.Options) *Provider {
	p := &Provider{cloud: cloud, options: options, reserved: map[string]int{}}

	cloud.mu.Lock()
	defer cloud.mu.Unlock()

	if cloud.vms == nil {
		cloud.vms, cloud.listeners = map[int]vm{}, map[*Provider]bool{}
	}

	cloud.listeners[p] = true

	return p
}

// Close ends the watch; machines stay.
func (p *Provider) Close() {
	p.cloud.mu.Lock()
	defer p.cloud.mu.Unlock()

	delete(p.cloud.listeners, p)
}

// Check says what there is; an error of kind Rejected would name what a person must fix.
func (p *Provider) Check(context.Context) (hypervisor.Info, error) {
	return hypervisor.Info{Product: "example", Version: "1", Nodes: p.nodes()}, nil
}

// Resolve finds the template.
func (p *Provider) Resolve(_ context.Context, ref hypervisor.TemplateRef, want hypervisor.Shape) ([]hypervisor.Template, error) {
	if ref.Name != p.cloud.Template {
		return nil, hypervisor.Errorf(hypervisor.NotFound, "TemplateNotFound",
			"there is no template %q: the only one is %q", ref.Name, p.cloud.Template)
	}

	if want.Memory > p.cloud.Memory {
		return nil, hypervisor.Errorf(hypervisor.Rejected, "ResourcesExceedNode",
			"no node has %d bytes of memory: ask for less", want.Memory)
	}

	if want.TPM {
		return nil, hypervisor.Errorf(hypervisor.Rejected, "TPMUnavailable", "machines have no TPM here: leave tpm out")
	}

	return []hypervisor.Template{{Name: ref.Name, Node: node}}, nil
}

// Reserve chooses an id. A machine that bears the owner's mark already is found again: its
// id was lost.
func (p *Provider) Reserve(_ context.Context, spec hypervisor.MachineSpec) (hypervisor.Reservation, error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	vms, free := p.cloud.all()

	for id, at := range vms {
		if at.Operator == p.options.OperatorUID && at.Owner.UID == spec.Owner.UID {
			return hypervisor.Reservation{ID: id, Node: node}, nil
		}
	}

	if id, ok := p.reserved[spec.Owner.UID]; ok {
		return hypervisor.Reservation{ID: id, Node: node}, nil
	}

	// What waits prepared takes no memory: it has to fit some day, not now.
	if spec.Standby {
		free = p.cloud.Memory
	}

	if spec.Shape.Memory > free {
		return hypervisor.Reservation{}, hypervisor.Errorf(hypervisor.NoCapacity, "NoCapacity",
			"%s has %d bytes of memory free", node, free)
	}

	taken := slices.Collect(maps.Values(p.reserved))
	for id := minID; ; id++ {
		if _, there := vms[id]; !there && !slices.Contains(taken, id) {
			p.reserved[spec.Owner.UID] = id

			return hypervisor.Reservation{ID: id, Node: node}, nil
		}
	}
}

// Ensure makes the machine.
func (p *Provider) Ensure(ctx context.Context, spec hypervisor.MachineSpec) (hypervisor.Machine, error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if at, there := p.cloud.get(spec.ID); there {
		delete(p.reserved, spec.Owner.UID)

		if !p.owns(at, spec.Owner) {
			return hypervisor.Machine{}, hypervisor.Errorf(hypervisor.IDTaken, "IDTaken", "machine %d is another's", spec.ID)
		}

		return describe(spec.ID, at), nil
	}

	made := vm{Owner: spec.Owner, Operator: p.options.OperatorUID, Created: p.now(), Memory: spec.Shape.Memory}

	// The mark is written by the call that makes the machine: whoever dies now finds it.
	err := p.cloud.change(ctx, "make", spec.ID, func(_ vm, there bool) (vm, error) {
		if there {
			return vm{}, errExists
		}

		return made, nil
	})
	if err != nil {
		return hypervisor.Machine{}, hypervisor.Errorf(hypervisor.UnknownOutcome, "MakeFailed", "make machine %d: %v", spec.ID, err)
	}

	m := describe(spec.ID, made)
	m.State, m.Message = hypervisor.StateCreating, "it was just made"

	return m, nil
}

// Start starts the machine, which it makes first where it is not there.
func (p *Provider) Start(
	ctx context.Context, spec hypervisor.MachineSpec, seed func(context.Context) (hypervisor.Seed, error),
) (hypervisor.Machine, error) {
	m, err := p.Ensure(ctx, spec)
	if err != nil || m.State != hypervisor.StatePrepared {
		return m, err
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	// Another call may have started it meanwhile: its credential is the machine's.
	if at, there := p.cloud.get(spec.ID); there && at.Starts > 0 {
		return describe(spec.ID, at), nil
	}

	if _, free := p.cloud.all(); spec.Shape.Memory > free {
		return m, hypervisor.Errorf(hypervisor.NoCapacity, "NoCapacity", "%s has %d bytes of memory free", node, free)
	}

	iso, err := seed(ctx)
	if err != nil {
		return m, err
	}

	err = p.cloud.change(ctx, "start", spec.ID, func(at vm, there bool) (vm, error) {
		if !there {
			return vm{}, errGone
		}

		if at.Starts == 0 { // never a second time, whoever asks
			at.Seed, at.Running, at.Starts = &iso, true, 1
		}

		m = describe(spec.ID, at)

		return at, nil
	})
	if err != nil {
		return m, hypervisor.Errorf(hypervisor.UnknownOutcome, "StartFailed", "start machine %d: %v", spec.ID, err)
	}

	return m, nil
}

// Get gives the machine's state.
func (p *Provider) Get(_ context.Context, ref hypervisor.MachineRef) (hypervisor.Machine, error) {
	at, there := p.cloud.get(ref.ID)
	if !there || !p.owns(at, ref.Owner) {
		return hypervisor.Machine{}, hypervisor.Errorf(hypervisor.NotFound, "NotFound", "machine %d is gone", ref.ID)
	}

	return describe(ref.ID, at), nil
}

// List gives the machines with the operator's mark.
func (p *Provider) List(context.Context) ([]hypervisor.Machine, error) {
	var out []hypervisor.Machine

	vms, _ := p.cloud.all()
	for id, at := range vms {
		if at.Operator == p.options.OperatorUID {
			out = append(out, describe(id, at))
		}
	}

	return out, nil
}

// Delete removes the machine with its cloud-init ISO.
func (p *Provider) Delete(ctx context.Context, ref hypervisor.MachineRef) error {
	at, there := p.cloud.get(ref.ID)

	switch {
	case !there:
		return hypervisor.Errorf(hypervisor.NotFound, "NotFound", "machine %d is gone", ref.ID)
	case !p.owns(at, ref.Owner):
		return hypervisor.Errorf(hypervisor.NotOwned, "NotOwned", "machine %d is another's: it is left as it is", ref.ID)
	}

	err := p.cloud.change(ctx, "remove", ref.ID, func(now vm, there bool) (vm, error) {
		if there && !p.owns(now, ref.Owner) {
			return now, errExists
		}

		return vm{}, nil
	})
	if err != nil {
		return hypervisor.Errorf(hypervisor.UnknownOutcome, "DeleteFailed", "remove machine %d: %v", ref.ID, err)
	}

	return nil
}

// Capacity gives what there is and what is free.
func (p *Provider) Capacity(ctx context.Context) (hypervisor.Capacity, error) {
	nodes := p.nodes()
	own, err := p.List(ctx)

	return hypervisor.Capacity{Nodes: nodes, Free: nodes[0].Free, Total: nodes[0].Total, Machines: len(own)}, err
}

func (p *Provider) nodes() []hypervisor.Node {
	_, free := p.cloud.all()
	total := hypervisor.Resources{CPU: 8, Memory: p.cloud.Memory}

	return []hypervisor.Node{{Name: node, Online: true, Total: total, Free: hypervisor.Resources{CPU: 8, Memory: free}}}
}

func (p *Provider) owns(at vm, owner hypervisor.Owner) bool {
	return at.Operator == p.options.OperatorUID && at.Owner.UID == owner.UID
}

func (p *Provider) now() time.Time {
	if p.options.Clock != nil {
		return p.options.Clock.Now()
	}

	return time.Now()
}

func describe(id int, at vm) hypervisor.Machine {
	m := hypervisor.Machine{
		ID: id, Name: at.Owner.Name, Node: node, Owner: at.Owner, Created: at.Created, Cloned: true,
		State: hypervisor.StatePrepared,
	}

	switch {
	case at.Running:
		m.State = hypervisor.StateRunning
	case at.Starts > 0:
		m.State = hypervisor.StateStopped
	}

	return m
}
