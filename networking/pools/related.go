// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
)

// listRelated returns the names of the networks that are related to a network, sorted. Two networks with different names are
// related if they may be one network (hypervisor.MayBeSameNetwork). Their pools must not overlap, and neither of them may
// allocate an address that the other one uses.
func (a *AddressRegistry) listRelated(name string) []string {
	var out []string

	for other := range a.networks {
		if other != name && hypervisor.MayBeSameNetwork(name, other) {
			out = append(out, other)
		}
	}

	slices.Sort(out)

	return out
}

// occupyRelatedAddresses marks the addresses that related networks use as occupied in a new network.
func (a *AddressRegistry) occupyRelatedAddresses(name string, n *network) {
	for _, other := range a.listRelated(name) {
		addresses := a.networks[other].addresses
		for _, addr := range append(listAddresses(addresses.Assignments()), addresses.Gateways()...) {
			n.addresses.SetOccupied(addr, addresses.UserOf(addr))
		}
	}
}

// updateRelated marks the addresses as occupied in the related networks if a network uses them, and as not occupied otherwise.
// It returns Wake of the owners that can get addresses now.
func (a *AddressRegistry) updateRelated(name string, addresses ...netip.Addr) []func() {
	var wakeFuncs []func()

	for _, other := range a.listRelated(name) {
		isFreed := false

		for _, addr := range addresses {
			user := a.findUserOnRelated(other, addr)
			isFreed = isFreed || user == ""
			a.networks[other].addresses.SetOccupied(addr, user)
		}

		if isFreed {
			wakeFuncs = append(wakeFuncs, a.networks[other].takeWakeFuncs()...)
		}
	}

	return wakeFuncs
}

// findUserOnRelated returns what uses an address on the networks that are related to a network. It returns an empty text if
// nothing does.
func (a *AddressRegistry) findUserOnRelated(name string, addr netip.Addr) string {
	for _, other := range a.listRelated(name) {
		if user := a.networks[other].addresses.UserOf(addr); user != "" {
			return user
		}
	}

	return ""
}

// checkRelatedPools returns an *alloc.OverlapError if a pool of a related network overlaps the pool. overlapping is this
// network.
func (a *AddressRegistry) checkRelatedPools(p Pool) (overlapping *network, err error) {
	for _, name := range a.listRelated(p.Network) {
		n := a.networks[name]

		for _, other := range slices.Sorted(maps.Keys(n.pools)) {
			overlap, found := p.Addresses.Overlap(n.pools[other].Addresses)
			if !found || other == p.Addresses.Name() {
				continue
			}

			return n, fmt.Errorf("set pool %s: %w", p.Addresses.Name(), &alloc.OverlapError{
				Network: p.Network, Pool: p.Addresses.Name(), Other: other, OtherNetwork: name, Range: overlap,
			})
		}
	}

	return nil, nil //nolint:nilnil // no pool overlaps it
}

func listAddresses(assignments []alloc.Assignment) []netip.Addr {
	out := make([]netip.Addr, 0, len(assignments))
	for _, assignment := range assignments {
		out = append(out, assignment.Address.Addr())
	}

	return out
}
