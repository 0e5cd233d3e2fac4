// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"context"
	"errors"
	"maps"
	"slices"

	golibvirt "github.com/digitalocean/go-libvirt"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// newMachine describes the domain of a machine of this operator.
func newMachine(h *host, d domain) hypervisor.Machine {
	m := hypervisor.Machine{
		ID: d.record.ID, Name: d.name, Node: h.config.Name, Owner: d.record.Owner(), CreatedAt: d.record.CreatedAt, Cloned: true,
		MAC: h.provider.identity.machineMAC(d.record.ID), IP: h.findAddress(d.uuid),
	}

	switch {
	case d.isActive && !d.wasStarted: // QEMU runs, and the guest has never run
		m.State, m.Message = hypervisor.StateCreating, "the machine is being started"
	case d.isActive:
		m.State = hypervisor.StateRunning

		if d.isStorageFull {
			m.Message = "the machine waits, because storage pool " + h.config.StoragePool + " of host " + h.config.Name +
				" is full: free space, and resume it with `virsh resume " + d.name + "`"
		}
	case d.wasStarted:
		m.State, m.Message = hypervisor.StateStopped, "the machine ran and is powered off"
	default:
		m.State = hypervisor.StatePrepared
	}

	return m
}

func newNotFoundError(ref hypervisor.MachineRef) error {
	return hypervisor.Errorf(hypervisor.NotFound, "NotFound", "machine %s does not exist", hypervisor.MachineName(ref.Owner, ref.ID))
}

// Get returns the state of the machine; see hypervisor.Provider.
func (p *Provider) Get(ctx context.Context, ref hypervisor.MachineRef) (hypervisor.Machine, error) {
	if ref.ID == 0 {
		return hypervisor.Machine{}, newNotFoundError(ref)
	}

	h, d, err := p.locate(ctx, ref)
	if err != nil {
		return hypervisor.Machine{}, err
	}

	if h == nil || !d.isOurs {
		return hypervisor.Machine{}, newNotFoundError(ref)
	}

	// A machine that is off stays off, and libvirtd reports the power-off at once. So only a machine that seems to run is
	// read again, and only if no events come.
	if ref.PowerOffReported && d.isActive && !h.receivesEvents(ctx) {
		return h.readMachine(ctx, d)
	}

	m := newMachine(h, d)
	m.Name, m.Owner = hypervisor.MachineName(ref.Owner, ref.ID), ref.Owner

	if d.isComplete() {
		m.Name, m.Owner = d.name, d.record.Owner()
	}

	return m, nil
}

// receivesEvents reports whether the host is connected and reports changes of domains.
func (h *host) receivesEvents(ctx context.Context) bool {
	s, err := h.currentSession(ctx)

	return err == nil && s.hasEvents
}

// locate finds the domain of a machine. The host is nil if the machine does not exist. If a host on which it
// could be does not respond, the error is of kind Unavailable.
func (p *Provider) locate(ctx context.Context, ref hypervisor.MachineRef) (*host, domain, error) {
	uuid := p.identity.machineUUID(ref.ID, ref.Owner.UID)

	w := p.progress.get(uuid)
	if h := w.host; h != nil {
		if err := h.refresh(ctx, p.maxListAge()); err != nil {
			return nil, domain{}, err
		}

		if d, ok := h.find(uuid); ok {
			return h, d, nil
		}

		if w.isKnown {
			return nil, domain{}, nil // nothing of it exists that this process does not know
		}

		return nil, domain{}, h.poolErr()
	}

	errs := p.refresh(ctx, p.maxListAge())

	for _, h := range p.hosts {
		d, ok := h.find(uuid)
		if !ok {
			continue
		}

		p.progress.update(uuid, func(w *work) { w.host = h })

		return h, d, errs[h]
	}

	for _, h := range p.hosts {
		if err := h.poolErr(); err != nil && len(errs) == 0 {
			return nil, domain{}, err
		}
	}

	if len(errs) > 0 {
		return nil, domain{}, newUnavailableError("find machine "+hypervisor.MachineName(ref.Owner, ref.ID), errs)
	}

	return nil, domain{}, nil
}

// readMachine reads the state of a machine from libvirtd.
func (h *host) readMachine(ctx context.Context, d domain) (hypervisor.Machine, error) {
	var state int32

	err := h.call(ctx, newRead("readState"), func(rpc *golibvirt.Libvirt) error {
		var err error

		state, _, err = rpc.DomainGetState(golibvirt.Domain{Name: d.name, UUID: d.uuid, ID: -1}, 0)

		return err
	})
	if hypervisor.Is(err, hypervisor.NotFound) {
		h.removeDomain(d.uuid)

		return hypervisor.Machine{}, newNotFoundError(hypervisor.MachineRef{ID: d.record.ID, Owner: d.record.Owner()})
	}

	if err != nil {
		return hypervisor.Machine{}, err
	}

	d.isActive = golibvirt.DomainState(state) != golibvirt.DomainShutoff
	h.putDomain(d)

	return newMachine(h, d), nil
}

// List returns this operator's machines and remains; see hypervisor.Provider. For a host that does not respond,
// it returns the machines of the last list.
func (p *Provider) List(ctx context.Context) ([]hypervisor.Machine, error) {
	// Volumes are listed first. A volume is created before its domain. So if the later list has no domain for
	// a volume, the machine is being created by this process, or it no longer exists.
	volumes, errs := p.listVolumes(ctx)
	maps.Copy(errs, p.refresh(ctx, 0))

	if len(p.hosts) > 0 && len(errs) == len(p.hosts) {
		return nil, worstError(p.hosts, errs)
	}

	if err := ctx.Err(); err != nil {
		return nil, errors.Join(err, worstError(p.hosts, errs))
	}

	var out []hypervisor.Machine

	for _, h := range p.hosts {
		for _, d := range h.domains() {
			if !d.isOurs {
				continue
			}

			m := newMachine(h, d)
			if !d.isComplete() {
				m.State, m.Message = hypervisor.StateRemains, ""
			}

			out = append(out, m)
		}
	}

	return append(out, p.listRemains(volumes)...), nil
}

// listVolumes returns the names of the volumes, and the errors, by host.
func (p *Provider) listVolumes(ctx context.Context) (map[*host][]string, map[*host]error) {
	type result struct {
		host  *host
		names []string
	}

	results := make(chan result, len(p.hosts))
	errs := p.onHosts(func(h *host) error {
		names, err := h.listVolumes(ctx)
		results <- result{h, names}

		return err
	})

	close(results)

	out := map[*host][]string{}
	for r := range results {
		out[r.host] = r.names
	}

	return out, errs
}

// listRemains returns the machines of which only volumes are left. Machines on which this process works are
// not remains.
func (p *Provider) listRemains(volumes map[*host][]string) []hypervisor.Machine {
	var out []hypervisor.Machine

	for h, names := range volumes {
		seen := map[golibvirt.UUID]bool{}

		for _, name := range names {
			id, claimUID, isOurs := p.identity.parseVolume(name)
			uuid := p.identity.machineUUID(id, claimUID)

			// Hosts can share a file system.
			exists := slices.ContainsFunc(p.hosts, func(h *host) bool { _, ok := h.find(uuid); return ok })
			if !isOurs || exists || seen[uuid] || p.progress.get(uuid).host != nil {
				continue
			}

			seen[uuid] = true

			out = append(out, hypervisor.Machine{
				ID: id, Name: name, Node: h.config.Name, Owner: hypervisor.Owner{UID: claimUID}, State: hypervisor.StateRemains,
			})
		}
	}

	return out
}
