// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"context"
	"errors"
	"fmt"
	"path"

	golibvirt "github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// machine is a machine to create on a host.
type machine struct {
	provider *Provider
	host     *host
	spec     hypervisor.MachineSpec
	uuid     golibvirt.UUID
	name     string
	// isTransient is true if libvirt forgets the domain when it is off.
	isTransient bool
}

func (m *machine) volumeName(suffix string) string {
	return m.provider.identity.volumeName(m.spec.ID, m.spec.Owner.UID, suffix)
}

func (m *machine) diskName() string {
	if m.isTransient {
		return m.volumeName(transientVolumeSuffix(m.host.config.Name))
	}

	return m.volumeName(diskSuffix)
}

func (m *machine) isoName() string { return m.volumeName(isoSuffix) }

// domain returns the reference to the machine's domain. libvirt finds a domain by its UUID.
func (m *machine) domain() golibvirt.Domain {
	return golibvirt.Domain{Name: m.name, UUID: m.uuid, ID: -1}
}

// Ensure creates the machine; see hypervisor.Provider.
func (p *Provider) Ensure(ctx context.Context, spec hypervisor.MachineSpec) (hypervisor.Machine, error) {
	spec.Standby = true

	return p.advance(ctx, spec, nil)
}

// Start creates and starts the machine; see hypervisor.Provider.
func (p *Provider) Start(
	ctx context.Context, spec hypervisor.MachineSpec, seed func(context.Context) (hypervisor.Seed, error),
) (hypervisor.Machine, error) {
	spec.Standby = false

	return p.advance(ctx, spec, seed)
}

// advance does as much for the machine as it can without waiting. A standby machine is done when it is
// prepared, and another machine when it runs.
func (p *Provider) advance(
	ctx context.Context, spec hypervisor.MachineSpec, seed func(context.Context) (hypervisor.Seed, error),
) (hypervisor.Machine, error) {
	if spec.ID == 0 {
		return hypervisor.Machine{}, errors.New("create machine: the spec has no reserved id")
	}

	if err := p.loadClaimed(ctx); err != nil {
		return hypervisor.Machine{}, err
	}

	h, ok := p.byName[spec.Node]
	if !ok {
		return hypervisor.Machine{}, hypervisor.Errorf(hypervisor.IDTaken, "HostRemoved",
			"create machine %d: host %q is not in spec.libvirt.hosts", spec.ID, spec.Node)
	}

	// Only one call at a time works on a machine, so that only one credential is created for it.
	p.locks.LockKey(spec.Owner.UID)
	defer p.locks.UnlockKey(spec.Owner.UID) //nolint:errcheck // a hashed mutex returns no error

	isNew := p.ids.Confirm(spec.ID, spec.Owner.UID)

	if err := h.refresh(ctx, p.maxListAge()); err != nil {
		return hypervisor.Machine{}, p.explainUnavailable(h, spec, isNew, err)
	}

	m := &machine{
		provider: p, host: h, spec: spec, uuid: p.identity.machineUUID(spec.ID, spec.Owner.UID),
		name: hypervisor.MachineName(spec.Owner, spec.ID),
	}
	p.progress.update(m.uuid, func(w *work) { w.host, w.isKnown = h, w.isKnown || isNew && w.host == nil })

	d, exists := h.find(m.uuid)
	m.isTransient = d.isTransient

	if d.isOurs && !d.isComplete() {
		d.name, d.record = m.name, p.identity.newRecord(spec, d.record.CreatedAt)
		h.putDomain(d)
	}

	switch {
	case exists && d.isOurs:
		return p.advanceExisting(ctx, m, d, seed)
	case exists:
		return hypervisor.Machine{}, p.newIDTakenError(m)
	default:
		p.placement.renew(spec, h, p.clock.Now())

		return p.create(ctx, m, seed)
	}
}

