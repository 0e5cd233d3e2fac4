// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Reserve chooses an ID and a node; see hypervisor.Provider.
func (p *Provider) Reserve(ctx context.Context, spec hypervisor.MachineSpec) (hypervisor.Reservation, error) {
	var out hypervisor.Reservation

	if spec.Owner.UID == "" {
		return out, errors.New("reserve an id: the owner of the machine has no UID")
	}

	if err := p.loadClaimed(ctx); err != nil {
		return out, err
	}

	if id, existing, ok := p.ids.ReservationFor(spec.Owner.UID); ok {
		out.ID, out.Node = id, existing.node

		return out, nil
	}

	vms, _, err := p.vmCache.get(ctx, p.watcher.busyListAge)
	if err != nil {
		return out, err
	}

	owned, err := p.listOwned(ctx, vms)
	if err != nil {
		return out, err
	}

	if id, ok := findOwnedByClaim(owned, spec.Owner.UID); ok {
		return hypervisor.Reservation{ID: id, Node: vms[id].Node, Exists: true, Addresses: owned[id].addresses}, nil
	}

	for id, known := range owned {
		if other := known.record.Owner(); other.Namespace == spec.Owner.Namespace && other.Name == spec.Owner.Name {
			return out, hypervisor.NewNamesakeError(other, fmt.Sprintf("machine %d on node %s", id, vms[id].Node))
		}
	}

	if err := checkAddresses(vms, owned, spec); err != nil {
		return out, err
	}

	candidates, err := p.listCandidates(ctx, vms, spec)
	if err != nil {
		return out, err
	}

	totalDevices, err := p.readDeviceTotals(ctx, candidates, spec.Shape)
	if err != nil {
		return out, err
	}

	// The lock makes each parallel placement see the reservations of the others.
	p.placementMu.Lock()
	defer p.placementMu.Unlock()

	p.addReservations(candidates, spec, vms, owned, totalDevices)

	chosen, err := chooseNode(candidates, spec)
	if err != nil {
		return out, err
	}

	p.breaker.recordPlacement(spec.Owner.UID, chosen.BreakerTargets...)

	out.Node = chosen.Node

	own := reservation{node: chosen.Node, memory: spec.Shape.Memory, devices: newDeviceCounts(spec.Shape.Devices)}
	if spec.Standby {
		own.memory, own.devices = 0, nil
	}

	out.ID, err = p.ids.Reserve(spec.Owner.UID, own, func(id int) bool {
		_, isUsed := vms[id]

		return isUsed
	})

	return out, err
}

// loadClaimed reads the IDs that claims hold, and reserves the memory and the devices of machines that an earlier process has
// placed and that may not exist yet.
func (p *Provider) loadClaimed(ctx context.Context) error {
	return p.ids.LoadClaimed(ctx, p.config.Name, p.options.ListClaimed, func(m hypervisor.ClaimedMachine) {
		p.ids.Restore(m.OwnerUID, reservation{id: m.ID, node: m.Node, memory: m.Memory, devices: newDeviceCounts(m.Devices)})
	})
}

// addReservations fills the fields of the candidates that depend on other placements. A standby machine needs its devices
// later. The caller holds placementMu.
func (p *Provider) addReservations(
	candidates []candidate, spec hypervisor.MachineSpec, vms vmsByID, owned map[int]knownVM, totalDevices map[string]deviceCounts,
) {
	reserved, queue := p.sumReservations(vms)

	var usedDevices map[string]deviceCounts
	if !spec.Standby {
		usedDevices = p.sumDevices(vms, owned)
	}

	for i := range candidates {
		c := &candidates[i]
		c.FreeMemory, c.QueuedClones = max(0, c.unusedMemory-reserved[c.Node]), queue[c.Node]
		c.DeviceProblem = p.describeLackingDevice(c.Node, spec.Owner.UID, spec.Shape, totalDevices, usedDevices)

		for _, d := range spec.Shape.Devices {
			c.BreakerTargets = append(c.BreakerTargets, newDeviceTarget(c.Node, d.Name))
		}
	}
}

