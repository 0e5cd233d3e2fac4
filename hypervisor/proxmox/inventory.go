// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// knownVM caches what was read from the configuration of a listed VM: the ownership record, whether the record
// is one of this operator, and the MAC address. The entry of a VM of another owner is valid only as long as the
// key is unchanged. No entry is sufficient to change the VM: the record must be read again first.
type knownVM struct {
	key    string
	isOwn  bool
	record Record
	mac    string
	// addresses are the static addresses with which the VM is configured, if its configuration has them.
	addresses []string
	// devices are the devices with which the VM is configured.
	devices deviceCounts
}

func newKnownVM(key string, config vmConfig, record Record, isOwn bool) knownVM {
	addresses := record.ListAddresses()
	if len(addresses) == 0 {
		addresses = parseIPConfig(config["ipconfig0"])
	}

	return knownVM{
		key: key, isOwn: isOwn, record: record, mac: parseMAC(config["net0"]), addresses: addresses, devices: parseDevices(config),
	}
}

// cacheKey returns a key that changes if another VM may have taken a VM's ID, or if the VM's record may
// have changed. The key includes the lock, because a VM that is still locked by its clone task may not have
// its record yet.
func cacheKey(name, lock string) string { return name + "\x00" + lock }

// cacheVM caches the ownership record and the MAC address of a VM, and whether the VM belongs to this operator.
func (p *Provider) cacheVM(id int, config vmConfig, record Record, isOwn bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.knownVMs[id] = newKnownVM(cacheKey(config["name"], config["lock"]), config, record, isOwn)
}

// mayBeOwned reports whether a listed VM may belong to this operator: its ID is in the range, or the VM has
// the operator's tag. Neither proves the ownership.
func (p *Provider) mayBeOwned(r resource) bool {
	inRange := r.VMID >= p.config.IDMin && r.VMID <= p.config.IDMax

	return r.Type == "qemu" && !bool(r.Template) && (inRange || hasOperatorTag(p.id, r.Tags))
}

// maxParallelReads limits the parallel reads of unknown VMs. After a restart all VMs are unknown. The limit
// of the calls per node applies too.
const maxParallelReads = 16

// listOwned returns the listed VMs that belong to this operator. It reads the record of each VM only once,
// and does not read VMs that this process is creating.
func (p *Provider) listOwned(ctx context.Context, vms vmsByID) (map[int]knownVM, error) {
	out := make(map[int]knownVM, len(vms))
	confirmed := p.ids.ConfirmedIDs()

	var unknown []resource

	for id, r := range vms {
		if !p.mayBeOwned(r) {
			continue
		}

		switch known, ok := p.lookupKnown(r); {
		case ok && known.isOwn:
			out[id] = known
		// The record of a VM that this process is creating need not be read.
		case !ok && !confirmed[id]:
			unknown = append(unknown, r)
		}
	}

	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxParallelReads)

	for _, r := range unknown {
		group.Go(func() error { return p.identifyVM(ctx, r) })
	}

	if err := group.Wait(); err != nil {
		return nil, err
	}

	for _, r := range unknown {
		if known, ok := p.lookupKnown(r); ok && known.isOwn {
			out[r.VMID] = known
		}
	}

	p.pruneKnown(vms, confirmed)

	return out, nil
}

// lookupKnown returns the cached owner of a listed VM, if the entry is still valid.
func (p *Provider) lookupKnown(r resource) (knownVM, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	known, ok := p.knownVMs[r.VMID]

	// The list updates names with a delay, so the name of an owned VM may be outdated.
	return known, ok && (known.isOwn || known.key == cacheKey(r.Name, r.Lock))
}

// identifyVM reads the record of a listed VM and caches the owner for lookupKnown.
func (p *Provider) identifyVM(ctx context.Context, r resource) error {
	config, err := p.client.readConfig(ctx, r.Node, r.VMID)
	if hypervisor.Is(err, hypervisor.NotFound) || hasReason(err, reasonPermissionDenied) || hasReason(err, reasonNodeUnreachable) {
		// An unresponsive node must not prevent the creation of machines on other nodes. The machines of
		// claims are found by the IDs in the claims' status, and not here.
		return nil
	}

	if err != nil {
		return err
	}

	record, err := ParseRecord(config["description"])

	p.mu.Lock()
	defer p.mu.Unlock()

	p.knownVMs[r.VMID] = newKnownVM(cacheKey(r.Name, r.Lock), config, record, err == nil && p.id.owns(record, r.VMID))

	return nil
}

// pruneKnown drops the entries of VMs that are no longer listed. It keeps the VMs that this process
// manages, because they may be newer than the list.
func (p *Provider) pruneKnown(vms vmsByID, confirmed map[int]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	for id := range p.knownVMs {
		if _, ok := vms[id]; !ok && !confirmed[id] {
			delete(p.knownVMs, id)
		}
	}
}

// findByClaim returns the ID of a claim's machine. The machine may have another ID than the requested one.
func (p *Provider) findByClaim(ctx context.Context, vms vmsByID, uid string) (int, bool, error) {
	owned, err := p.listOwned(ctx, vms)
	if err != nil {
		return 0, false, err
	}

	id, ok := findOwnedByClaim(owned, uid)

	return id, ok, nil
}

// findOwnedByClaim returns the ID of a claim's machine among the machines of this operator.
func findOwnedByClaim(owned map[int]knownVM, uid string) (int, bool) {
	for id, known := range owned {
		if known.record.MachineClaim.UID == uid {
			return id, true
		}
	}

	return 0, false
}

// checkAddresses returns an error if another machine has an address of spec.
func (p *Provider) checkAddresses(ctx context.Context, vms vmsByID, spec hypervisor.MachineSpec) error {
	if spec.Network.AddressNetwork == "" {
		return nil
	}

	owned, err := p.listOwned(ctx, vms)
	if err != nil {
		return err
	}

	return checkAddresses(vms, owned, spec)
}

func checkAddresses(vms vmsByID, owned map[int]knownVM, spec hypervisor.MachineSpec) error {
	for id, known := range owned {
		if err := known.record.CheckAddresses(spec, fmt.Sprintf("machine %d on node %s", id, vms[id].Node)); err != nil {
			return err
		}
	}

	return nil
}

// isOwnISO reports whether a drive holds the ISO of this machine.
func (p *Provider) isOwnISO(m *machine, option string) bool {
	uid, ok := p.id.parseISOOwner(parseVolume(option))

	return ok && uid == sanitizeName(m.owner.UID)
}

// parseVolume returns the volume of a drive option.
func parseVolume(option string) string {
	volume, _, _ := strings.Cut(option, ",")

	return volume
}
