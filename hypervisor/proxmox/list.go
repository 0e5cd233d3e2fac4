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

// isoFound is an ISO of this operator's.
type isoFound struct {
	uid, volid, node string
	created          time.Time
}

// List gives everything of this operator's; see hypervisor.Provider. The state is that
// of the listing: Get confirms it. A held machine that this process has not asked after yet
// is listed as stopped.
func (p *Provider) List(ctx context.Context) ([]hypervisor.Machine, error) {
	// ISOs before machines: a cloud-init ISO whose machine is made in between is not taken for
	// a remnant.
	isos, begun, err := p.isos.get(ctx, p.isosAge())
	if err != nil {
		return nil, err
	}

	snap, at, err := p.listing.get(ctx, p.watch.listBusy)
	if err != nil {
		return nil, err
	}

	owned, err := p.inventory(ctx, snap)
	if err != nil {
		return nil, err
	}

	p.sweepRetired()

	live, held := p.liveOwners()

	var out []hypervisor.Machine

	for id, known := range owned {
		r := snap[id]
		live[known.record.MachineClaim.UID] = true
		p.recall(known.record.MachineClaim.UID, at.Add(-listingLag))

		state := listedState(p.id, r)

		if state == hypervisor.StateStopped && held[known.record.MachineClaim.UID] {
			state = hypervisor.StatePrepared
		}

		out = append(out, hypervisor.Machine{
			ID: id, Name: r.Name, Node: r.Node, Owner: known.record.Owner(), State: state,
			Created: known.record.CreatedAt, MAC: known.mac,
		})
	}

	for _, iso := range isos {
		if live[iso.uid] || p.removedSince(iso.uid, begun) {
			continue
		}

		p.recall(iso.uid, begun)

		out = append(out, hypervisor.Machine{
			Node: iso.node, Owner: hypervisor.Owner{UID: iso.uid}, State: hypervisor.StateRemains,
			Created: iso.created, Message: iso.volid,
		})
	}

	slices.SortFunc(out, func(a, b hypervisor.Machine) int {
		return cmp.Or(a.ID-b.ID, strings.Compare(a.Owner.UID, b.Owner.UID))
	})

	return out, nil
}

// allISOs gives this operator's ISOs on the usable nodes that answer.
func (p *Provider) allISOs(ctx context.Context) ([]isoFound, error) {
	nodes, err := p.usableNodes(ctx)
	if err != nil {
		return nil, err
	}

	isos, err := p.isosOf(ctx, nodes)
	if hypervisor.Is(err, hypervisor.Unavailable) {
		err = nil
	}

	return isos, err
}

func listedState(id identity, r resource) hypervisor.State {
	switch {
	case r.Status == statusRunning:
		return hypervisor.StateRunning
	case r.Lock != "", r.Status != statusStopped, !hasOperatorTag(id, r.Tags):
		return hypervisor.StateCreating
	default:
		return hypervisor.StateStopped
	}
}

// sweepRetired drops the machines whose removal has ended and that nobody asks after any
// more. It makes no call.
func (p *Provider) sweepRetired() {
	p.mu.Lock()

	var leaving []*machine

	for _, m := range p.machines {
		if m.placed.leaving {
			leaving = append(leaving, m)
		}
	}
	p.mu.Unlock()

	for _, m := range leaving {
		if !m.mu.TryLock() {
			continue
		}

		if p.retired(m) {
			p.forget(m)

			if m.isoState == isoGone || m.isoState == isoNone {
				p.rememberGone(m.owner.UID)
			}
		}

		m.mu.Unlock()
	}
}

func (p *Provider) retired(m *machine) bool {
	if m.phase == phaseDestroying && !m.work.pending() {
		_ = p.destroyEnded(m)
	}

	if m.isoTask != nil && !m.isoTask.pending() {
		p.isoTaskEnded(m)
	}

	return m.phase == phaseGone && m.isoTask == nil
}

// liveOwners gives the claims that this process makes machines for, and those of them
// whose machines are held.
func (p *Provider) liveOwners() (live, held map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	live, held = map[string]bool{}, map[string]bool{}

	for uid, m := range p.machines {
		if !m.placed.leaving {
			live[safeName(uid)] = true
			held[uid] = m.placed.held
		}
	}

	return live, held
}

// isosOf gives this operator's ISOs on the nodes that are not offline; shared storages are
// asked once. With an error that a node did not answer it gives those of the others.
func (p *Provider) isosOf(ctx context.Context, nodes []nodeInfo) ([]isoFound, error) {
	var (
		out    []isoFound
		silent error
	)

	shared := map[string]bool{}

	for _, n := range nodes {
		if n.offline() {
			continue
		}

		found, err := p.isosOfNode(ctx, n.Node, shared)
		if hypervisor.Is(err, hypervisor.Unavailable) {
			silent = err
		} else if err != nil {
			return nil, err
		}

		out = append(out, found...)
	}

	return out, silent
}

// isosOfNode gives this operator's ISOs on a node, but for shared storages already asked.
func (p *Provider) isosOfNode(ctx context.Context, node string, shared map[string]bool) ([]isoFound, error) {
	storages, err := p.storagesOf(ctx, node)
	if err != nil {
		return nil, err
	}

	var out []isoFound

	for _, s := range storages {
		if !p.mayHoldISOs(s) || bool(s.Shared) && shared[s.Storage] {
			continue
		}

		found, err := p.isosOn(ctx, node, s.Storage)
		if err != nil {
			return out, err
		}

		shared[s.Storage] = true
		out = append(out, found...)
	}

	return out, nil
}

func (p *Provider) mayHoldISOs(s storageInfo) bool {
	named := p.config.ISOStorage == "" || p.config.ISOStorage == s.Storage

	return named && s.holds(isoContent) && s.usable()
}

func (p *Provider) isosOn(ctx context.Context, node, storage string) ([]isoFound, error) {
	volumes, err := p.client.isos(ctx, node, storage)
	if err != nil {
		return nil, err
	}

	var out []isoFound

	for _, v := range volumes {
		if uid, ok := p.id.isoOwner(v.VolID); ok {
			out = append(out, isoFound{uid: uid, volid: v.VolID, node: node, created: v.created()})
		}
	}

	return out, nil
}
