// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// agentPause is the longest wait between two questions to a guest agent.
const agentPause = 10 * time.Minute

// Get gives a machine's state; see hypervisor.Provider.
func (p *Provider) Get(ctx context.Context, ref hypervisor.MachineRef) (hypervisor.Machine, error) {
	m := p.machineOf(ref.Owner, ref.ID, "")

	m.mu.Lock()
	defer m.mu.Unlock()

	if m.phase == phaseUnknown && !m.work.pending() {
		if err := p.look(ctx, m); err != nil {
			return m.view("", m.message), getError(err)
		}
	}

	switch m.phase {
	case phaseReserved, phaseGone:
		p.dropUnused(m)

		return m.view("", ""), p.notFound(m)
	case phasePrepared:
		return p.observeHeld(ctx, m)
	case phaseRunning, phaseStopped:
		return p.observe(ctx, m, ref.Suspect)
	case phaseDestroying:
		return m.view(hypervisor.StateDeleting, m.message), nil
	case phaseUnknown, phaseCloning, phaseCloned, phaseResizing, phaseConfigured, phaseStarting:
		return m.view(hypervisor.StateCreating, m.message), nil
	}

	return m.view(hypervisor.StateCreating, m.message), nil
}

// dropUnused drops an entry that was made only to look for a machine.
func (p *Provider) dropUnused(m *machine) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if m.placed.id == 0 && m.isoState == isoUnknown && p.machines[m.owner.UID] == m {
		delete(p.machines, m.owner.UID)
	}
}

// getError turns "the id is another's" into "this claim has none".
func getError(err error) error {
	if !hypervisor.Is(err, hypervisor.IDTaken) {
		return err
	}

	return &hypervisor.Error{Kind: hypervisor.NotFound, Reason: reasonGone, Message: "machine is gone", Err: err}
}

func (p *Provider) notFound(m *machine) error {
	return hypervisor.Errorf(hypervisor.NotFound, reasonGone,
		"there is no machine %d of claim %s/%s on %s", m.id, m.owner.Namespace, m.owner.Name, p.client.host())
}

// observe gives the state of a machine that was started, from the shared listing, and
// from the machine itself before it is called stopped or gone.
func (p *Provider) observe(ctx context.Context, m *machine, suspect bool) (hypervisor.Machine, error) {
	if m.phase == phaseStopped {
		return m.view(hypervisor.StateStopped, "powered off"), nil
	}

	if suspect && !p.since(m.running, confirmationLifetime) {
		return p.confirm(ctx, m)
	}

	snap, at, err := p.listing.get(ctx, p.watch.listAge())
	if err != nil {
		return m.view(hypervisor.StateRunning, m.message), err
	}

	r, listed := snap[m.id]
	if listed {
		m.node = r.Node
	}

	m.message = ""
	stale := !at.After(m.started)

	switch {
	case stale, listed && r.Status == statusRunning:
		p.settle(m, r, stale)
		p.askAgent(ctx, m)

		return m.view(hypervisor.StateRunning, ""), nil
	case listed && r.Status != statusStopped:
		return m.view(hypervisor.StateRunning, "its node does not report: "+r.Node), nil
	case listed && !p.watch.sawRunning(m.owner.UID) && p.since(m.started, statusLag):
		// The listing's status lags behind the start.
		return m.view(hypervisor.StateRunning, ""), nil
	case p.since(m.running, confirmationLifetime):
		return m.view(hypervisor.StateRunning, ""), nil
	}

	return p.confirm(ctx, m)
}

// settle notes that the listing shows the machine running: from then on the listing
// accounts for what it takes.
func (p *Provider) settle(m *machine, r resource, stale bool) {
	if !stale && r.Status == statusRunning {
		p.note(m, func(at *placement) { at.done = true })
	}
}

// confirm asks the machine itself.
func (p *Provider) confirm(ctx context.Context, m *machine) (hypervisor.Machine, error) {
	status, err := p.client.status(ctx, m.node, m.id)

	switch {
	case hypervisor.Is(err, hypervisor.NotFound), reasonIs(err, reasonDenied):
		return p.missing(ctx, m, err)
	case err != nil && p.lost(ctx, m):
		m.phase = phaseGone
		p.watch.forget(m.owner.UID)

		return m.view("", ""), p.notFound(m)
	case err != nil:
		return m.view(hypervisor.StateRunning, ""), err
	case status.Status == statusRunning:
		m.running = p.clock.Now()

		return m.view(hypervisor.StateRunning, ""), nil
	}

	m.phase, m.stopped = phaseStopped, p.clock.Now()
	p.watch.forget(m.owner.UID)
	p.note(m, func(at *placement) { at.done = true })

	return m.view(hypervisor.StateStopped, "powered off"), nil
}

// missing deals with a machine that is not on the node it was on, or not to be seen there:
// with rights on a pool alone that is the same. Where it went, or that it is gone, the
// listing says.
func (p *Provider) missing(ctx context.Context, m *machine, cause error) (hypervisor.Machine, error) {
	snap, _, err := p.listing.get(ctx, 0)
	if err != nil {
		return m.view(hypervisor.StateRunning, ""), err
	}

	if r, ok := snap[m.id]; ok && r.Node != m.node {
		m.node = r.Node

		return m.view(hypervisor.StateRunning, "has just been migrated to "+r.Node), nil
	}

	if reasonIs(cause, reasonDenied) {
		if _, ok := snap[m.id]; ok {
			return m.view(hypervisor.StateRunning, ""), cause
		}

		if err := p.absent(ctx, m); err != nil {
			return m.view(hypervisor.StateRunning, ""), err
		}
	}

	m.phase = phaseGone
	p.watch.forget(m.owner.UID)

	return m.view("", ""), p.notFound(m)
}

// askAgent asks the guest's agent for the machine's address, when the guest has had time
// to boot, and then ever more rarely. It never fails: an address is good to know, and
// nothing waits for it.
func (p *Provider) askAgent(ctx context.Context, m *machine) {
	now := p.clock.Now()
	if m.ip != "" || now.Before(m.agentNext) {
		return
	}

	// The watcher wakes the owner for it; who looks in between asks twice as often at most.
	m.agentNext = now.Add(agentWait(m.started, now) / 2)

	answer, err := p.client.interfaces(ctx, m.node, m.id)
	if err == nil {
		m.ip = addressOf(answer, m.mac)
	}

	if m.ip != "" {
		p.watch.addressed(m.owner.UID)
	}
}

// agentWait is the wait for the next question to a guest agent: as long as the machine
// has run already.
func agentWait(started, now time.Time) time.Duration { return min(now.Sub(started), agentPause) }

// addressOf picks the address of the interface with the machine's MAC, or of the first
// that is not the loopback: an IPv4 address before an IPv6 one, none that is link-local.
func addressOf(answer guestInterfaces, mac string) string {
	best := ""

	for _, nic := range answer.Result {
		if nic.Name == "lo" || mac != "" && nic.MAC != "" && !strings.EqualFold(nic.MAC, mac) {
			continue
		}

		for _, a := range nic.Address {
			addr, err := netip.ParseAddr(a.IP)
			if err != nil || addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsUnspecified() {
				continue
			}

			if addr.Is4() {
				return addr.String()
			}

			if best == "" {
				best = addr.String()
			}
		}
	}

	return best
}