// explainUnavailable returns the error for a machine whose host does not respond. A machine that cannot exist yet is
// placed on another host.
func (p *Provider) explainUnavailable(h *host, spec hypervisor.MachineSpec, isNew bool, err error) error {
	if !isNew || !hypervisor.Is(err, hypervisor.Unavailable) {
		return err
	}

	p.placement.forget(spec.Owner.UID)
	p.ids.Release(spec.ID, spec.Owner.UID)

	return &hypervisor.Error{
		Kind: hypervisor.IDTaken, Reason: "HostUnreachable",
		Message: fmt.Sprintf("create machine %d: host %s does not respond, so the machine is placed on another host",
			spec.ID, h.config.Name),
		Err: err,
	}
}

func (p *Provider) newIDTakenError(m *machine) error {
	p.ids.MarkTaken(m.spec.ID, m.spec.Owner.UID)
	p.progress.forget(m.uuid)

	return hypervisor.Errorf(hypervisor.IDTaken, "IDTaken",
		"create machine: domain %s of host %s exists already and has another owner", m.name, m.host.config.Name)
}

// leaveID deletes the volumes of a machine whose ID is taken, and returns an IDTaken error.
func (p *Provider) leaveID(ctx context.Context, m *machine) error {
	ref := hypervisor.MachineRef{ID: m.spec.ID, Owner: m.spec.Owner}
	if err := p.deleteVolumes(ctx, m.host, ref, p.progress.get(m.uuid)); err != nil {
		return err
	}

	return p.newIDTakenError(m)
}

// create creates a machine that does not exist.
func (p *Provider) create(
	ctx context.Context, m *machine, seed func(context.Context) (hypervisor.Seed, error),
) (hypervisor.Machine, error) {
	if _, isTaken := m.host.findName(m.name); isTaken {
		return hypervisor.Machine{}, p.leaveID(ctx, m)
	}

	// A claim of a restored backup may have an address that was allocated again since.
	if err := p.checkAddresses(m.spec); err != nil {
		return hypervisor.Machine{}, err
	}

	created := domain{uuid: m.uuid, name: m.name, isOurs: true, record: p.identity.newRecord(m.spec, p.clock.Now())}

	s, err := m.host.currentSession(ctx)
	if err != nil {
		return hypervisor.Machine{}, err
	}

	t, err := m.host.template(ctx, m.spec.Template)
	if err != nil {
		return newMachine(m.host, created), fmt.Errorf("create machine %s: %w", m.name, err)
	}

	if m.isTransient = p.isTransient(m, s, t); m.isTransient {
		return p.createTransient(ctx, m, s, t, created, seed)
	}

	hasDisk, err := p.ensureDisk(ctx, m, t)
	if err != nil || !hasDisk {
		waiting := newMachine(m.host, created)
		waiting.State, waiting.Cloned, waiting.Message = hypervisor.StateCreating, false, "the disk is being cloned"

		return waiting, err
	}

	if m.spec.Standby {
		return p.define(ctx, m, created)
	}

	return p.start(ctx, m, created, seed)
}

// newDefinition returns what the definition of the machine is made from.
func (p *Provider) newDefinition(ctx context.Context, m *machine, record Record) (definition, error) {
	s, err := m.host.currentSession(ctx)
	if err != nil {
		return definition{}, err
	}

	out := definition{
		uuid: m.uuid, name: m.name, record: record, mac: p.identity.machineMAC(m.spec.ID), shape: m.spec.Shape,
		facts: s.facts, config: m.host.config,
	}

	if out.template, err = m.host.template(ctx, m.spec.Template); err != nil {
		return out, err
	}

	pool, err := m.host.knownStorage(ctx)
	out.diskPath, out.isoPath = path.Join(pool.dir, m.diskName()), path.Join(pool.dir, m.isoName())

	return out, err
}

