// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	golibvirt "github.com/digitalocean/go-libvirt"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// isTransient reports whether the machine gets a transient domain, which saves two calls. libvirt forgets a
// transient domain when the machine is off, and only the machine's volumes remain. Therefore these machines
// cannot be transient: a machine on standby, because it is off; a full clone, because its ISO with the
// credential would be in the pool during the clone; a machine with addresses, because only the record in its
// domain has them; and a machine with firmware variables or a TPM, because after a restart of the host libvirt
// deletes these only together with a definition.
func (p *Provider) isTransient(m *machine, s *session, t diskTemplate) bool {
	if used := p.progress.get(m.uuid).disks; len(used) > 0 {
		return slices.Contains(used, transientSuffix) && !m.spec.Standby
	}

	return m.spec.Shape.Linked && !m.spec.Standby && !t.keepsFirmware(s.facts.arch) && !m.spec.Shape.TPM && !t.hasTPM() &&
		m.spec.Network.AddressNetwork == "" && len(m.spec.Network.Addresses) == 0
}

// keepsFirmware reports whether the machines of the template have firmware with variables.
func (t diskTemplate) keepsFirmware(arch string) bool {
	if t.domain == nil {
		return arch == archARM
	}

	os := t.domain.OS

	return os != nil && (os.Firmware != "" || os.Loader != nil || os.NVRam != nil)
}

// hasTPM reports whether the template has an emulated TPM, so that its machines get one.
func (t diskTemplate) hasTPM() bool {
	return t.domain != nil && t.domain.Devices != nil && hasEmulatedTPM(t.domain.Devices)
}

// createTransient creates a transient machine that does not exist. Before it was started, its disk is never without an ISO.
func (p *Provider) createTransient(
	ctx context.Context, m *machine, s *session, t diskTemplate, d domain,
	seed func(context.Context) (hypervisor.Seed, error),
) (hypervisor.Machine, error) {
	if err := m.checkNeverRan(ctx, s); err != nil {
		return newMachine(m.host, d), err
	}

	d.isTransient = true

	// A credential shall not wait in the pool until devices are free.
	if _, err := p.assignDevices(m.host, m.spec); err != nil {
		return newMachine(m.host, d), err
	}

	if err := p.ensureISO(ctx, m, seed); err != nil {
		return newMachine(m.host, d), err
	}

	wasStarted, err := p.ensureTransientDisk(ctx, m, t)
	if err != nil {
		return newMachine(m.host, d), err
	}

	if !wasStarted {
		return p.start(ctx, m, d, seed)
	}

	if err := p.deleteISO(ctx, m); err != nil {
		return newMachine(m.host, d), err
	}

	d.wasStarted = true
	m.host.putDomain(d)
	p.placement.forget(m.spec.Owner.UID)

	// Another process may have started it since the last list, so that it runs.
	if err := m.host.refresh(ctx, 0); err != nil {
		return newMachine(m.host, d), err
	}

	if now, exists := m.host.find(m.uuid); exists {
		d = now
	}

	return newMachine(m.host, d), nil
}

// ensureTransientDisk creates the disk of a transient machine. It returns true if the disk existed without an
// ISO before, because then the machine was started.
func (p *Provider) ensureTransientDisk(ctx context.Context, m *machine, t diskTemplate) (wasStarted bool, err error) {
	w := p.progress.get(m.uuid)
	want := newLinked(m.diskName(), t, m.spec.Shape.Disk)

	err = m.host.createVolume(ctx, want)
	if errors.Is(err, errExists) && !slices.Contains(w.disks, transientSuffix) {
		return true, nil
	}

	p.progress.update(m.uuid, func(w *work) { w.addDisk(transientSuffix) })

	if errors.Is(err, errExists) {
		err = m.host.repairLinked(ctx, want)
	}

	return false, err
}

// deleteISO deletes the ISO of a machine that QEMU runs, so that its credential does not stay in the pool. For a transient
// machine, this is also the mark that it was started.
func (p *Provider) deleteISO(ctx context.Context, m *machine) error {
	if p.progress.get(m.uuid).hasLostISO {
		return nil
	}

	err := m.host.requestDeletion(ctx, m.isoName())

	switch {
	case hasCode(err, golibvirt.ErrNoStoragePool): // the ISO appears again with the pool
		err = m.host.newPoolMissingError()
	case hypervisor.Is(err, hypervisor.NotFound):
		err = nil
	}

	if err != nil {
		// It may be gone nevertheless. Then it is needed again if the domain is gone as well.
		p.progress.update(m.uuid, func(w *work) { w.hasISO = false })

		return err
	}

	p.progress.update(m.uuid, func(w *work) { w.seed, w.hasISO, w.hasLostISO = nil, false, true })

	return nil
}

// volumeList is what the volumes of a host's pool show of transient machines.
type volumeList struct {
	// disks and isos are by the UUID of the machine.
	disks map[golibvirt.UUID]Record
	isos  map[golibvirt.UUID]bool
}

