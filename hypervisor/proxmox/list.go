// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// foundISO is an ISO of this operator.
type foundISO struct {
	uid, volid, node string
	createdAt        time.Time
}

// List returns all machines and ISOs of this operator; see hypervisor.Provider. The states come from the
// shared list, and Get confirms them. List returns a standby machine as stopped if this process has not
// handled that machine yet.
func (p *Provider) List(ctx context.Context) ([]hypervisor.Machine, error) {
	// ISOs are listed before machines. Otherwise the ISO of a machine that is created in between would look
	// like an orphan.
	isos, isosListedAt, err := p.isoCache.get(ctx, p.isoListMaxAge())
	if err != nil {
		return nil, err
	}

	vms, vmsListedAt, err := p.vmCache.get(ctx, p.watcher.busyListAge)
	if err != nil {
		return nil, err
	}

	owned, err := p.listOwned(ctx, vms)
	if err != nil {
		return nil, err
	}

	p.dropDeletedMachines()

	live, standby := p.listLiveOwners()

	var out []hypervisor.Machine

	for id, known := range owned {
		r := vms[id]
		live[known.record.MachineClaim.UID] = true
		p.clearDeletion(known.record.MachineClaim.UID, vmsListedAt.Add(-listLag))

		state := deriveListedState(p.id, r)

		if state == hypervisor.StateStopped && standby[known.record.MachineClaim.UID] {
			state = hypervisor.StatePrepared
		}

		out = append(out, hypervisor.Machine{
			ID: id, Name: r.Name, Node: r.Node, Owner: known.record.Owner(), State: state,
			CreatedAt: known.record.CreatedAt, MAC: known.mac,
		})
	}

	for _, iso := range isos {
		if live[iso.uid] || p.isDeletedAfter(iso.uid, isosListedAt) {
			continue
		}

		p.clearDeletion(iso.uid, isosListedAt)

		out = append(out, hypervisor.Machine{
			Node: iso.node, Owner: hypervisor.Owner{UID: iso.uid}, State: hypervisor.StateRemains,
			CreatedAt: iso.createdAt, Message: iso.volid,
		})
	}

	slices.SortFunc(out, func(a, b hypervisor.Machine) int {
		return cmp.Or(a.ID-b.ID, strings.Compare(a.Owner.UID, b.Owner.UID))
	})

	return out, nil
}

// listAllISOs returns this operator's ISOs on the usable nodes that respond.
func (p *Provider) listAllISOs(ctx context.Context) ([]foundISO, error) {
	nodes, err := p.listUsableNodes(ctx)
	if err != nil {
		return nil, err
	}

	isos, err := p.listISOsOnNodes(ctx, nodes)
	if hypervisor.Is(err, hypervisor.Unavailable) {
		err = nil
	}

	return isos, err
}

func deriveListedState(id identity, r resource) hypervisor.State {
	switch {
	case r.Status == statusRunning:
		return hypervisor.StateRunning
	case r.Lock != "", r.Status != statusStopped, !hasOperatorTag(id, r.Tags):
		return hypervisor.StateCreating
	default:
		return hypervisor.StateStopped
	}
}

// dropDeletedMachines drops the entries of machines whose deletion has ended, because it is possible that no
// caller calls Delete for them again. It sends no requests.
func (p *Provider) dropDeletedMachines() {
	p.mu.Lock()

	var deleting []*machine

	for _, m := range p.machines {
		if m.placement.isDeleting {
			deleting = append(deleting, m)
		}
	}
	p.mu.Unlock()

	for _, m := range deleting {
		if !m.mu.TryLock() {
			continue
		}

		if p.finishDeletion(m) {
			p.dropMachine(m)

			if m.isoState == isoDeleted || m.isoState == isoNone {
				p.recordDeletion(m.owner.UID)
			}
		}

		m.mu.Unlock()
	}
}

// finishDeletion processes the results of the machine's tasks that have ended, and returns true if the deletion has ended.
func (p *Provider) finishDeletion(m *machine) (isDone bool) {
	if m.phase == phaseDestroying && !m.task.isPending() {
		_ = p.finishDestroy(m)
	}

	if m.isoTask != nil && !m.isoTask.isPending() {
		p.finishISOTask(m)
	}

	return m.phase == phaseDeleted && m.isoTask == nil
}

// listLiveOwners returns the claims for which this process creates machines, and the claims whose machines
// are on standby.
func (p *Provider) listLiveOwners() (live, standby map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	live, standby = map[string]bool{}, map[string]bool{}

	for uid, m := range p.machines {
		if !m.placement.isDeleting {
			live[sanitizeName(uid)] = true
			standby[uid] = m.placement.isOnStandby
		}
	}

	return live, standby
}

// listISOsOnNodes returns this operator's ISOs on the nodes that are not offline. It lists each shared
// storage once. If a node does not respond, listISOsOnNodes returns the ISOs of the other nodes together
// with the error.
func (p *Provider) listISOsOnNodes(ctx context.Context, nodes []nodeInfo) ([]foundISO, error) {
	var (
		out            []foundISO
		unavailableErr error
	)

	shared := map[string]bool{}

	for _, n := range nodes {
		if n.isOffline() {
			continue
		}

		found, err := p.listISOsOnNode(ctx, n.Node, shared)
		if hypervisor.Is(err, hypervisor.Unavailable) {
			unavailableErr = err
		} else if err != nil {
			return nil, err
		}

		out = append(out, found...)
	}

	return out, unavailableErr
}

// listISOsOnNode returns this operator's ISOs on a node. It skips the shared storages that are already
// listed.
func (p *Provider) listISOsOnNode(ctx context.Context, node string, shared map[string]bool) ([]foundISO, error) {
	storages, err := p.listStorages(ctx, node)
	if err != nil {
		return nil, err
	}

	var out []foundISO

	for _, s := range storages {
		if !p.canHoldISOs(s) || bool(s.Shared) && shared[s.Storage] {
			continue
		}

		found, err := p.listISOsOnStorage(ctx, node, s.Storage)
		if err != nil {
			return out, err
		}

		shared[s.Storage] = true
		out = append(out, found...)
	}

	return out, nil
}

func (p *Provider) canHoldISOs(s storageInfo) bool {
	isSelected := p.config.ISOStorage == "" || p.config.ISOStorage == s.Storage

	return isSelected && s.hasContentType(isoContent) && s.isUsable()
}

func (p *Provider) listISOsOnStorage(ctx context.Context, node, storage string) ([]foundISO, error) {
	volumes, err := p.client.listISOs(ctx, node, storage)
	if err != nil {
		return nil, err
	}

	var out []foundISO

	for _, v := range volumes {
		if uid, ok := p.id.parseISOOwner(v.VolID); ok {
			out = append(out, foundISO{uid: uid, volid: v.VolID, node: node, createdAt: v.createdAt()})
		}
	}

	return out, nil
}
