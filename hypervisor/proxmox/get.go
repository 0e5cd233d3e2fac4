// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// maxAgentInterval is the longest interval between two requests to a guest agent.
const maxAgentInterval = 10 * time.Minute

// Get returns the state of a machine; see hypervisor.Provider.
func (p *Provider) Get(ctx context.Context, ref hypervisor.MachineRef) (hypervisor.Machine, error) {
	m := p.ensureMachine(ref.Owner, ref.ID, "")

	m.mu.Lock()
	defer m.mu.Unlock()

	if m.phase == phaseUnknown && !m.task.isPending() {
		if err := p.inspect(ctx, m); err != nil {
			return m.toMachine("", m.message), convertIDTaken(err)
		}
	}

	switch m.phase {
	case phaseReserved, phaseDeleted:
		p.dropUnusedEntry(m)

		return m.toMachine("", ""), p.newNotFoundError(m)
	case phasePrepared:
		return p.observeStandby(ctx, m)
	case phaseRunning, phaseStopped:
		return p.observe(ctx, m, ref.PowerOffReported)
	case phaseDestroying:
		return m.toMachine(hypervisor.StateDeleting, m.message), nil
	case phaseUnknown, phaseCloning, phaseCloned, phaseResizing, phaseConfigured, phaseStarting:
		return m.toMachine(hypervisor.StateCreating, m.message), nil
	}

	return m.toMachine(hypervisor.StateCreating, m.message), nil
}

// dropUnusedEntry drops an entry that was added only to look up a machine.
func (p *Provider) dropUnusedEntry(m *machine) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if m.placement.id == 0 && m.isoState == isoUnknown && p.machines[m.owner.UID] == m {
		delete(p.machines, m.owner.UID)
	}
}

// convertIDTaken converts an IDTaken error to NotFound: the ID belongs to another machine, so the claim has
// no machine.
func convertIDTaken(err error) error {
	if !hypervisor.Is(err, hypervisor.IDTaken) {
		return err
	}

	return &hypervisor.Error{Kind: hypervisor.NotFound, Reason: reasonNotFound, Message: "machine is gone", Err: err}
}

func (p *Provider) newNotFoundError(m *machine) error {
	return hypervisor.Errorf(hypervisor.NotFound, reasonNotFound,
		"there is no machine %d of claim %s/%s on %s", m.id, m.owner.Namespace, m.owner.Name, p.client.host())
}

// observe returns the state of a machine that was started. The state comes from the shared list. Before
// observe reports a machine as stopped or deleted, or if the guest has reported its power-off, it reads the
// status of the machine itself.
func (p *Provider) observe(ctx context.Context, m *machine, powerOffReported bool) (hypervisor.Machine, error) {
	if m.phase == phaseStopped {
		return m.toMachine(hypervisor.StateStopped, "powered off"), nil
	}

	if powerOffReported && !p.isWithin(m.runningAt, confirmationLifetime) {
		return p.confirmState(ctx, m)
	}

	vms, listedAt, err := p.vmCache.get(ctx, p.watcher.listMaxAge())
	if err != nil {
		return m.toMachine(hypervisor.StateRunning, m.message), err
	}

	r, isListed := vms[m.id]
	if isListed {
		m.node = r.Node
	}

	m.message = ""
	isStale := !listedAt.After(m.startedAt)

	switch {
	case isStale, isListed && r.Status == statusRunning:
		if !isStale {
			p.recordListedRunning(m)
		}

		p.queryAgent(ctx, m)

		return m.toMachine(hypervisor.StateRunning, ""), nil
	case isListed && r.Status != statusStopped:
		return m.toMachine(hypervisor.StateRunning, "its status is unknown because node "+r.Node+" reports no status"), nil
	case isListed && !p.watcher.hasSeenRunning(m.owner.UID) && p.isWithin(m.startedAt, statusLag):
		// The status in the list lags behind the start.
		return m.toMachine(hypervisor.StateRunning, ""), nil
	case p.isWithin(m.runningAt, confirmationLifetime):
		return m.toMachine(hypervisor.StateRunning, ""), nil
	}

	return p.confirmState(ctx, m)
}

