// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/ids"
)

// placement keeps the resources of machines that were placed and do not run yet.
type placement struct {
	mu sync.Mutex
	// pending is by the owner's UID.
	pending map[string]pendingMachine
}

type pendingMachine struct {
	host      *host
	resources hypervisor.Resources
	// devices are how many devices of each name the machine needs, and addresses those that it got.
	devices   map[string]int
	addresses []string
	expiresAt time.Time
}

// Reserve chooses an ID and a host; see hypervisor.Provider. A host that does not respond is not chosen.
func (p *Provider) Reserve(ctx context.Context, spec hypervisor.MachineSpec) (hypervisor.Reservation, error) {
	if spec.Owner.UID == "" {
		return hypervisor.Reservation{}, errors.New("reserve an id: the owner of the machine has no UID")
	}

	if err := p.loadClaimed(ctx); err != nil {
		return hypervisor.Reservation{}, err
	}

	errs := p.refresh(ctx, p.maxListAge())

	if h, d, ok := p.findOwned(spec.Owner.UID); ok {
		return hypervisor.Reservation{ID: d.record.ID, Node: h.config.Name, Exists: true, Addresses: d.record.ListAddresses()}, nil
	}

	if h, d, ok := p.findNamesake(spec.Owner); ok {
		return hypervisor.Reservation{}, hypervisor.NewNamesakeError(d.record.Owner(), "machine "+d.name+" on host "+h.config.Name)
	}

	if err := p.checkAddresses(spec); err != nil {
		return hypervisor.Reservation{}, err
	}

	candidates := p.listCandidates(ctx, spec, errs)

	p.placement.mu.Lock()
	defer p.placement.mu.Unlock()

	chosen, err := p.choose(candidates, spec)
	if err != nil {
		return hypervisor.Reservation{}, err
	}

	used := p.usedIDs()

	id, err := p.ids.Reserve(spec.Owner.UID, struct{}{}, func(id int) bool { return used[id] })
	if err != nil {
		return hypervisor.Reservation{}, err
	}

	p.placement.put(spec, chosen, p.clock.Now(), nil)

	return hypervisor.Reservation{ID: id, Node: chosen.config.Name}, nil
}

// loadClaimed reads the IDs that claims hold, and reserves the resources of machines that an earlier process has placed and
// that may not exist yet.
func (p *Provider) loadClaimed(ctx context.Context) error {
	return p.ids.LoadClaimed(ctx, p.config.Name, p.options.ListClaimed, func(m hypervisor.ClaimedMachine) {
		if h, ok := p.byName[m.Node]; ok {
			spec := hypervisor.MachineSpec{Owner: hypervisor.Owner{UID: m.OwnerUID}}
			spec.Shape.CPU, spec.Shape.Memory, spec.Shape.Devices = m.CPU, m.Memory, m.Devices
			p.placement.renew(spec, h, p.clock.Now())
		}
	})
}

// findOwned finds the claim's machine with any ID.
func (p *Provider) findOwned(claimUID string) (*host, domain, bool) {
	for _, h := range p.hosts {
		for _, d := range h.domains() {
			if d.isOurs && d.record.MachineClaim.UID == claimUID {
				return h, d, true
			}
		}
	}

	return nil, domain{}, false
}

// findNamesake finds a machine of an earlier claim of the same name, which would have the same hostname and address.
func (p *Provider) findNamesake(owner hypervisor.Owner) (*host, domain, bool) {
	for _, h := range p.hosts {
		for _, d := range h.domains() {
			if other := d.record.Owner(); d.isOurs && other.Namespace == owner.Namespace && other.Name == owner.Name {
				return h, d, true
			}
		}
	}

	return nil, domain{}, false
}

// checkAddresses returns an error if another machine has an address of spec.
func (p *Provider) checkAddresses(spec hypervisor.MachineSpec) error {
	if spec.Network.AddressNetwork == "" {
		return nil
	}

	for _, h := range p.hosts {
		for _, d := range h.domains() {
			if !d.isOurs {
				continue
			}

			if err := d.record.CheckAddresses(spec, "machine "+d.name+" on host "+h.config.Name); err != nil {
				return err
			}
		}
	}

	return nil
}

// usedIDs returns the IDs in the names of all domains.
func (p *Provider) usedIDs() map[int]bool {
	used := map[int]bool{}

	for _, h := range p.hosts {
		for _, d := range h.domains() {
			used[parseID(d.name)] = true
		}
	}

	return used
}

// candidate is a host on which a machine could be placed. trouble says why it cannot be.
type candidate struct {
	host    *host
	free    hypervisor.Resources
	total   hypervisor.Resources
	trouble string
}

// listCandidates returns all hosts. errs has the errors of the hosts that do not respond.
func (p *Provider) listCandidates(ctx context.Context, spec hypervisor.MachineSpec, errs map[*host]error) []candidate {
	var (
		mu  sync.Mutex
		out []candidate
	)

	p.onHosts(func(h *host) error {
		c := candidate{host: h}

		err := errs[h]
		if err == nil {
			err = h.fill(ctx, &c, spec)
		}

		if err != nil {
			c.trouble = err.Error()
		}

		mu.Lock()
		defer mu.Unlock()

		out = append(out, c)

		return nil
	})
	slices.SortFunc(out, func(a, b candidate) int { return strings.Compare(a.host.config.Name, b.host.config.Name) })

	return out
}

