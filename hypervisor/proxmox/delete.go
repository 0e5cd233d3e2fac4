// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// verifiedFor is how long a check of the ownership holds for the next change of the
// same removal: long enough for a machine to be stopped, too short for its id to be
// freed and given to another.
const verifiedFor = 5 * time.Second

// Delete removes a machine and its cloud-init ISO; see hypervisor.Provider.
func (p *Provider) Delete(ctx context.Context, ref hypervisor.MachineRef) error {
	if ref.Owner.UID == "" {
		return errors.New("delete machine: its owner has no uid")
	}

	if p.removed(ref.Owner.UID) {
		return p.notFound(&machine{id: ref.ID, owner: ref.Owner})
	}

	m := p.machineOf(ref.Owner, ref.ID, "")

	m.mu.Lock()
	defer m.mu.Unlock()

	if !m.leaving {
		// What was verified while it was made does not count for its removal.
		m.leaving, m.verified = true, time.Time{}
		p.note(m, func(at *placement) { at.leaving = true })
	}

	for range maxMoves {
		done, err := p.unmake(ctx, m)
		if err != nil || done {
			return err
		}
	}

	return nil
}

// unmake takes one step of the removal. done says that the call ends here.
func (p *Provider) unmake(ctx context.Context, m *machine) (done bool, err error) {
	if m.work.pending() {
		return true, nil
	}

	switch m.phase {
	case phaseUnknown:
		return false, p.lookToDelete(ctx, m)
	case phaseReserved:
		p.leaveGate(m)
		m.phase = phaseGone

		return false, nil
	case phaseCloning, phaseResizing, phaseStarting:
		// Whatever the task did: what is there now?
		p.afterTask(m)

		return false, nil
	case phaseCloned, phasePrepared, phaseConfigured, phaseStopped:
		return p.destroy(ctx, m)
	case phaseRunning:
		return p.stop(ctx, m)
	case phaseDestroying:
		return false, p.destroyEnded(m)
	case phaseGone:
		return true, p.removeISO(ctx, m)
	}

	return true, fmt.Errorf("delete machine %d: unknown phase %d", m.id, m.phase)
}

// lookToDelete finds out what there is to remove. A machine of another's is let be, but
// the claim's own cloud-init ISO goes.
func (p *Provider) lookToDelete(ctx context.Context, m *machine) error {
	err := p.look(ctx, m)
	if !hypervisor.Is(err, hypervisor.IDTaken) {
		return err
	}

	if err := p.removeISO(ctx, m); err == nil || !hypervisor.Is(err, hypervisor.NotFound) {
		return err
	}

	return p.notOwned(m)
}

func (p *Provider) notOwned(m *machine) error {
	return hypervisor.Errorf(hypervisor.NotOwned, "NotOwned",
		"machine %d on node %s does not carry the ownership record of claim %s/%s (uid %s) in its notes "+
			"and was not touched", m.id, m.node, m.owner.Namespace, m.owner.Name, m.owner.UID)
}

// afterTask goes on after the task of a phase that is now to be undone.
func (p *Provider) afterTask(m *machine) {
	exit := exitLost
	if m.work != nil {
		exit, _ = m.work.result()
	}

	was, adopted := m.phase, m.adopted
	m.work, m.gate, m.adopted = nil, "", false

	p.note(m, func(at *placement) { at.toClone = false })

	switch {
	case !taskSucceeded(exit), adopted:
		p.invalidate(m)
	case was == phaseStarting:
		p.setRunning(m, p.clock.Now())
	default:
		m.phase = phaseCloned
	}
}

// verify reads the record right before a change, unless that was done a moment ago. gone
// says that the machine is not what it was.
func (p *Provider) verify(ctx context.Context, m *machine) (gone bool, err error) {
	if p.since(m.verified, verifiedFor) {
		return false, nil
	}

	config, err := p.readConfig(ctx, m)
	if hypervisor.Is(err, hypervisor.NotFound) {
		return p.moved(ctx, m)
	}

	if reasonIs(err, reasonDenied) || err == nil && config["lock"] == lockDestroyed {
		// It is looked for anew.
		p.invalidate(m)

		return true, nil
	}

	if err != nil && p.lost(ctx, m) {
		m.phase = phaseGone

		return true, nil
	}

	if err != nil {
		return false, err
	}

	if !p.mine(m, config) {
		p.invalidate(m)

		return false, p.notOwned(m)
	}

	p.learn(m, config)

	return false, nil
}

// moved deals with a machine that is not on its node: it was migrated, or is gone.
func (p *Provider) moved(ctx context.Context, m *machine) (gone bool, err error) {
	snap, _, err := p.listing.get(ctx, 0)
	if err != nil {
		return false, err
	}

	r, ok := snap[m.id]
	if ok && r.Node != m.node {
		m.node = r.Node

		return false, p.busy(m, "Migrated", "machine %d has moved to node %s", m.id, m.node)
	}

	m.phase = phaseGone

	return true, nil
}

// stop powers the machine off at once: its work is over, and it is thrown away.
func (p *Provider) stop(ctx context.Context, m *machine) (done bool, err error) {
	if p.since(m.stopped, confirmationLifetime) {
		m.phase = phaseStopped

		return false, nil
	}

	if err := p.refuseHA(ctx, m); err != nil {
		return true, err
	}

	if gone, err := p.verify(ctx, m); err != nil || gone {
		return false, err
	}

	upid, err := p.client.power(ctx, m.node, m.id, "stop")
	if err != nil {
		return true, p.changeFailed(m, err)
	}

	m.phase, m.message = phaseStopped, "is being stopped"
	m.stopped = time.Time{}
	m.work = p.watch.add(upid, m.owner, nil)

	return true, nil
}

