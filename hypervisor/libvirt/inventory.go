// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"time"

	golibvirt "github.com/digitalocean/go-libvirt"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// inventory holds the domains of a host, as libvirt's events and the last list show them.
type inventory struct {
	domains map[golibvirt.UUID]domain
	// listedAt is the time of the last list. It is zero if the domains must be listed again.
	listedAt time.Time
	// changed holds the domains that have changed since the current list began, because the list may show their
	// old state. isOutdated is true if an event during the list makes another list necessary.
	changed    map[golibvirt.UUID]bool
	isOutdated bool
}

// domain is the last observed state of a domain.
type domain struct {
	uuid golibvirt.UUID
	name string
	// isActive is true if QEMU runs. While QEMU runs, isWaiting is true if the guest waits to be resumed, and isStorageFull
	// is true if it waits because its storage is full.
	isActive, isWaiting, isStorageFull bool
	cpu                                int64
	memory                             int64
	// isOurs is true if the domain is this operator's machine with the record. wasStarted is true if the guest
	// may have run.
	isOurs     bool
	record     Record
	wasStarted bool
	// isTransient is true if libvirt removes the domain when it is off. isDoubtful is true if such a domain is gone, and it
	// is unknown whether the machine powered off or somebody else deleted it.
	isTransient, isDoubtful bool
}

// Names of the fields in libvirt's statistics of a domain.
const (
	statState     = "state.state"
	statReason    = "state.reason"
	statMaxMemory = "balloon.maximum"
	statCPUs      = "vcpu.current"
	kibibyte      = 1024
)

func newDomain(stats golibvirt.DomainStatsRecord) domain {
	d := domain{uuid: stats.Dom.UUID, name: stats.Dom.Name}
	values := map[string]int64{}

	for _, p := range stats.Params {
		switch v := p.Value.I.(type) {
		case int32:
			values[p.Field] = int64(v)
		case uint32:
			values[p.Field] = int64(v)
		case int64:
			values[p.Field] = v
		case uint64:
			values[p.Field] = int64(v) //nolint:gosec // kibibytes and counts
		}
	}

	state := golibvirt.DomainState(values[statState])          //nolint:gosec // a small number
	reason := golibvirt.DomainPausedReason(values[statReason]) //nolint:gosec // a small number
	d.isActive = state != golibvirt.DomainShutoff && state != golibvirt.DomainNostate
	d.isWaiting = state == golibvirt.DomainPaused &&
		(reason == golibvirt.DomainPausedUser || reason == golibvirt.DomainPausedStartingUp)
	d.isStorageFull = state == golibvirt.DomainPaused && reason == golibvirt.DomainPausedIoerror
	d.cpu, d.memory = values[statCPUs], values[statMaxMemory]*kibibyte

	return d
}

// list lists the host's domains by one call. It makes one more call for each machine of this operator that
// it does not know yet.
func (h *host) list(ctx context.Context, s *session) error {
	h.listMu.Lock()
	defer h.listMu.Unlock()

	var (
		stats    []golibvirt.DomainStatsRecord
		listedAt = h.provider.clock.Now()
	)

	h.beginList()

	err := h.callSession(ctx, s, newRead("listDomains"), func(rpc *golibvirt.Libvirt) error {
		var err error

		wanted := golibvirt.DomainStatsState | golibvirt.DomainStatsBalloon | golibvirt.DomainStatsVCPU
		stats, err = rpc.ConnectGetAllDomainStats(nil, uint32(wanted), uint32(golibvirt.ConnectGetAllDomainsStatsNowait))

		return err
	})
	if err != nil {
		return err
	}

	known := h.domains()
	domains := make(map[golibvirt.UUID]domain, len(stats))
	prefix := h.provider.identity.uuidPrefix()

	for _, record := range stats {
		d := newDomain(record)

		if bytes.HasPrefix(d.uuid[:], prefix) {
			old, ok := known[d.uuid]
			if !ok || !old.isOurs || !old.wasStarted {
				if err := h.readRecord(ctx, s, &d); err != nil {
					return err
				}
			} else {
				d.isOurs, d.record, d.wasStarted, d.isTransient = true, old.record, true, old.isTransient
			}
		}

		if d.isOurs && d.isActive {
			h.openConsole(ctx, s, d)
		}

		domains[d.uuid] = d
	}

	hasListedVolumes, err := h.addStopped(ctx, s, known, domains)
	if err != nil {
		return err
	}

	h.endList(s, domains, listedAt, hasListedVolumes)
	h.wakeChanged(known, domains)

	return nil
}

