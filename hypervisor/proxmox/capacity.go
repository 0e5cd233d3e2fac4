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

// nodeLoad is a node with the clones that run, wait or are promised on it.
type nodeLoad struct {
	hypervisor.Node

	// unpromised is the memory that running machines leave.
	unpromised int64
}

// Capacity gives what the usable nodes have and what is free; see hypervisor.Provider.
func (p *Provider) Capacity(ctx context.Context) (hypervisor.Capacity, error) {
	snap, _, err := p.listing.get(ctx, p.watch.listQuiet)
	if err != nil {
		return hypervisor.Capacity{}, err
	}

	loads, err := p.nodeLoads(ctx, snap)
	if err != nil {
		return hypervisor.Capacity{}, err
	}

	owned, err := p.inventory(ctx, snap)
	if err != nil {
		return hypervisor.Capacity{}, err
	}

	out := hypervisor.Capacity{Machines: len(owned)}

	var silent error

	for _, n := range loads {
		if err := p.addDisk(ctx, &n.Node); hypervisor.Is(err, hypervisor.Unavailable) {
			n.Online, n.Trouble, silent = false, err.Error(), err
		} else if err != nil {
			return hypervisor.Capacity{}, err
		}

		out.Nodes = append(out.Nodes, n.Node)
		if !n.Online {
			continue
		}

		out.Free = plus(out.Free, n.Free)
		out.Total = plus(out.Total, n.Total)
	}

	if silent != nil && !slices.ContainsFunc(out.Nodes, func(n hypervisor.Node) bool { return n.Online }) {
		return hypervisor.Capacity{}, silent
	}

	return out, nil
}

func plus(a, b hypervisor.Resources) hypervisor.Resources {
	return hypervisor.Resources{CPU: a.CPU + b.CPU, Memory: a.Memory + b.Memory, Disk: a.Disk + b.Disk}
}

// addDisk gives the node the space of the storage that disks go to.
func (p *Provider) addDisk(ctx context.Context, n *hypervisor.Node) error {
	if !n.Online {
		return nil
	}

	storages, err := p.storagesOf(ctx, n.Name)
	if err != nil {
		return err
	}

	for _, s := range storages {
		if p.config.DefaultStorage != "" && s.Storage != p.config.DefaultStorage || !s.holds("images") || !s.usable() {
			continue
		}

		if s.Total > n.Total.Disk {
			n.Total.Disk, n.Free.Disk = s.Total, s.Avail
		}
	}

	return nil
}

// nodeLoads gives the usable nodes with what running machines and this process's
// promises leave free.
func (p *Provider) nodeLoads(ctx context.Context, snap snapshot) ([]nodeLoad, error) {
	infos, err := p.usableNodes(ctx)
	if err != nil {
		return nil, err
	}

	promised, _ := p.promises(snap)
	running := map[string]hypervisor.Resources{}

	for _, r := range snap {
		if r.Status == statusRunning {
			running[r.Node] = plus(running[r.Node],
				hypervisor.Resources{CPU: int64(math.Ceil(r.MaxCPU)), Memory: r.MaxMem})
		}
	}

	out := make([]nodeLoad, 0, len(infos))

	for _, n := range infos {
		total := hypervisor.Resources{CPU: int64(n.MaxCPU), Memory: n.MaxMem}
		unpromised := total.Memory - running[n.Node].Memory
		free := hypervisor.Resources{
			CPU:    max(0, total.CPU-running[n.Node].CPU),
			Memory: max(0, unpromised-promised[n.Node]),
		}
		out = append(out, nodeLoad{
			Node: hypervisor.Node{
				Name: n.Node, Online: n.online(), Free: free, Total: total,
				Trouble: n.trouble(), SetAside: p.health.troubles(n.Node),
			},
			unpromised: unpromised,
		})
	}

	slices.SortFunc(out, func(a, b nodeLoad) int { return strings.Compare(a.Name, b.Name) })

	return out, nil
}

// promise is what a reserved id's machine will take: memory of a node, in bytes.
type promise struct {
	node   string
	memory int64
}

// promises gives per node the memory of machines that will run but that the listing does
// not show running yet, and how many of them are still to be cloned.
func (p *Provider) promises(snap snapshot) (memory map[string]int64, queue map[string]int) {
	queue, memory = map[string]int{}, map[string]int64{}

	for _, promised := range p.ids.Reservations() {
		queue[promised.node]++
		memory[promised.node] += promised.memory
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	for _, m := range p.machines {
		at := m.placed
		if at.node == "" || at.done {
			continue
		}

		if snap[at.id].Status != statusRunning && !at.held {
			memory[at.node] += at.memory
		}

		if at.toClone {
			queue[at.node]++
		}
	}

	return memory, queue
}