// refuseHA leaves a machine alone that someone has given to the HA manager, which would
// start it again.
func (p *Provider) refuseHA(ctx context.Context, m *machine) error {
	snap, _, err := p.listing.get(ctx, p.watch.listQuiet)
	if err != nil {
		return err
	}

	if snap[m.id].HAState == "" {
		return nil
	}

	return hypervisor.Errorf(hypervisor.Rejected, "HAManaged",
		"machine %d on node %s is in the care of the HA manager: take it out with: ha-manager remove vm:%d",
		m.id, m.node, m.id)
}

// changeFailed decides what a failed stop or destroy call means.
func (p *Provider) changeFailed(m *machine, err error) error {
	if !hypervisor.Is(err, hypervisor.Rejected) {
		p.invalidate(m)
	}

	return err
}

// destroy removes the machine with its disks, and starts to remove its cloud-init ISO.
func (p *Provider) destroy(ctx context.Context, m *machine) (done bool, err error) {
	if m.work != nil {
		// The stop has ended. If it failed, the destroy is refused and says why.
		m.work = nil
	}

	if gone, err := p.verify(ctx, m); err != nil || gone {
		return false, err
	}

	upid, err := p.client.destroy(ctx, m.node, m.id)
	if hypervisor.Is(err, hypervisor.NotFound) {
		_, err = p.moved(ctx, m)

		return false, err
	}

	if reasonIs(err, reasonDenied) {
		return true, p.findDestroy(ctx, m, err)
	}

	if err != nil {
		return true, p.changeFailed(m, err)
	}

	p.watch.forget(m.owner.UID)
	p.note(m, func(at *placement) { at.done = true })

	m.phase, m.message = phaseDestroying, "is being destroyed"
	m.work = p.watch.add(upid, m.owner, nil)

	if m.isoState == isoReady {
		return true, p.deleteISO(ctx, m)
	}

	return true, nil
}

// destroyEnded takes the destroy's result.
func (p *Provider) destroyEnded(m *machine) error {
	exit, _ := m.work.result()
	m.work = nil

	if taskSucceeded(exit) {
		m.phase = phaseGone

		return nil
	}

	p.invalidate(m)

	kind, reason := kindOfText(exit)
	if kind == hypervisor.NotFound || taskLost(exit) {
		return nil
	}

	if kind == hypervisor.Busy {
		return p.busy(m, reason, "destroy machine %d on node %s: %s", m.id, m.node, exit)
	}

	return hypervisor.Errorf(kind, cmp.Or(reason, "DestroyFailed"), "destroy machine %d on node %s: %s", m.id, m.node, exit)
}

// removeISO removes the cloud-init ISO of a machine that is gone. NotFound says that nothing
// is left.
func (p *Provider) removeISO(ctx context.Context, m *machine) error {
	if m.isoTask.pending() {
		return nil
	}

	if m.isoTask != nil {
		p.isoTaskEnded(m)
	}

	if m.isoState == isoUnknown {
		if err := p.findISO(ctx, m); err != nil {
			return err
		}
	}

	if m.isoState == isoReady {
		return p.deleteISO(ctx, m)
	}

	if err := p.removeSnippets(m.owner.UID); err != nil {
		return err
	}

	p.forget(m)
	p.rememberGone(m.owner.UID)

	return p.notFound(m)
}

// isoTaskEnded takes the result of an upload or a removal.
func (p *Provider) isoTaskEnded(m *machine) {
	exit, _ := m.isoTask.result()
	m.isoTask = nil

	switch {
	case !taskSucceeded(exit):
		m.isoState = isoUnknown
	case m.isoState == isoDeleting:
		m.isoState = isoGone
	default:
		m.isoState = isoReady
	}
}

// deleteISO removes the claim's ISO. Its name carries operator, cluster and claim.
func (p *Provider) deleteISO(ctx context.Context, m *machine) error {
	if m.volid == "" {
		m.isoState = isoGone

		return nil
	}

	upid, err := p.client.deleteVolume(ctx, cmp.Or(m.isoAt, m.node), m.volid)
	if err != nil {
		m.isoState = isoUnknown

		return err
	}

	m.isoState = isoDeleting
	if upid == "" {
		m.isoState = isoGone

		return nil
	}

	m.isoTask = p.watch.add(upid, m.owner, nil)

	return nil
}

// findISO looks for the claim's ISO where it may be.
func (p *Provider) findISO(ctx context.Context, m *machine) error {
	nodes, err := p.usableNodes(ctx)
	if err != nil {
		return err
	}

	// It is where its machine was; that is not known of one that was gone before.
	if at := slices.IndexFunc(nodes, func(n nodeInfo) bool { return n.Node == m.node && !n.offline() }); at >= 0 {
		nodes = nodes[at : at+1]
	}

	found, err := p.isosOf(ctx, nodes)
	if err != nil {
		return err
	}

	m.isoState = isoGone

	for _, iso := range found {
		if iso.uid == safeName(m.owner.UID) {
			m.isoState, m.volid, m.isoAt = isoReady, iso.volid, iso.node
		}
	}

	return nil
}
