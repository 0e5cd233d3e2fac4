// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"context"

	golibvirt "github.com/digitalocean/go-libvirt"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Delete deletes the machine and its volumes; see hypervisor.Provider. The domain is deleted last, because it
// holds the record.
func (p *Provider) Delete(ctx context.Context, ref hypervisor.MachineRef) error {
	p.locks.LockKey(ref.Owner.UID)
	defer p.locks.UnlockKey(ref.Owner.UID) //nolint:errcheck // a hashed mutex returns no error

	if ref.ID == 0 {
		errs := p.refresh(ctx, p.maxListAge())

		_, d, ok := p.findOwned(ref.Owner.UID)
		if !ok && len(errs) > 0 {
			return newUnavailableError("find machine of MachineClaim "+ref.Owner.Name, errs)
		}

		if !ok {
			return newNotFoundError(ref)
		}

		ref.ID = d.record.ID
	}

	uuid := p.identity.machineUUID(ref.ID, ref.Owner.UID)

	w := p.progress.get(uuid)
	if w.clone != nil && w.clone.isRunning() {
		return nil // libvirt cannot stop a clone: the owner is woken when it has ended
	}

	h, d, err := p.locate(ctx, ref)
	if err != nil {
		return err
	}

	switch {
	case h != nil && !d.isOurs:
		return newNotOwnedError(h, d)
	case h != nil:
		err = p.deleteDomain(ctx, h, d, ref, w)
	case w.host != nil:
		err = p.deleteVolumes(ctx, w.host, ref, w)
	default:
		err = p.deleteRemains(ctx, ref)
	}

	if err != nil {
		return err
	}

	p.placement.forget(ref.Owner.UID)
	p.progress.forget(uuid)
	p.consoles.forget(uuid)
	p.ids.Release(ref.ID, ref.Owner.UID)

	return newNotFoundError(ref)
}

func newNotOwnedError(h *host, d domain) error {
	return hypervisor.Errorf(hypervisor.NotOwned, "NotOwned",
		"delete machine %s: the domain of host %s has another owner and was not changed", d.name, h.config.Name)
}

// deleteDomain stops the machine, and deletes its volumes and then its domain.
func (p *Provider) deleteDomain(ctx context.Context, h *host, d domain, ref hypervisor.MachineRef, w work) error {
	reference := golibvirt.Domain{Name: d.name, UUID: d.uuid, ID: -1}

	if d.isActive {
		err := h.call(ctx, newWrite("destroyDomain"), func(rpc *golibvirt.Libvirt) error {
			return rpc.DomainDestroyFlags(reference, golibvirt.DomainDestroyDefault)
		})
		if err != nil && !hypervisor.Is(err, hypervisor.NotFound) && !hasCode(err, golibvirt.ErrOperationInvalid) {
			return err
		}
	}

	if err := p.deleteVolumes(ctx, h, ref, w); err != nil {
		return err
	}

	if d.isTransient {
		h.removeDomain(d.uuid)

		return nil
	}

	err := h.call(ctx, newWrite("undefineDomain"), func(rpc *golibvirt.Libvirt) error {
		return rpc.DomainUndefineFlags(reference, golibvirt.DomainUndefineManagedSave|golibvirt.DomainUndefineNvram|
			golibvirt.DomainUndefineSnapshotsMetadata|golibvirt.DomainUndefineCheckpointsMetadata)
	})
	// A machine that was not marked yet has no persistent definition, so it is gone when it is stopped.
	if err != nil && !hypervisor.Is(err, hypervisor.NotFound) {
		return err
	}

	h.removeDomain(d.uuid)

	return nil
}

// deleteVolumes deletes the machine's volumes on a host. The process that has created the machine knows which exist.
func (p *Provider) deleteVolumes(ctx context.Context, h *host, ref hypervisor.MachineRef, w work) error {
	suffixes := []string{diskSuffix, transientSuffix}
	if w.isKnown {
		suffixes = w.disks
	}

	if !w.hasLostISO {
		suffixes = append([]string{isoSuffix}, suffixes...)
	}

	names := make([]string, 0, len(suffixes))
	for _, suffix := range suffixes {
		if suffix == transientSuffix {
			suffix = transientVolumeSuffix(h.config.Name)
		}

		names = append(names, p.identity.volumeName(ref.ID, ref.Owner.UID, suffix))
	}

	return h.deleteVolumes(ctx, names...)
}

// deleteRemains deletes the volumes of a machine whose domain no longer exists. It looks for them on all hosts.
// If a domain of another owner has the machine's name, the error is of kind NotOwned.
func (p *Provider) deleteRemains(ctx context.Context, ref hypervisor.MachineRef) error {
	for _, h := range p.hosts {
		if d, ok := h.findName(hypervisor.MachineName(ref.Owner, ref.ID)); ok {
			return newNotOwnedError(h, d)
		}
	}

	volumes, errs := p.listVolumes(ctx)

	for h, names := range volumes {
		for _, name := range names {
			id, claimUID, isOurs := p.identity.parseVolume(name)
			if !isOurs || id != ref.ID || claimUID != ref.Owner.UID {
				continue
			}

			if err := h.deleteVolume(ctx, name); err != nil {
				return err
			}
		}
	}

	if len(errs) > 0 {
		return newUnavailableError("find the volumes of machine "+hypervisor.MachineName(ref.Owner, ref.ID), errs)
	}

	return nil
}