// listCandidates returns the nodes on which a machine could be placed.
func (p *Provider) listCandidates(ctx context.Context, vms vmsByID, spec hypervisor.MachineSpec) ([]candidate, error) {
	templates, err := p.findTemplates(ctx, vms, spec.Template)
	if err != nil {
		return nil, err
	}

	nodes, err := p.listNodeLoads(ctx, vms)
	if err != nil {
		return nil, err
	}

	var all []candidate

	for _, n := range nodes {
		t, ok := selectTemplate(templates, n.Name)
		if !ok {
			continue
		}

		all = append(all, candidate{
			Node: n.Name, Template: t, Online: n.Online, Trouble: n.OfflineReason, Cores: n.Total.CPU,
			unusedMemory: n.unusedMemory, TotalMemory: n.Total.Memory,
		})
		p.checkCandidateStorage(ctx, &all[len(all)-1], spec)
	}

	return all, nil
}

// checkCandidateStorage checks whether the target storage is available and has space, and whether the
// candidate is excluded. It fills the fields of the candidate.
func (p *Provider) checkCandidateStorage(ctx context.Context, c *candidate, spec hypervisor.MachineSpec) {
	if !c.Online {
		return
	}

	name := p.selectStorage(c.Template, spec.Shape)

	storage, err := p.findStorage(ctx, c.Node, name)
	if err == nil {
		err = storage.checkUsable()
	}

	if err == nil && spec.Shape.CloudInitSource != hypervisor.SourceBuiltin {
		err = p.checkISOStorage(ctx, c.Node)
	}

	if err != nil {
		c.Trouble = err.Error()
	}

	c.Online = c.Trouble == ""
	c.HasDiskSpace = storage.Avail >= max(spec.Shape.Disk, c.Template.DiskBytes)
	templateTarget, storageTarget := newTemplateTarget(c.Node, c.Template.ID), newStorageTarget(storage.cloneQueueKey(c.Node))
	c.BreakerTargets = []breakerTarget{templateTarget, storageTarget}
	c.StorageExclusion = p.breaker.exclusionReason(spec.Owner.UID, storageTarget)
	c.TemplateExclusion = p.breaker.exclusionReason(spec.Owner.UID, templateTarget)
}

// checkISOStorage verifies that the node can receive cloud-init ISOs now.
func (p *Provider) checkISOStorage(ctx context.Context, node string) error {
	storage, err := p.findISOStorage(ctx, node)
	if err != nil {
		return err
	}

	return storage.checkUsable()
}

// candidate is a node on which a machine could be placed, with the template for the clone.
type candidate struct {
	Node     string
	Template hypervisor.Template
	Online   bool
	// Trouble is the reason why the node is not online.
	Trouble string
	// Cores is the number of the node's cores. FreeMemory is what running machines and reservations leave.
	// unusedMemory is what running machines leave, including what is reserved.
	Cores        int64
	FreeMemory   int64
	TotalMemory  int64
	unusedMemory int64
	// QueuedClones is the number of clones that run, wait or are reserved on the storage.
	QueuedClones int
	// HasDiskSpace reports whether the storage has space for the complete disk. Thin storages accept more.
	HasDiskSpace bool
	// StorageExclusion is the reason why no machine is placed here, because its storage was full.
	// TemplateExclusion is the reason why a machine is placed here only if there is no other node.
	// BreakerTargets are what the breaker counts failures of.
	StorageExclusion  string
	TemplateExclusion string
	BreakerTargets    []breakerTarget
	// DeviceProblem says which device the node lacks for the machine, such as "has 0 of 1 devices gpu free".
	DeviceProblem string
}