// fill fills the fields of the candidate. An error says why no machine can be placed on the host.
func (h *host) fill(ctx context.Context, c *candidate, spec hypervisor.MachineSpec) error {
	s, err := h.currentSession(ctx)
	if err != nil {
		return err
	}

	if _, err := h.template(ctx, spec.Template); err != nil {
		return err
	}

	pool, err := h.recentStorage(ctx)
	if err != nil {
		return err
	}

	if pool.isFull(h.config) {
		return fmt.Errorf("%d%% of storage pool %s is used, and the limit is %d%%",
			(pool.capacity-pool.available)*percent/pool.capacity, h.config.StoragePool, h.config.MaxStoragePercent)
	}

	c.total = h.total(s)
	c.free = subtract(c.total, h.sumUsed())

	return nil
}

// choose chooses the host for a machine. The caller holds the lock of the placement. A standby machine needs its
// resources later.
func (p *Provider) choose(candidates []candidate, spec hypervisor.MachineSpec) (*host, error) {
	earlier, isPlaced := p.placement.pending[spec.Owner.UID]

	var (
		suitable []candidate
		troubles []string
	)

	for _, c := range candidates {
		if isPlaced && c.host == earlier.host && c.trouble == "" {
			return c.host, nil
		}

		c.free = subtract(c.free, p.placement.sumReserved(c.host, p.clock.Now()))

		available := c.host.available(c.free, c.total)
		if spec.Standby {
			available = c.total
		}

		shortage := p.placement.describeShortage(c.host, spec, p.clock.Now())

		switch {
		case c.trouble == "" && shortage != "":
			troubles = append(troubles, c.host.config.Name+": "+shortage)
		case c.trouble != "":
			troubles = append(troubles, c.host.config.Name+": "+c.trouble)
		case !fits(spec.Shape, available):
			troubles = append(troubles, fmt.Sprintf("%s: %d cores and %d MiB of memory are free",
				c.host.config.Name, available.CPU, available.Memory>>20))
		default:
			suitable = append(suitable, c)
		}
	}

	if len(suitable) == 0 {
		return nil, hypervisor.Errorf(hypervisor.NoCapacity, "NoCapacity",
			"no host has room for a machine of %d cores and %d MiB of memory%s: %s",
			spec.Shape.CPU, spec.Shape.Memory>>20, formatDevices(spec.Shape.Devices), strings.Join(troubles, "; "))
	}

	return slices.MinFunc(suitable, func(a, b candidate) int {
		if spec.Strategy == hypervisor.Pack {
			return cmp.Compare(a.free.Memory, b.free.Memory)
		}

		return cmp.Compare(b.free.Memory, a.free.Memory)
	}).host, nil
}

// put records the resources of a machine that was placed. The caller holds the lock.
func (p *placement) put(spec hypervisor.MachineSpec, h *host, now time.Time, addresses []string) {
	if p.pending == nil {
		p.pending = map[string]pendingMachine{}
	}

	pending := pendingMachine{host: h, addresses: addresses, expiresAt: now.Add(ids.ReservationTTL)}
	if !spec.Standby {
		pending.resources = hypervisor.Resources{CPU: int64(spec.Shape.CPU), Memory: spec.Shape.Memory}
		pending.devices = map[string]int{}

		for _, d := range spec.Shape.Devices {
			pending.devices[d.Name] += d.Count
		}
	}

	p.pending[spec.Owner.UID] = pending
}

// renew keeps the resources of a machine that is being created, however long that takes. It also records those of a machine
// that an earlier process has placed.
func (p *placement) renew(spec hypervisor.MachineSpec, h *host, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.put(spec, h, now, p.pending[spec.Owner.UID].addresses)
}

// listPending returns the machines that were placed on the host and do not run yet, by the owner's UID. The host accounts for
// those that run. The caller holds the lock.
func (p *placement) listPending(h *host, now time.Time) map[string]pendingMachine {
	maps.DeleteFunc(p.pending, func(_ string, pending pendingMachine) bool { return now.After(pending.expiresAt) })

	out := map[string]pendingMachine{}

	for uid, pending := range p.pending {
		if pending.host == h {
			out[uid] = pending
		}
	}

	for _, d := range h.domains() {
		if d.isOurs && d.isActive {
			delete(out, d.record.MachineClaim.UID)
		}
	}

	return out
}

// sumReserved returns the resources of the machines that were placed on the host. The caller holds the lock.
func (p *placement) sumReserved(h *host, now time.Time) hypervisor.Resources {
	var out hypervisor.Resources

	for _, pending := range p.listPending(h, now) {
		out = sum(out, pending.resources)
	}

	return out
}

// forget forgets the resources of a machine that runs, because the host reports them now, or that is deleted.
func (p *placement) forget(claimUID string) {
	p.mu.Lock()
	defer p.mu.Unlock()

	delete(p.pending, claimUID)
}
