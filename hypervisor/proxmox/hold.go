// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"fmt"
	"slices"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// release lets a held machine go on, once its node has the memory that it did not take
// while it was held.
func (p *Provider) release(ctx context.Context, m *machine, spec hypervisor.MachineSpec) (hypervisor.State, error) {
	if spec.Standby {
		m.message = "is made, and not started"

		return hypervisor.StatePrepared, nil
	}

	if err := p.admit(ctx, m, spec.Shape.Memory); err != nil {
		return "", err
	}

	m.phase = phaseCloned

	return "", nil
}

// admit promises the machine its memory, one machine at a time: two that are released
// together must not be given the same.
func (p *Provider) admit(ctx context.Context, m *machine, memory int64) error {
	p.admission.Lock()
	defer p.admission.Unlock()

	// Its own promise is not held against it.
	p.note(m, func(at *placement) { at.held = true })

	snap, _, err := p.listing.get(ctx, p.watch.listBusy)
	if err != nil {
		return err
	}

	nodes, err := p.nodeLoads(ctx, snap)
	if err != nil {
		return err
	}

	at := slices.IndexFunc(nodes, func(n nodeLoad) bool { return n.Name == m.node && n.Online })
	if at < 0 {
		return p.noRoom(m, "is offline or may not be used")
	}

	if free := nodes[at].Free.Memory; free < memory {
		return p.noRoom(m, fmt.Sprintf("has %s of memory free, %s are needed", bytesText(free), bytesText(memory)))
	}

	p.note(m, func(at *placement) { at.held = false })

	return nil
}

func (p *Provider) noRoom(m *machine, why string) error {
	m.message = fmt.Sprintf("machine %d is made and waits to be started: its node %s %s", m.id, m.node, why)

	return &hypervisor.Error{
		Kind: hypervisor.NoCapacity, Reason: "NoCapacity", Message: m.message, After: p.client.jitter(busyAfter),
	}
}

// observeHeld gives the state of a held machine, from the shared listing. It is gone where
// neither the listing nor its node knows it, and running where a person has started it.
func (p *Provider) observeHeld(ctx context.Context, m *machine) (hypervisor.Machine, error) {
	snap, _, err := p.listing.get(ctx, p.watch.listQuiet)
	if err != nil {
		return m.view(hypervisor.StatePrepared, m.message), err
	}

	r, listed := snap[m.id]

	switch {
	case listed && r.Status == statusRunning:
		m.node = r.Node
		p.setRunning(m, p.clock.Now())

		return m.view(hypervisor.StateRunning, "was started by somebody else"), nil
	case listed:
		m.node = r.Node

		return m.view(hypervisor.StatePrepared, m.message), nil
	}

	p.invalidate(m)

	if err := p.look(ctx, m); err != nil {
		return m.view(hypervisor.StatePrepared, m.message), getError(err)
	}

	if m.phase == phaseReserved {
		return m.view("", ""), p.notFound(m)
	}

	return m.view(hypervisor.StatePrepared, m.message), nil
}