// recordListedRunning records that the list shows the machine as running. From then on the list accounts
// for the machine's resources.
func (p *Provider) recordListedRunning(m *machine) {
	p.updatePlacement(m, func(pl *placement) { pl.isAccounted = true })
}

// confirmState reads the status of the machine itself instead of the list, and records whether the machine
// runs, is stopped, or was lost with its node.
func (p *Provider) confirmState(ctx context.Context, m *machine) (hypervisor.Machine, error) {
	status, err := p.client.readStatus(ctx, m.node, m.id)

	switch {
	case hypervisor.Is(err, hypervisor.NotFound), hasReason(err, reasonPermissionDenied):
		return p.handleMissing(ctx, m, err)
	case err != nil && p.isLostWithNode(ctx, m):
		m.phase = phaseDeleted
		p.watcher.unwatchMachine(m.owner.UID)

		return m.toMachine("", ""), p.newNotFoundError(m)
	case err != nil:
		return m.toMachine(hypervisor.StateRunning, ""), err
	case status.Status == statusRunning:
		m.runningAt = p.clock.Now()

		return m.toMachine(hypervisor.StateRunning, ""), nil
	}

	m.phase, m.stoppedAt = phaseStopped, p.clock.Now()
	p.watcher.unwatchMachine(m.owner.UID)
	p.updatePlacement(m, func(pl *placement) { pl.isAccounted = true })

	return m.toMachine(hypervisor.StateStopped, "powered off"), nil
}

// handleMissing handles a machine that its node does not have, or that the principal cannot see on its
// node. A principal that has privileges only on a pool cannot tell the two cases apart. The list shows
// whether the machine was migrated or deleted.
func (p *Provider) handleMissing(ctx context.Context, m *machine, cause error) (hypervisor.Machine, error) {
	vms, _, err := p.vmCache.get(ctx, 0)
	if err != nil {
		return m.toMachine(hypervisor.StateRunning, ""), err
	}

	if r, ok := vms[m.id]; ok && r.Node != m.node {
		m.node = r.Node

		return m.toMachine(hypervisor.StateRunning, "was just migrated to node "+r.Node), nil
	}

	if hasReason(cause, reasonPermissionDenied) {
		if _, ok := vms[m.id]; ok {
			return m.toMachine(hypervisor.StateRunning, ""), cause
		}
	}

	// The machine may have been migrated, and the list does not show it without the privilege.
	if err := p.confirmAbsent(ctx, m); err != nil {
		return m.toMachine(hypervisor.StateRunning, ""), err
	}

	m.phase = phaseDeleted
	p.watcher.unwatchMachine(m.owner.UID)

	return m.toMachine("", ""), p.newNotFoundError(m)
}

// queryAgent asks the guest agent for the machine's address after the guest has had time to boot, and then
// at increasing intervals. It returns no error, because the address is optional and nothing waits for it.
func (p *Provider) queryAgent(ctx context.Context, m *machine) {
	now := p.clock.Now()
	if m.ip != "" || now.Before(m.nextAgentQuery) {
		return
	}

	// The watcher wakes the owner for each query. The divisor limits the queries of other callers to twice
	// that rate.
	m.nextAgentQuery = now.Add(agentInterval(m.startedAt, now) / 2)

	interfaces, err := p.client.listGuestInterfaces(ctx, m.node, m.id)
	if err == nil {
		m.ip = hypervisor.SelectAddress(interfaces.Result, m.mac)
	}

	if m.ip != "" {
		p.watcher.stopAgentQueries(m.owner.UID)
	}
}

// agentInterval returns the time until the next request to a guest agent: the time for which the machine
// has already run, up to maxAgentInterval.
func agentInterval(started, now time.Time) time.Duration {
	return min(now.Sub(started), maxAgentInterval)
}
