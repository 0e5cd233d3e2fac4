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

// listRelated returns the names of the other networks that may be the same one as a network, sorted. Their pools must not
// overlap its pools, and it must not allocate the addresses that they use.
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

// adopt makes a new network respect the addresses that other networks use.
func (a *AddressRegistry) adopt(name string, n *network) {
	for _, other := range a.listRelated(name) {
		addresses := a.networks[other].addresses
		for _, addr := range append(listAddresses(addresses.Assignments()), addresses.Gateways()...) {
			n.addresses.SetOccupied(addr, addresses.UserOf(addr))
		}
	}
}

// publish makes the other networks that may be the same one respect whether a network uses the addresses. It returns the
// functions that wake owners if the network no longer uses them.
func (a *AddressRegistry) publish(name string, addresses ...netip.Addr) []func() {
	var wakeFuncs []func()

	for _, other := range a.listRelated(name) {
		isFreed := false

		for _, addr := range addresses {
			user := a.userBeside(other, addr)
			isFreed = isFreed || user == ""
			a.networks[other].addresses.SetOccupied(addr, user)
		}

		if isFreed {
			wakeFuncs = append(wakeFuncs, a.networks[other].takeWakeFuncs()...)
		}
	}

	return wakeFuncs
}

// userBeside returns what uses an address on the networks that may be the same one as a network.
func (a *AddressRegistry) userBeside(name string, addr netip.Addr) string {
	for _, other := range a.listRelated(name) {
		if user := a.networks[other].addresses.UserOf(addr); user != "" {
			return user
		}
	}

	return ""
}

// checkRelatedPools returns the first network that may be the pool's network and has a pool that overlaps it, with an
// *alloc.OverlapError.
func (a *AddressRegistry) checkRelatedPools(p Pool) (*network, error) {
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