// define defines a standby machine, with its owner's record.
func (p *Provider) define(ctx context.Context, m *machine, d domain) (hypervisor.Machine, error) {
	made, err := p.newDefinition(ctx, m, d.record)
	if err != nil {
		return hypervisor.Machine{}, err
	}

	text, err := made.encode(neverStarted)
	if err != nil {
		return hypervisor.Machine{}, err
	}

	err = m.host.call(ctx, newWrite("defineDomain"), func(rpc *golibvirt.Libvirt) error {
		// A definition replaces another one with the same UUID, and with it the mark that the machine was started.
		if _, err := rpc.DomainLookupByUUID(m.uuid); !golibvirt.IsNotFound(err) {
			if err == nil {
				err = errStale
			}

			return err
		}

		_, err := rpc.DomainDefineXMLFlags(text, golibvirt.DomainDefineValidate)

		return err
	})
	if err != nil {
		return hypervisor.Machine{}, p.explainConflict(ctx, m, err)
	}

	m.host.putDomain(d)
	p.placement.forget(m.spec.Owner.UID)

	return newMachine(m.host, d), nil
}

// errStale means that the inventory of the host is out of date.
var errStale = errors.New("the domain has changed")

// explainConflict returns the error for a domain that cannot be created. If the name belongs to a domain of
// another owner, the disk and the ISO are deleted, because the machine gets another ID.
func (p *Provider) explainConflict(ctx context.Context, m *machine, err error) error {
	isConflict := errors.Is(err, errStale) ||
		hasCode(err, golibvirt.ErrOperationFailed, golibvirt.ErrOperationInvalid, golibvirt.ErrDomExist)
	if !isConflict {
		return err
	}

	if listErr := m.host.refresh(ctx, 0); listErr != nil {
		return listErr
	}

	if d, ok := m.host.findName(m.name); ok && d.uuid != m.uuid {
		return p.leaveID(ctx, m)
	}

	if _, ok := m.host.find(m.uuid); ok {
		return &hypervisor.Error{
			Kind: hypervisor.Busy, Reason: "Busy", Message: fmt.Sprintf("create machine %s: its domain has changed", m.name), Err: err,
		}
	}

	return err
}

// start starts a machine that never ran. The guest stays paused until the mark that the machine was started is
// written. For a transient machine, the mark is that it has no ISO.
func (p *Provider) start(
	ctx context.Context, m *machine, d domain, seed func(context.Context) (hypervisor.Seed, error),
) (hypervisor.Machine, error) {
	var err error
	if d.record.Devices, err = p.assignDevices(m.host, m.spec); err != nil {
		return newMachine(m.host, d), err
	}

	made, err := p.newDefinition(ctx, m, d.record)
	if err != nil {
		return newMachine(m.host, d), err
	}

	later := made
	later.losesISO = !m.isTransient

	marked, err := later.encode(mayHaveRun)
	if err != nil {
		return newMachine(m.host, d), err
	}

	text := marked

	if m.isTransient {
		marked = ""
	} else if text, err = made.encode(neverStarted); err != nil {
		return newMachine(m.host, d), err
	}

	if err := p.ensureISO(ctx, m, seed); err != nil {
		return newMachine(m.host, d), err
	}

	err = m.host.call(ctx, newWrite("createDomain"), func(rpc *golibvirt.Libvirt) error {
		_, err := rpc.DomainCreateXML(text, golibvirt.DomainStartPaused)

		return err
	})
	if err != nil {
		return newMachine(m.host, d), p.explainConflict(ctx, m, err)
	}

	// The guest waits, so the console shows all of its output.
	if s, err := m.host.currentSession(ctx); err == nil {
		m.host.openConsole(ctx, s, d)
	}

	d.isActive, d.isWaiting, d.cpu, d.memory = true, true, int64(m.spec.Shape.CPU), m.spec.Shape.Memory
	m.host.putDomain(d)

	return p.resume(ctx, m, d, marked)
}

