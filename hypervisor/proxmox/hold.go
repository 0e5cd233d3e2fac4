// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"fmt"
	"slices"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// releaseStandby lets a standby machine continue as soon as its node has free memory and devices for the machine.
// A standby machine occupies none.
func (p *Provider) releaseStandby(ctx context.Context, m *machine, spec hypervisor.MachineSpec) (hypervisor.State, error) {
	if spec.Standby {
		m.message = "is prepared and not started"

		return hypervisor.StatePrepared, nil
	}

	if err := p.reserveResources(ctx, m, spec.Shape); err != nil {
		return "", err
	}

	m.phase = phaseCloned

	return "", nil
}

// reserveResources reserves the machine's memory and devices on its node. The lock lets only one machine reserve
// at a time, so that two machines cannot reserve the same memory.
func (p *Provider) reserveResources(ctx context.Context, m *machine, shape hypervisor.Shape) error {
	p.placementMu.Lock()
	defer p.placementMu.Unlock()

	// isOnStandby excludes the machine's own reservation from the calculation.
	p.updatePlacement(m, func(pl *placement) { pl.isOnStandby = true })

	vms, _, err := p.vmCache.get(ctx, p.watcher.busyListAge)
	if err != nil {
		return err
	}

	nodes, err := p.listNodeLoads(ctx, vms)
	if err != nil {
		return err
	}

	index := slices.IndexFunc(nodes, func(n nodeLoad) bool { return n.Name == m.node && n.Online })
	if index < 0 {
		return p.newNotReadyError(m, "is offline or not allowed by spec.nodes")
	}

	if free := nodes[index].Free.Memory; free < shape.Memory {
		return p.newNotReadyError(m, fmt.Sprintf("has %s of memory free, but the machine needs %s",
			formatBytes(free), formatBytes(shape.Memory)))
	}

	if problem, err := p.checkFreeDevices(ctx, vms, m, shape); err != nil {
		return err
	} else if problem != "" {
		return p.newNotReadyError(m, problem)
	}

	p.updatePlacement(m, func(pl *placement) { pl.isOnStandby = false })

	return nil
}

func (p *Provider) newNotReadyError(m *machine, reason string) error {
	m.message = fmt.Sprintf("machine %d is prepared and waits to be started, because node %s %s", m.id, m.node, reason)

	return &hypervisor.Error{
		Kind: hypervisor.NoCapacity, Reason: "NoCapacity", Message: m.message, RetryAfter: jitter(busyRetryDelay),
	}
}

// observeStandby returns the state of a standby machine from the shared list. The machine is deleted if
// neither the list nor its node has it. The machine is running if somebody else has started it.
func (p *Provider) observeStandby(ctx context.Context, m *machine) (hypervisor.Machine, error) {
	vms, _, err := p.vmCache.get(ctx, p.watcher.idleListAge)
	if err != nil {
		return m.toMachine(hypervisor.StatePrepared, m.message), err
	}

	r, isListed := vms[m.id]

	switch {
	case isListed && r.Status == statusRunning:
		m.node = r.Node
		p.setRunning(m, p.clock.Now())

		return m.toMachine(hypervisor.StateRunning, "was not started by the operator"), nil
	case isListed:
		m.node = r.Node

		return m.toMachine(hypervisor.StatePrepared, m.message), nil
	}

	p.requireInspection(m)

	if err := p.inspect(ctx, m); err != nil {
		return m.toMachine(hypervisor.StatePrepared, m.message), convertIDTaken(err)
	}

	if m.phase == phaseReserved {
		return m.toMachine("", ""), p.newNotFoundError(m)
	}

	return m.toMachine(hypervisor.StatePrepared, m.message), nil
}
