// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pools

import "github.com/hyperfleet/hyperfleet/networking/alloc"

// Detail is the status of a pool with its assignments.
type Detail struct {
	Status

	// Assignments are the addresses in use that the pool contains, and those that it contained before it
	// shrank, in ascending order.
	Assignments []alloc.Assignment
	// IsOutside is true for each of these addresses that the pool no longer contains.
	IsOutside map[alloc.Assignment]bool
	// FreeRanges are the addresses that can be allocated now, IPv4 first, as runs in the order of allocation.
	FreeRanges []alloc.Range
	// Queue lists the waiting owners. The first owner is served first.
	Queue []string
}

// Detail returns the detail of a pool, with at most limit runs of free addresses of each family. It returns
// false if the registry does not have the pool.
func (b *AddressRegistry) Detail(pool string, limit int) (Detail, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()

	networkName, found := b.networkByPool[pool]
	if !found {
		return Detail{}, false
	}

	n := b.networks[networkName]
	out := Detail{Status: n.status(networkName, pool), IsOutside: map[alloc.Assignment]bool{}}

	for _, assignment := range n.addresses.AssignmentsOutside(pool) {
		out.IsOutside[assignment] = true
	}

	for _, assignment := range n.addresses.Assignments() {
		if _, isInPool := n.pools[pool].Addresses.PrefixFor(assignment.Address.Addr()); isInPool || out.IsOutside[assignment] {
			out.Assignments = append(out.Assignments, assignment)
		}
	}

	for _, family := range []alloc.Family{alloc.IPv4, alloc.IPv6} {
		out.FreeRanges = append(out.FreeRanges, n.addresses.FreeRanges(pool, family, limit)...)
	}

	for _, w := range n.queues[pool] {
		out.Queue = append(out.Queue, w.owner)
	}

	return out, true
}
