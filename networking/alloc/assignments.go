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

	// next is the index of the next record of the same owner, or nilIndex.
	next int32
}

func newAssignments() assignments {
	a := assignments{records: make([]record, 1), owners: map[string]int32{}}
	for i := range a.addresses {
		a.addresses[i] = map[u128]int32{}
	}

	return a
}

// holder returns the owner of an address, and false if the address has no owner.
func (a *assignments) holder(addr netip.Addr) (string, bool) {
	index, found := a.addresses[FamilyOf(addr)][toUint128(addr)]

	return a.records[index].Owner, found
}

// add stores an address. The address must not have an owner yet.
func (a *assignments) add(assignment Assignment) {
	index := a.takeUnused()
	a.records[index] = record{Assignment: assignment, next: a.owners[assignment.Owner]} // nilIndex for the owner's first address
	a.owners[assignment.Owner] = index

	addr := assignment.Address.Addr()
	a.addresses[FamilyOf(addr)][toUint128(addr)] = index
}

// takeUnused returns the index of an unused record, which is no longer linked. It adds one if there is none.
func (a *assignments) takeUnused() int32 {
	if index := a.firstUnused; index != nilIndex {
		a.firstUnused = a.records[index].next

		return index
	}

	if len(a.records) == cap(a.records) {
		// append would grow a large slice by a quarter only, and so copy the records more often.
		a.records = slices.Grow(a.records, len(a.records))
	}

	a.records = append(a.records, record{})

	return int32(len(a.records) - 1) //nolint:gosec // G115: two billion records do not fit into memory
}

// update replaces the record of an address. The address must already have the same owner.
func (a *assignments) update(assignment Assignment) {
	addr := assignment.Address.Addr()
	a.records[a.addresses[FamilyOf(addr)][toUint128(addr)]].Assignment = assignment
}

// removeOwner deletes all addresses of an owner, and returns them in ascending order.
func (a *assignments) removeOwner(owner string) []Assignment {
	removed := a.listOwner(owner)

	for index := a.owners[owner]; index != nilIndex; {
		next := a.records[index].next
		a.records[index] = record{next: a.firstUnused}
		a.firstUnused, index = index, next
	}

	delete(a.owners, owner)

	for _, assignment := range removed {
		addr := assignment.Address.Addr()
		delete(a.addresses[FamilyOf(addr)], toUint128(addr))
	}

	return removed
}

// listOwner returns the addresses of an owner in ascending order.
func (a *assignments) listOwner(owner string) []Assignment {
	index := a.owners[owner]
	if index == nilIndex {
		return nil
	}

	out := make([]Assignment, 0, familyCount)
	for ; index != nilIndex; index = a.records[index].next {
		out = append(out, a.records[index].Assignment)
	}

	slices.SortFunc(out, compareByAddress)

	return out
}

// filter returns the addresses that keep accepts, in ascending order.
func (a *assignments) filter(keep func(Assignment) bool) []Assignment {
	var out []Assignment

	for _, r := range a.records {
		if r.Owner != "" && keep(r.Assignment) {
			out = append(out, r.Assignment)
		}
	}

	slices.SortFunc(out, compareByAddress)

	return out
}

func compareByAddress(a, b Assignment) int { return a.Address.Addr().Compare(b.Address.Addr()) }
