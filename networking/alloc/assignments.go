// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc

import (
	"net/netip"
	"slices"
)

// assignments stores which owner has which address. To use little memory, it keeps all records in one
// slice, and its maps use numbers instead of pointers and texts where possible.
type assignments struct {
	// records[nilIndex] is not a record.
	records []record
	// firstUnused is the index of the first unused record. Unused records are linked by next.
	firstUnused int32
	// owners maps each owner to the index of its first record.
	owners map[string]int32
	// addresses maps each address to the index of its record.
	addresses [familyCount]map[u128]int32
}

// record is an address in use. A record without an owner is unused.
type record struct {
	Assignment

	// next is the index of the next record of the same owner.
	next int32
}

func newAssignments() assignments {
	b := assignments{records: make([]record, 1), owners: map[string]int32{}}
	for i := range b.addresses {
		b.addresses[i] = map[u128]int32{}
	}

	return b
}

// holder returns the owner of an address, and false if the address has no owner.
func (b *assignments) holder(addr netip.Addr) (string, bool) {
	index, found := b.addresses[FamilyOf(addr)][toUint128(addr)]

	return b.records[index].Owner, found
}

// add stores an address. The address must not have an owner yet.
func (b *assignments) add(h Assignment) {
	index := b.firstUnused
	if index == nilIndex {
		if len(b.records) == cap(b.records) {
			// append would grow a large slice by a quarter only, and so copy the records more often.
			b.records = slices.Grow(b.records, len(b.records))
		}

		b.records = append(b.records, record{})
		//nolint:gosec // G115: two billion records do not fit into memory
		index = int32(len(b.records) - 1)
	} else {
		b.firstUnused = b.records[index].next
	}

	b.records[index] = record{Assignment: h, next: b.owners[h.Owner]}
	b.owners[h.Owner] = index

	addr := h.Address.Addr()
	b.addresses[FamilyOf(addr)][toUint128(addr)] = index
}

// update replaces the record of an address. The address must already have the same owner.
func (b *assignments) update(h Assignment) {
	addr := h.Address.Addr()
	b.records[b.addresses[FamilyOf(addr)][toUint128(addr)]].Assignment = h
}

// removeOwner deletes all addresses of an owner, and returns them in ascending order.
func (b *assignments) removeOwner(owner string) []Assignment {
	removed := b.listOwner(owner)

	for index := b.owners[owner]; index != nilIndex; {
		next := b.records[index].next
		b.records[index] = record{next: b.firstUnused}
		b.firstUnused, index = index, next
	}

	delete(b.owners, owner)

	for _, h := range removed {
		addr := h.Address.Addr()
		delete(b.addresses[FamilyOf(addr)], toUint128(addr))
	}

	return removed
}

// listOwner returns the addresses of an owner in ascending order.
func (b *assignments) listOwner(owner string) []Assignment {
	index := b.owners[owner]
	if index == nilIndex {
		return nil
	}

	out := make([]Assignment, 0, familyCount)
	for ; index != nilIndex; index = b.records[index].next {
		out = append(out, b.records[index].Assignment)
	}

	slices.SortFunc(out, compareByAddress)

	return out
}

// filter returns the addresses that keep accepts, in ascending order.
func (b *assignments) filter(keep func(Assignment) bool) []Assignment {
	var out []Assignment

	for _, r := range b.records {
		if r.Owner != "" && keep(r.Assignment) {
			out = append(out, r.Assignment)
		}
	}

	slices.SortFunc(out, compareByAddress)

	return out
}

func compareByAddress(a, b Assignment) int { return a.Address.Addr().Compare(b.Address.Addr()) }