// beginList starts to record the domains that change while the list is read. endList keeps their newer state.
func (h *host) beginList() {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.inventory.changed, h.inventory.isOutdated = map[golibvirt.UUID]bool{}, false
}

// endList replaces the inventory by a copy of the list. Domains that have changed since the list began keep
// their newer state, which endList also writes into domains.
func (h *host) endList(s *session, domains map[golibvirt.UUID]domain, listedAt time.Time, hasListedVolumes bool) {
	h.mu.Lock()
	defer h.mu.Unlock()

	for uuid := range h.inventory.changed {
		if d, ok := h.inventory.domains[uuid]; ok {
			domains[uuid] = d
		} else {
			delete(domains, uuid)
		}
	}

	if h.inventory.isOutdated {
		listedAt, hasListedVolumes = time.Time{}, false
	}

	s.hasListedVolumes = s.hasListedVolumes || hasListedVolumes

	h.inventory = inventory{domains: maps.Clone(domains), listedAt: listedAt}
}

// invalidate makes the next reader list the domains again, because a change may have had an effect.
func (h *host) invalidate() {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.inventory.listedAt, h.inventory.isOutdated = time.Time{}, true
}

// markChanged makes endList keep the state that the inventory has of the domain, because it is newer than the state in a
// list that has already begun. The caller holds the lock.
func (h *host) markChanged(uuid golibvirt.UUID) {
	if h.inventory.changed != nil {
		h.inventory.changed[uuid] = true
	}
}

// readRecord reads the metadata of a domain. A running domain has two definitions. The mark that it was
// started is only in the persistent one, which may not exist yet.
func (h *host) readRecord(ctx context.Context, s *session, d *domain) error {
	var (
		element string
		isLive  bool
	)

	err := h.callSession(ctx, s, newRead("readMetadata"), func(rpc *golibvirt.Libvirt) error {
		var err error

		element, err = readMetadata(rpc, d, golibvirt.DomainAffectConfig)
		if isLive = hasCode(err, golibvirt.ErrOperationInvalid, golibvirt.ErrInvalidArg); isLive {
			element, err = readMetadata(rpc, d, golibvirt.DomainAffectLive)
		}

		return err
	})

	if hypervisor.Is(err, hypervisor.NotFound) || hasCode(err, golibvirt.ErrNoDomainMetadata) {
		return nil // the domain is gone, or it is not a machine
	}

	if err != nil {
		return err
	}

	record, isStarted, err := ParseMetadata(element)
	if errors.Is(err, hypervisor.ErrNoRecord) || !h.provider.identity.owns(record, d.uuid) {
		return nil
	}

	if d.isActive && !isStarted && !isLive {
		if record, err = h.readLiveRecord(ctx, s, d, record); err != nil {
			return err
		}
	}

	d.isOurs, d.record, d.wasStarted = true, record, isStarted

	// Only a transient machine has the mark before its guest runs.
	if d.isTransient = isLive && isStarted; d.isTransient {
		d.wasStarted = !d.isWaiting
	}

	return nil
}

// readLiveRecord returns the record in the definition of the running domain. It is needed for a machine that
// was on standby and is being started, because its persistent definition lists no devices yet. If the machine
// no longer runs, readLiveRecord returns other.
func (h *host) readLiveRecord(ctx context.Context, s *session, d *domain, other Record) (Record, error) {
	var element string

	err := h.callSession(ctx, s, newRead("readMetadata"), func(rpc *golibvirt.Libvirt) error {
		var err error

		element, err = readMetadata(rpc, d, golibvirt.DomainAffectLive)

		return err
	})
	if hypervisor.Is(err, hypervisor.NotFound) || hasCode(err, golibvirt.ErrOperationInvalid) {
		return other, nil
	}

	if err != nil {
		return other, err
	}

	live, _, err := ParseMetadata(element)
	if err != nil || !h.provider.identity.owns(live, d.uuid) {
		return other, nil //nolint:nilerr // somebody has changed the metadata
	}

	return live, nil
}

// readMetadata reads the metadata in one of the definitions of a domain.
func readMetadata(rpc *golibvirt.Libvirt, d *domain, from golibvirt.DomainModificationImpact) (string, error) {
	return rpc.DomainGetMetadata(golibvirt.Domain{Name: d.name, UUID: d.uuid, ID: -1},
		int32(golibvirt.DomainMetadataElement), golibvirt.OptString{MetadataURI}, from)
}

