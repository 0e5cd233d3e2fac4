// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pools

import "github.com/hyperfleet/hyperfleet/networking/alloc"

// Detail is a pool with who has which address.
type Detail struct {
	Status

	// Held are the addresses in use that the pool gives, and those that it gave before it
	// shrank, by address.
	Held []alloc.Held
	// Outside are those of them that it gives no more.
	Outside map[alloc.Held]bool
	// Unused are the addresses that can be had now, IPv4 first, as runs in the order in which
	// they are given.
	Unused []alloc.Range
	// Queue are the owners that wait, in the order in which it is their turn.
	Queue []string
}

// Detail tells of a pool who has what, with at most so many runs of free addresses of each
// family; false if the address registry does not have it.
func (b *AddressRegistry) Detail(pool string, most int) (Detail, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()

	home, there := b.homes[pool]
	if !there {
		return Detail{}, false
	}

	n := b.networks[home]
	out := Detail{Status: n.status(home, pool), Outside: map[alloc.Held]bool{}}

	for _, held := range n.addresses.Outside(pool) {
		out.Outside[held] = true
	}

	for _, held := range n.addresses.Held() {
		if _, given := n.pools[pool].Addresses.Prefix(held.Address.Addr()); given || out.Outside[held] {
			out.Held = append(out.Held, held)
		}
	}

	for _, family := range []alloc.Family{alloc.IPv4, alloc.IPv6} {
		out.Unused = append(out.Unused, n.addresses.Free(pool, family, most)...)
	}

	for _, w := range n.waiting[pool] {
		out.Queue = append(out.Queue, w.owner)
	}

	return out, true
}