// listMachineVolumes lists the volumes of the host's pool. It returns false if the pool cannot be used now.
func (h *host) listMachineVolumes(ctx context.Context, s *session) (volumes volumeList, isPoolUsable bool, err error) {
	var found []golibvirt.StorageVol

	err = h.callSession(ctx, s, newRead("listVolumes"), func(rpc *golibvirt.Libvirt) error {
		pool, err := rpc.StoragePoolLookupByName(h.config.StoragePool)
		if err == nil {
			found, _, err = rpc.StoragePoolListAllVolumes(pool, 1, 0)
		}

		return err
	})

	isUnusable := hypervisor.Is(err, hypervisor.NotFound) || hasCode(err, golibvirt.ErrOperationInvalid)
	if err != nil && !isUnusable {
		return volumeList{}, false, err
	}

	h.mu.Lock()
	s.poolErr = err
	h.mu.Unlock()

	if isUnusable {
		return volumeList{}, false, nil
	}

	out := volumeList{disks: map[golibvirt.UUID]Record{}, isos: map[golibvirt.UUID]bool{}}

	for _, v := range found {
		id, claimUID, isOurs := h.provider.identity.parseVolume(v.Name)
		if !isOurs {
			continue
		}

		uuid := h.provider.identity.machineUUID(id, claimUID)

		switch {
		case strings.HasSuffix(v.Name, transientVolumeSuffix(h.config.Name)):
			out.disks[uuid] = h.provider.identity.newVolumeRecord(id, claimUID)
		case strings.HasSuffix(v.Name, isoSuffix):
			out.isos[uuid] = true
		}
	}

	return out, true, nil
}

// addStopped completes a list of the host's domains by the transient machines that have run and are off,
// because libvirt no longer lists them. It finds them by their volumes. It also sets wasStarted for the machines
// in the list that have run. It reads the volumes once per connection, and again while it is unknown whether a
// machine that is no longer listed has powered off, was started, or was deleted by somebody. It returns true if
// it has read the volumes.
func (h *host) addStopped(
	ctx context.Context, s *session, known, domains map[golibvirt.UUID]domain,
) (hasListedVolumes bool, err error) {
	// mayMissMachines is true if the volumes may show a started machine that neither list shows as started.
	h.mu.Lock()
	mayMissMachines := !s.hasListedVolumes
	h.mu.Unlock()

	isNeeded := false

	for uuid, old := range known {
		if _, exists := domains[uuid]; exists {
			continue
		}

		isNeeded = isNeeded || old.isStartedTransient() && (old.isActive || old.isDoubtful)
		// Another process may have started it, and ended.
		mayMissMachines = mayMissMachines || old.isOurs && old.isTransient && !old.wasStarted
	}

	isNeeded = isNeeded || mayMissMachines

	var (
		volumes volumeList
		isRead  bool
	)

	if isNeeded {
		if volumes, isRead, err = h.listMachineVolumes(ctx, s); err != nil {
			return false, err
		}
	}

	for uuid, old := range known {
		if _, exists := domains[uuid]; exists || !old.isStartedTransient() {
			continue
		}

		if _, hasDisk := volumes.disks[uuid]; isRead && !hasDisk {
			continue // somebody has deleted it
		}

		old.isDoubtful = old.isActive || old.isDoubtful
		old.isActive, old.isWaiting, old.isStorageFull = false, false, false
		domains[uuid] = old
	}

	if !isRead || !mayMissMachines {
		return isRead, nil
	}

	for uuid, record := range volumes.disks {
		d, exists := domains[uuid]

		switch {
		case exists && d.isTransient && !volumes.isos[uuid]:
			d.wasStarted = true
			domains[uuid] = d
		case !exists && !volumes.isos[uuid] && !slices.Contains(h.provider.progress.get(uuid).disks, transientSuffix):
			domains[uuid] = domain{
				uuid: uuid, name: fmt.Sprintf("%s%d", h.provider.identity.volumePrefix(), record.ID),
				isOurs: true, isTransient: true, isDoubtful: true, wasStarted: true, record: record,
			}
		}
	}

	return true, nil
}

// poolErr returns why it is not known which machines of the host have run and are off, or nil.
func (h *host) poolErr() error {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.session == nil || h.session.hasListedVolumes || h.session.poolErr == nil {
		return nil
	}

	return &hypervisor.Error{
		Kind: hypervisor.Unavailable, Reason: "StoragePoolUnusable",
		Message: fmt.Sprintf("storage pool %[1]s of host %[2]s, which shows the machines that are off, cannot be listed: "+startPool,
			h.config.StoragePool, h.config.Name),
		Err: h.session.poolErr,
	}
}

// checkNeverRan returns an error if the machine has run and is off, or if that is not known yet.
func (m *machine) checkNeverRan(ctx context.Context, s *session) error {
	hasListedVolumes := func() bool {
		m.host.mu.Lock()
		defer m.host.mu.Unlock()

		return s.hasListedVolumes
	}
	if hasListedVolumes() {
		return nil
	}

	if _, err := m.host.readStorage(ctx); err != nil {
		return err
	}

	if err := m.host.list(ctx, s); err != nil {
		return err
	}

	if _, exists := m.host.find(m.uuid); exists || !hasListedVolumes() {
		return hypervisor.Errorf(hypervisor.Busy, "Busy", "create machine %s: host %s lists its machines", m.name, m.host.config.Name)
	}

	return nil
}

// isStartedTransient reports whether the domain is a transient machine that was started.
func (d domain) isStartedTransient() bool { return d.isOurs && d.isTransient && d.wasStarted }

// isComplete reports whether more is known of the machine than the names of its volumes.
func (d domain) isComplete() bool { return d.record.MachineClaim.Name != "" }
