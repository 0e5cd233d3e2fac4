// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"cmp"
	"context"
	"sync"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Capacity returns the resources of the hosts that machines may use, and how much of them the running domains leave
// free; see hypervisor.Provider. It reads one storage pool of each host. It needs no call for the domains, because libvirt's
// events keep the inventory of a host current.
func (p *Provider) Capacity(ctx context.Context) (hypervisor.Capacity, error) {
	var (
		mu    sync.Mutex
		nodes = map[*host]hypervisor.Node{}
	)

	errs := p.onHosts(func(h *host) error {
		node, err := h.readNode(ctx)

		mu.Lock()
		defer mu.Unlock()

		nodes[h] = node

		return err
	})
	if ctx.Err() != nil {
		return hypervisor.Capacity{}, newUnavailableError("read the capacity", errs)
	}

	var out hypervisor.Capacity

	for _, h := range p.hosts {
		node := nodes[h]
		node.Name, node.Online = h.config.Name, errs[h] == nil

		if err := errs[h]; err != nil {
			node.OfflineReason, node.Free = err.Error(), hypervisor.Resources{}
		}

		out.Nodes = append(out.Nodes, node)
		out.Total = sum(out.Total, node.Total)
		out.Free = sum(out.Free, node.Free)

		for _, d := range h.domains() {
			if d.isOurs {
				out.Machines++
			}
		}
	}

	return out, nil
}

func sum(a, b hypervisor.Resources) hypervisor.Resources {
	return hypervisor.Resources{CPU: a.CPU + b.CPU, Memory: a.Memory + b.Memory, Disk: a.Disk + b.Disk}
}

func subtract(a, b hypervisor.Resources) hypervisor.Resources {
	return hypervisor.Resources{CPU: a.CPU - b.CPU, Memory: a.Memory - b.Memory, Disk: a.Disk - b.Disk}
}

// readNode returns the host's resources.
func (h *host) readNode(ctx context.Context) (hypervisor.Node, error) {
	var node hypervisor.Node

	s, err := h.currentSession(ctx)
	if err != nil {
		return node, err
	}

	node.Total = h.total(s)

	if err := h.refresh(ctx, h.provider.maxListAge()); err != nil {
		return node, err
	}

	pool, err := h.readStorage(ctx)
	if err != nil {
		return node, err
	}

	node.Total.Disk, node.Free.Disk = pool.capacity, pool.available
	if limit := h.config.MaxStoragePercent; limit > 0 {
		node.Free.Disk = max(0, pool.available-pool.capacity*int64(percent-limit)/percent)
	}

	used := h.sumUsed()
	node.Free.CPU, node.Free.Memory = max(0, node.Total.CPU-used.CPU), max(0, node.Total.Memory-used.Memory)

	return node, nil
}

// total returns the host's resources that machines may use.
func (h *host) total(s *session) hypervisor.Resources {
	out := s.facts.total
	out.CPU = cmp.Or(int64(h.config.MaxCPU), out.CPU)

	if limit := h.config.MaxMemory; limit > 0 {
		out.Memory = min(out.Memory, limit)
	}

	return out
}

// available returns what one machine can have of the resources that are free. The machines of a host share its cores, unless
// the host has a limit for them.
func (h *host) available(free, total hypervisor.Resources) hypervisor.Resources {
	if h.config.MaxCPU == 0 {
		free.CPU = total.CPU
	}

	return free
}

// fits reports whether the resources are enough for a machine of the shape.
func fits(shape hypervisor.Shape, available hypervisor.Resources) bool {
	return int64(shape.CPU) <= available.CPU && shape.Memory <= available.Memory
}

// sumUsed returns what the running domains of the host use.
func (h *host) sumUsed() hypervisor.Resources {
	var used hypervisor.Resources

	for _, d := range h.domains() {
		if d.isActive {
			used.CPU, used.Memory = used.CPU+d.cpu, used.Memory+d.memory
		}
	}

	return used
}
