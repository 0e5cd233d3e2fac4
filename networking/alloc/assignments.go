// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc

import (
	"net/netip"
	"slices"
)

// assignments says who has which address. The records lie in one slice, and the maps have
// numbers for keys and values where they can, to be small.
type assignments struct {
	// records[none] is no record.
	records []record
	// spare is the first of the records not in use, which are linked by next.
	spare int32
	// owners has the first record of each owner.
	owners map[string]int32
	// addresses has the record of each address.
	addresses [families]map[u128]int32
}

// record is an address in use.
type record struct {
	Held

	// next is another one of the same owner.
	next int32
}

func newAssignments() assignments {
	b := assignments{records: make([]record, 1), owners: map[string]int32{}}
	for i := range b.addresses {
		b.addresses[i] = map[u128]int32{}
	}

	return b
}

// holder is who has an address.
func (b *assignments) holder(addr netip.Addr) (string, bool) {
	at, held := b.addresses[FamilyOf(addr)][number(addr)]

	return b.records[at].Owner, held
}

// add writes down an address that nobody has.
func (b *assignments) add(h Held) {
	at := b.spare
	if at == none {
		if len(b.records) == cap(b.records) {
			// Doubled: append would grow it by a quarter only, and copy more.
			b.records = slices.Grow(b.records, len(b.records))
		}

		b.records = append(b.records, record{})
		//nolint:gosec // G115: two thousand million records do not fit into memory
		at = int32(len(b.records) - 1)
	} else {
		b.spare = b.records[at].next
	}

	b.records[at] = record{Held: h, next: b.owners[h.Owner]}
	b.owners[h.Owner] = at

	addr := h.Address.Addr()
	b.addresses[FamilyOf(addr)][number(addr)] = at
}

// change writes anew what is known of an address that the same owner has.
func (b *assignments) change(h Held) {
	addr := h.Address.Addr()
	b.records[b.addresses[FamilyOf(addr)][number(addr)]].Held = h
}

// remove drops all of an owner, and returns it in order.
func (b *assignments) remove(owner string) []Held {
	held := b.of(owner)

	for at := b.owners[owner]; at != none; {
		next := b.records[at].next
		b.records[at] = record{next: b.spare}
		b.spare, at = at, next
	}

	delete(b.owners, owner)

	for _, h := range held {
		addr := h.Address.Addr()
		delete(b.addresses[FamilyOf(addr)], number(addr))
	}

	return held
}

// of is what an owner has, in order.
func (b *assignments) of(owner string) []Held {
	at := b.owners[owner]
	if at == none {
		return nil
	}

	out := make([]Held, 0, families)
	for ; at != none; at = b.records[at].next {
		out = append(out, b.records[at].Held)
	}

	slices.SortFunc(out, byAddress)

	return out
}

// list is all that is wanted, in order.
func (b *assignments) list(want func(Held) bool) []Held {
	var out []Held

	for _, r := range b.records {
		if r.Owner != "" && want(r.Held) {
			out = append(out, r.Held)
		}
	}

	slices.SortFunc(out, byAddress)

	return out
}

func byAddress(a, b Held) int { return a.Address.Addr().Compare(b.Address.Addr()) }
