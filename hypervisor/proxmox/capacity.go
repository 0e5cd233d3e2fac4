// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"math"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// wholePercent is the share of a node's memory that VMs may have if there is no limit.
const wholePercent = 100

// nodeLoad is a node with its free and reserved resources.
type nodeLoad struct {
	hypervisor.Node

	// unusedMemory is the memory that running machines leave, including what is reserved.
	unusedMemory int64
}

// Capacity returns the total and the free resources of the usable nodes; see hypervisor.Provider.
func (p *Provider) Capacity(ctx context.Context) (hypervisor.Capacity, error) {
	vms, _, err := p.vmCache.get(ctx, p.watcher.idleListAge)
	if err != nil {
		return hypervisor.Capacity{}, err
	}

	loads, err := p.listNodeLoads(ctx, vms)
	if err != nil {
		return hypervisor.Capacity{}, err
	}

	owned, err := p.listOwned(ctx, vms)
	if err != nil {
		return hypervisor.Capacity{}, err
	}

	out := hypervisor.Capacity{Machines: len(owned)}

	var unavailableErr error

	for _, n := range loads {
		if err := p.addDisk(ctx, &n.Node); hypervisor.Is(err, hypervisor.Unavailable) {
			n.Online, n.OfflineReason, unavailableErr = false, err.Error(), err
		} else if err != nil {
			return hypervisor.Capacity{}, err
		}

		out.Nodes = append(out.Nodes, n.Node)
		if !n.Online {
			continue
		}

		out.Free = addResources(out.Free, n.Free)
		out.Total = addResources(out.Total, n.Total)
	}

	if unavailableErr != nil && !slices.ContainsFunc(out.Nodes, func(n hypervisor.Node) bool { return n.Online }) {
		return hypervisor.Capacity{}, unavailableErr
	}

	return out, nil
}

func addResources(a, b hypervisor.Resources) hypervisor.Resources {
	return hypervisor.Resources{CPU: a.CPU + b.CPU, Memory: a.Memory + b.Memory, Disk: a.Disk + b.Disk}
}

// addDisk sets the node's disk space to the space of the largest storage for disks, or of the default
// storage if one is configured.
func (p *Provider) addDisk(ctx context.Context, n *hypervisor.Node) error {
	if !n.Online {
		return nil
	}

	storages, err := p.listStorages(ctx, n.Name)
	if err != nil {
		return err
	}

	for _, s := range storages {
		if p.config.DefaultStorage != "" && s.Storage != p.config.DefaultStorage || !s.hasContentType("images") || !s.isUsable() {
			continue
		}

		if s.Total > n.Total.Disk {
			n.Total.Disk, n.Free.Disk = s.Total, s.Avail
		}
	}

	return nil
}

// listNodeLoads returns the usable nodes and the resources that running machines and the reservations of
// this process leave free.
func (p *Provider) listNodeLoads(ctx context.Context, vms vmsByID) ([]nodeLoad, error) {
	infos, err := p.listUsableNodes(ctx)
	if err != nil {
		return nil, err
	}

	reserved, _ := p.sumReservations(vms)
	running := map[string]hypervisor.Resources{}

	for _, r := range vms {
		if r.Status == statusRunning {
			running[r.Node] = addResources(running[r.Node],
				hypervisor.Resources{CPU: int64(math.Ceil(r.MaxCPU)), Memory: r.MaxMem})
		}
	}

	out := make([]nodeLoad, 0, len(infos))

	for _, n := range infos {
		total := hypervisor.Resources{CPU: int64(n.MaxCPU), Memory: n.MaxMem * int64(p.config.MemoryPercent) / wholePercent}
		unusedMemory := total.Memory - running[n.Node].Memory
		free := hypervisor.Resources{
			CPU:    max(0, total.CPU-running[n.Node].CPU),
			Memory: max(0, unusedMemory-reserved[n.Node]),
		}
		out = append(out, nodeLoad{
			Node: hypervisor.Node{
				Name: n.Node, Online: n.isOnline(), Free: free, Total: total,
				OfflineReason: n.unusableReason(), Exclusions: p.breaker.listExclusions(n.Node),
			},
			unusedMemory: unusedMemory,
		})
	}

	slices.SortFunc(out, func(a, b nodeLoad) int { return strings.Compare(a.Name, b.Name) })

	return out, nil
}

// reservation is what is reserved on a node for the machine of a reserved ID. memory is in bytes.
type reservation struct {
	// id is set if an earlier process has reserved the ID. Then the machine may exist.
	id      int
	node    string
	memory  int64
	devices deviceCounts
}

// isRunning reports whether the list accounts for the resources of the machine.
func (r reservation) isRunning(vms vmsByID) bool {
	return r.id != 0 && vms[r.id].Status == statusRunning
}

// sumReservations returns two values per node: the memory of machines that will run and that the list does
// not show as running yet, and the number of machines that are not cloned yet.
func (p *Provider) sumReservations(vms vmsByID) (memory map[string]int64, queue map[string]int) {
	queue, memory = map[string]int{}, map[string]int64{}

	for _, reserved := range p.ids.Reservations() {
		if _, exists := vms[reserved.id]; !exists {
			queue[reserved.node]++
		}

		if !reserved.isRunning(vms) {
			memory[reserved.node] += reserved.memory
		}
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	for _, m := range p.machines {
		pl := m.placement
		if pl.node == "" || pl.isAccounted {
			continue
		}

		if vms[pl.id].Status != statusRunning && !pl.isOnStandby {
			memory[pl.node] += pl.memory
		}

		if pl.needsClone {
			queue[pl.node]++
		}
	}

	return memory, queue
}