// resume writes the mark that the machine was started, if marked is not empty, deletes its ISO, and lets its guest run.
func (p *Provider) resume(ctx context.Context, m *machine, d domain, marked string) (hypervisor.Machine, error) {
	p.placement.forget(m.spec.Owner.UID) // QEMU has the resources

	if marked != "" {
		err := m.host.call(ctx, newWrite("defineDomain"), func(rpc *golibvirt.Libvirt) error {
			_, err := rpc.DomainDefineXMLFlags(marked, 0)

			return err
		})
		if err != nil {
			return newMachine(m.host, d), err
		}

		d.wasStarted = true
		m.host.putDomain(d)
	}

	if err := p.deleteISO(ctx, m); err != nil {
		return newMachine(m.host, d), err
	}

	d.wasStarted = true
	m.host.putDomain(d)

	err := m.host.call(ctx, newWrite("resumeDomain"), func(rpc *golibvirt.Libvirt) error {
		return rpc.DomainResume(m.domain())
	})
	if hasCode(err, golibvirt.ErrOperationInvalid) {
		// It runs already, or it has powered off since the last list.
		return newMachine(m.host, d), m.host.refresh(ctx, 0)
	}

	if err != nil {
		return newMachine(m.host, d), err
	}

	d.isWaiting = false
	m.host.putDomain(d)

	return newMachine(m.host, d), nil
}

// advanceExisting does as much for an existing machine as it can without waiting.
func (p *Provider) advanceExisting(
	ctx context.Context, m *machine, d domain, seed func(context.Context) (hypervisor.Seed, error),
) (hypervisor.Machine, error) {
	switch {
	case d.isActive && d.isTransient && !d.wasStarted:
		return p.resume(ctx, m, d, "")
	case d.isActive && !d.wasStarted:
		marked, err := m.readMarked(ctx, d)
		if err != nil {
			return newMachine(m.host, d), err
		}

		return p.resume(ctx, m, d, marked)
	case d.isActive && d.isWaiting:
		return p.resume(ctx, m, d, "")
	case d.isActive, d.wasStarted:
		p.placement.forget(m.spec.Owner.UID)

		return newMachine(m.host, d), nil
	case m.spec.Standby:
		return newMachine(m.host, d), nil
	}

	// Another process may have started the machine since the last list.
	s, err := m.host.currentSession(ctx)
	if err == nil {
		err = m.host.readRecord(ctx, s, &d)
	}

	if err != nil {
		return newMachine(m.host, d), err
	}

	if d.wasStarted {
		m.host.putDomain(d)

		return m.host.readMachine(ctx, d) // it may run
	}

	if err := p.admit(m, s); err != nil {
		return newMachine(m.host, d), err
	}

	return p.start(ctx, m, d, seed)
}

// admit reserves the resources of a prepared machine that is about to start.
func (p *Provider) admit(m *machine, s *session) error {
	p.placement.mu.Lock()
	defer p.placement.mu.Unlock()

	delete(p.placement.pending, m.spec.Owner.UID)

	total := m.host.total(s)

	free := m.host.available(subtract(subtract(total, m.host.sumUsed()), p.placement.sumReserved(m.host, p.clock.Now())), total)
	if !fits(m.spec.Shape, free) {
		return hypervisor.Errorf(hypervisor.NoCapacity, "NoCapacity",
			"start machine %s: %d cores and %d MiB of memory of host %s are free", m.name, free.CPU, free.Memory>>20, m.host.config.Name)
	}

	p.placement.put(m.spec, m.host, p.clock.Now(), nil)

	return nil
}

// readMarked returns the definition of a machine that an earlier process has started, with the mark.
func (m *machine) readMarked(ctx context.Context, d domain) (string, error) {
	var text string

	err := m.host.call(ctx, newRead("readDomain"), func(rpc *golibvirt.Libvirt) error {
		var err error

		text, err = rpc.DomainGetXMLDesc(m.domain(), golibvirt.DomainXMLInactive|golibvirt.DomainXMLSecure)

		return err
	})
	if err != nil {
		return "", err
	}

	var parsed libvirtxml.Domain
	if err := parsed.Unmarshal(text); err != nil {
		return "", fmt.Errorf("decode domain %s of host %s: %w", m.name, m.host.config.Name, err)
	}

	element, err := encodeMetadata(d.record, mayHaveRun)
	if err != nil {
		return "", err
	}

	parsed.Metadata = &libvirtxml.DomainMetadata{XML: element}

	if parsed.Devices != nil {
		for i := range parsed.Devices.Disks {
			if disk := &parsed.Devices.Disks[i]; disk.Device == deviceCDROM && disk.Source != nil {
				disk.Source.StartupPolicy = policyOptional
			}
		}
	}

	return parsed.Marshal()
}
