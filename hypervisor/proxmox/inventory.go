// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// knownVM is what is known of a machine in the listing without asking again: whose it
// is. It holds while key holds. It is never enough to change the machine.
type knownVM struct {
	key    string
	ours   bool
	record Record
	mac    string
}

// keyOf changes when a machine under an id may be another one than before.
func keyOf(name, lock string) string { return name + "\x00" + lock }

// remember keeps whose a machine is.
func (p *Provider) remember(id int, config vmConfig, record Record, ours bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.known[id] = knownVM{
		key: keyOf(config["name"], config["lock"]), ours: ours, record: record, mac: macOf(config["net0"]),
	}
}

// candidate tells whether a listed machine may be this operator's: its id is of the
// range, or it bears the operator's tag. Which of the two it is proves nothing.
func (p *Provider) maybeOurs(r resource) bool {
	inRange := r.VMID >= p.config.IDMin && r.VMID <= p.config.IDMax

	return r.Type == "qemu" && !bool(r.Template) && (inRange || hasOperatorTag(p.id, r.Tags))
}

// looksAtOnce is how many machines of which nothing is known are read side by side: after a
// restart these are all. Each node has its own bound below this.
const looksAtOnce = 16

// inventory gives the machines of the listing that are this operator's. The record of
// each is read once; what is known to be made by this process needs no look.
func (p *Provider) inventory(ctx context.Context, snap snapshot) (map[int]knownVM, error) {
	out := map[int]knownVM{}
	live := p.ids.Live()

	var unknown []resource

	for id, r := range snap {
		if !p.maybeOurs(r) {
			continue
		}

		switch known, ok := p.knownOf(r); {
		case ok && known.ours:
			out[id] = known
		// A machine that this process is making is not asked after.
		case !ok && !live[id]:
			unknown = append(unknown, r)
		}
	}

	look, ctx := errgroup.WithContext(ctx)
	look.SetLimit(looksAtOnce)

	for _, r := range unknown {
		look.Go(func() error { return p.identify(ctx, r) })
	}

	if err := look.Wait(); err != nil {
		return nil, err
	}

	for _, r := range unknown {
		if known, ok := p.knownOf(r); ok && known.ours {
			out[r.VMID] = known
		}
	}

	p.prune(snap, live)

	return out, nil
}

// knownOf gives what is known of a listed machine, if that still holds.
func (p *Provider) knownOf(r resource) (knownVM, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	known, ok := p.known[r.VMID]

	// Its name comes with the delayed part of the listing, so the name of a machine
	// of ours may lag behind.
	return known, ok && (known.ours || known.key == keyOf(r.Name, r.Lock))
}

// identify finds out whose a listed machine is, for knownOf.
func (p *Provider) identify(ctx context.Context, r resource) error {
	config, err := p.client.config(ctx, r.Node, r.VMID)
	if hypervisor.Is(err, hypervisor.NotFound) || reasonIs(err, reasonDenied) || reasonIs(err, reasonSilent) {
		// A node that does not answer must not keep the others from getting machines: the
		// machines of claims are found by the ids in their status, not here.
		return nil
	}

	if err != nil {
		return err
	}

	record, err := ParseRecord(config["description"])

	p.mu.Lock()
	defer p.mu.Unlock()

	p.known[r.VMID] = knownVM{
		key: keyOf(r.Name, r.Lock), ours: err == nil && p.id.owns(record, r.VMID), record: record, mac: macOf(config["net0"]),
	}

	return nil
}

// prune forgets machines that are not listed any more. Those that this process deals with may
// be younger than the listing.
func (p *Provider) prune(snap snapshot, live map[int]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	for id := range p.known {
		if _, ok := snap[id]; !ok && !live[id] {
			delete(p.known, id)
		}
	}
}

// adoptable finds the machine of a claim under another id than the one asked for.
func (p *Provider) adoptable(ctx context.Context, snap snapshot, uid string) (int, bool, error) {
	all, err := p.inventory(ctx, snap)
	if err != nil {
		return 0, false, err
	}

	for id, known := range all {
		if known.record.MachineClaim.UID == uid {
			return id, true, nil
		}
	}

	return 0, false, nil
}

// ownISO tells whether a drive holds this machine's ISO.
func (p *Provider) ownISO(m *machine, option string) bool {
	uid, ok := p.id.isoOwner(volumeOf(option))

	return ok && uid == safeName(m.owner.UID)
}

// volumeOf gives the volume of a drive option.
func volumeOf(option string) string {
	volume, _, _ := strings.Cut(option, ",")

	return volume
}
