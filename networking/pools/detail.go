// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"slices"

	"github.com/hyperfleet/hyperfleet/networking/alloc"
)

// Detail is the status of a pool with its assignments.
type Detail struct {
	Status

	// Assignments are the addresses in use that the pool contains, and those that it contained before it
	// shrank, in ascending order. They include addresses on networks that may be the pool's network.
	Assignments []alloc.Assignment
	// IsNoLongerInPool is true for each of these addresses that the pool no longer contains.
	IsNoLongerInPool map[alloc.Assignment]bool
	// FreeRanges are the ranges of addresses that can be allocated now, IPv4 first, in the order of allocation.
	FreeRanges []alloc.Range
	// Queue lists the waiting owners. The first owner is served first.
	Queue []string
}

// listRelatedAssignments returns the addresses of a pool that machines have on related networks (see listRelated), for example
// since before the network of their template was known.
func (a *AddressRegistry) listRelatedAssignments(networkName, pool string) []alloc.Assignment {
	var out []alloc.Assignment

	n := a.networks[networkName]

	for _, other := range a.listRelated(networkName) {
		for _, assignment := range a.networks[other].addresses.Assignments() {
			if _, isInPool := n.pools[pool].Addresses.PrefixFor(assignment.Address.Addr()); isInPool {
				out = append(out, assignment)
			}
		}
	}

	return out
}

// Detail returns the detail of a pool, with at most limit ranges of free addresses of each family. It returns
// false if the registry does not have the pool.
func (a *AddressRegistry) Detail(pool string, limit int) (Detail, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()

	networkName, found := a.networkByPool[pool]
	if !found {
		return Detail{}, false
	}

	n := a.networks[networkName]
	out := Detail{Status: n.status(networkName, pool), IsNoLongerInPool: map[alloc.Assignment]bool{}}

	for _, assignment := range n.addresses.AssignmentsNoLongerIn(pool) {
		out.IsNoLongerInPool[assignment] = true
	}

	for _, assignment := range n.addresses.Assignments() {
		_, isInPool := n.pools[pool].Addresses.PrefixFor(assignment.Address.Addr())
		if isInPool || out.IsNoLongerInPool[assignment] {
			out.Assignments = append(out.Assignments, assignment)
		}
	}

	out.Assignments = append(out.Assignments, a.listRelatedAssignments(networkName, pool)...)
	slices.SortFunc(out.Assignments, func(x, y alloc.Assignment) int { return x.Address.Addr().Compare(y.Address.Addr()) })

	for _, family := range []alloc.Family{alloc.IPv4, alloc.IPv6} {
		out.FreeRanges = append(out.FreeRanges, n.addresses.FreeRanges(pool, family, limit)...)
	}

	for _, w := range n.queues[pool] {
		out.Queue = append(out.Queue, w.owner)
	}

	return out, true
}