// wakeChanged wakes the owners of the machines that differ between two lists.
func (h *host) wakeChanged(before, after map[golibvirt.UUID]domain) {
	for uuid, old := range before {
		if now, ok := after[uuid]; old.isOurs && (!ok || now.isActive != old.isActive || now.isStorageFull != old.isStorageFull) {
			h.provider.options.Wake(old.record.Owner())
		}
	}
}

// refresh lists the domains if the last list is older than maxAge.
func (h *host) refresh(ctx context.Context, maxAge time.Duration) error {
	s, err := h.currentSession(ctx)
	if err != nil {
		return err
	}

	h.mu.Lock()
	isFresh := !h.inventory.listedAt.IsZero() && h.provider.clock.Since(h.inventory.listedAt) <= maxAge
	h.mu.Unlock()

	if isFresh {
		return nil
	}

	return h.list(ctx, s)
}

// domains returns a copy of the inventory.
func (h *host) domains() map[golibvirt.UUID]domain {
	h.mu.Lock()
	defer h.mu.Unlock()

	return maps.Clone(h.inventory.domains)
}

func (h *host) find(uuid golibvirt.UUID) (domain, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()

	d, ok := h.inventory.domains[uuid]

	return d, ok
}

func (h *host) findName(name string) (domain, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()

	for _, d := range h.inventory.domains {
		if d.name == name {
			return d, true
		}
	}

	return domain{}, false
}

// putDomain stores the state of a domain that a call of this process has changed or read.
func (h *host) putDomain(d domain) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.inventory.domains == nil {
		h.inventory.domains = map[golibvirt.UUID]domain{}
	}

	h.inventory.domains[d.uuid] = d
	h.markChanged(d.uuid)
}

// removeDomain removes a domain that a call of this process has deleted, or that no longer exists.
func (h *host) removeDomain(uuid golibvirt.UUID) {
	h.mu.Lock()
	defer h.mu.Unlock()

	delete(h.inventory.domains, uuid)
	h.markChanged(uuid)
}

// applyEvent applies an event to the inventory and wakes the owner of the machine. If the event does not say
// enough, the next reader lists the domains again.
func (h *host) applyEvent(event golibvirt.DomainEventLifecycleMsg) {
	isWorkedOn := len(h.provider.progress.get(event.Dom.UUID).disks) > 0 // so this process may have created the domain

	h.mu.Lock()
	d, isKnown := h.inventory.domains[event.Dom.UUID]
	needsList := false
	// Another process of this operator has created a new machine. New domains of others need no list at once.
	isNewMachine := !isKnown && !isWorkedOn && bytes.HasPrefix(event.Dom.UUID[:], h.provider.identity.uuidPrefix())

	switch golibvirt.DomainEventType(event.Event) { //nolint:exhaustive // the others change nothing here
	case golibvirt.DomainEventDefined:
		needsList = isNewMachine
	case golibvirt.DomainEventStarted:
		d.isActive, needsList = true, isNewMachine
	case golibvirt.DomainEventSuspended:
		d.isStorageFull = golibvirt.DomainEventSuspendedDetailType(event.Detail) == golibvirt.DomainEventSuspendedIoerror
		d.isWaiting = !d.isStorageFull
	case golibvirt.DomainEventResumed:
		d.isWaiting, d.isStorageFull = false, false
		d.wasStarted = d.wasStarted || d.isTransient
	case golibvirt.DomainEventStopped:
		d.isActive, d.isWaiting, d.isStorageFull = false, false, false
		// A transient machine that did not power off by itself may be deleted by somebody.
		d.isDoubtful = d.isTransient &&
			golibvirt.DomainEventStoppedDetailType(event.Detail) != golibvirt.DomainEventStoppedShutdown
		// A machine without the mark may have no persistent definition. Then it is gone now.
		needsList = d.isOurs && !d.wasStarted || d.isDoubtful
	case golibvirt.DomainEventUndefined:
		needsList = d.isOurs && d.isActive

		if !d.isActive {
			delete(h.inventory.domains, event.Dom.UUID)

			isKnown = false
		}
	}

	if isKnown {
		h.inventory.domains[event.Dom.UUID] = d
	}

	h.markChanged(event.Dom.UUID)

	if needsList {
		h.inventory.listedAt, h.inventory.isOutdated = time.Time{}, true

		// The other process' machine may be off before the next list. Then only its disk shows it.
		if isNewMachine && h.session != nil {
			h.session.hasListedVolumes = false
		}
	}
	h.mu.Unlock()

	if d.isOurs {
		h.provider.options.Wake(d.record.Owner())
	}
}