// chooseNode chooses the node for a machine. The node must be online and have enough memory and cores, and
// its storage must not be excluded. Nodes without a template exclusion come first, then nodes with disk
// space for the complete disk. The strategy Spread then chooses the shortest clone queue, the most free
// memory, and the first name. The strategy Pack chooses the least free memory that suffices, and the first
// name.
//
// As in Proxmox, the machines of a node share its cores, so the sum of their cores may exceed the cores of
// the node. Memory is not shared, because a VM without enough memory fails to start. A standby machine
// needs its memory later, so only the total memory of the node counts.
func chooseNode(candidates []candidate, spec hypervisor.MachineSpec) (candidate, error) {
	shape := spec.Shape

	var suitable []candidate

	for _, c := range candidates {
		memory := c.FreeMemory
		if spec.Standby {
			memory = c.TotalMemory
		}

		if c.Online && c.StorageExclusion == "" && c.DeviceProblem == "" && int64(shape.CPU) <= c.Cores && shape.Memory <= memory {
			suitable = append(suitable, c)
		}
	}

	if len(suitable) == 0 {
		return candidate{}, newNoCapacityError(candidates, shape)
	}

	preferred := slices.DeleteFunc(slices.Clone(suitable), func(c candidate) bool { return c.TemplateExclusion != "" })
	if len(preferred) > 0 {
		suitable = preferred
	}

	return slices.MinFunc(suitable, func(a, b candidate) int {
		if spec.Strategy == hypervisor.Pack {
			return cmp.Or(compareDiskSpace(a, b), cmp.Compare(a.FreeMemory, b.FreeMemory), strings.Compare(a.Node, b.Node))
		}

		return cmp.Or(compareDiskSpace(a, b), cmp.Compare(a.QueuedClones, b.QueuedClones), cmp.Compare(b.FreeMemory, a.FreeMemory),
			strings.Compare(a.Node, b.Node))
	}), nil
}

// compareDiskSpace sorts storages with space for the complete disk first.
func compareDiskSpace(a, b candidate) int {
	switch {
	case a.HasDiskSpace == b.HasDiskSpace:
		return 0
	case a.HasDiskSpace:
		return -1
	default:
		return 1
	}
}

// newNoCapacityError returns an error that names, for each node, why it cannot take the machine. The reason
// is reasonNodeExcluded if a storage of a node is excluded, and NoCapacity otherwise.
func newNoCapacityError(candidates []candidate, shape hypervisor.Shape) error {
	var problems []string

	reason := "NoCapacity"

	for _, c := range candidates {
		switch {
		case !c.Online:
			problems = append(problems, c.Node+" "+cmp.Or(c.Trouble, "is offline"))
		case c.StorageExclusion != "":
			problems, reason = append(problems, c.StorageExclusion), reasonNodeExcluded
		case c.DeviceProblem != "":
			problems = append(problems, c.Node+" "+c.DeviceProblem)
		case int64(shape.CPU) > c.Cores:
			problems = append(problems, fmt.Sprintf("%s has %d cores", c.Node, c.Cores))
		default:
			problems = append(problems, fmt.Sprintf("%s has %s free", c.Node, formatBytes(c.FreeMemory)))
		}
	}

	if len(problems) == 0 {
		problems = []string{"no usable node has the template"}
	}

	needs := fmt.Sprintf("%d cores and %s of memory", shape.CPU, formatBytes(shape.Memory))
	if len(shape.Devices) > 0 {
		needs += " and " + formatDevices(shape.Devices)
	}

	return hypervisor.Errorf(hypervisor.NoCapacity, reason,
		"no node can take a machine with %s: %s", needs, strings.Join(problems, ", "))
}

// checkNodeSize returns an error if a shape fits on none of the nodes, even when the nodes are empty.
func checkNodeSize(nodes []hypervisor.Node, shape hypervisor.Shape) error {
	if len(nodes) == 0 {
		return nil
	}

	for _, n := range nodes {
		if int64(shape.CPU) <= n.Total.CPU && shape.Memory <= n.Total.Memory {
			return nil
		}
	}

	biggest := slices.MaxFunc(nodes, func(a, b hypervisor.Node) int {
		return cmp.Or(cmp.Compare(a.Total.Memory, b.Total.Memory), cmp.Compare(a.Total.CPU, b.Total.CPU))
	})

	return hypervisor.Errorf(hypervisor.Rejected, "ResourcesExceedNode",
		"the template requests %d cores and %s of memory, but the biggest node %s has %d cores and %s: "+
			"request less in resources or add a bigger node",
		shape.CPU, formatBytes(shape.Memory), biggest.Name, biggest.Total.CPU, formatBytes(biggest.Total.Memory))
}

// formatBytes formats a number of bytes for messages.
func formatBytes(n int64) string {
	const step = 1024

	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	value, unit := float64(n), 0

	for value >= step && unit < len(units)-1 {
		value /= step
		unit++
	}

	return fmt.Sprintf("%.4g %s", value, units[unit])
}
