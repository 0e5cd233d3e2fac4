// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc

import (
	"slices"
)

// layout numbers the addresses of one family that a pool gives, from 0, in the order in
// which it gives them.
type layout struct {
	family Family
	// inOrder and byAddress are the same fragments.
	inOrder, byAddress []fragment
	// size is how many addresses there are. It never wraps: the addresses that no
	// machine may have are never in a pool.
	size u128
}

// fragment is a run of addresses.
type fragment struct {
	span

	// at is the number of the first one.
	at u128
	// bits is the prefix length of its addresses.
	bits int
}

// append adds a run of addresses, none of which is there already.
func (l *layout) append(in span, bits int) {
	l.inOrder = append(l.inOrder, fragment{span: in, at: l.size, bits: bits})
	l.size = l.size.plus(in.last.minus(in.first)).next()
}

// finish has to be called after the last append.
func (l *layout) finish() {
	l.byAddress = slices.Clone(l.inOrder)
	slices.SortFunc(l.byAddress, func(a, b fragment) int { return a.first.cmp(b.first) })
}

// find says which number an address has, and the prefix length.
func (l *layout) find(addr u128) (at u128, bits int, found bool) {
	i, _ := slices.BinarySearchFunc(l.byAddress, addr, func(f fragment, a u128) int { return f.last.cmp(a) })
	if i == len(l.byAddress) || addr.less(l.byAddress[i].first) {
		return u128{}, 0, false
	}

	f := l.byAddress[i]

	return f.at.plus(addr.minus(f.first)), f.bits, true
}

// address is the one with a number that is less than size, and its prefix length.
func (l *layout) address(at u128) (addr u128, bits int) {
	i, found := slices.BinarySearchFunc(l.inOrder, at, func(f fragment, at u128) int { return f.at.cmp(at) })
	if !found {
		i--
	}

	f := l.inOrder[i]

	return f.first.plus(at.minus(f.at)), f.bits
}

// runs are the addresses whose numbers are in a span, in order.
func (l *layout) runs(in span) []span {
	i, found := slices.BinarySearchFunc(l.inOrder, in.first, func(f fragment, at u128) int { return f.at.cmp(at) })
	if !found {
		i--
	}

	var out []span

	for ; i < len(l.inOrder) && !in.last.less(l.inOrder[i].at); i++ {
		f := l.inOrder[i]
		first := higher(f.at, in.first)
		last := lower(f.at.plus(f.last.minus(f.first)), in.last)

		out = append(out, span{first: f.first.plus(first.minus(f.at)), last: f.first.plus(last.minus(f.at))})
	}

	return out
}

// common is the first run of addresses that both layouts have.
func (l *layout) common(m *layout) (span, bool) {
	for i, j := 0, 0; i < len(l.byAddress) && j < len(m.byAddress); {
		a, b := l.byAddress[i].span, m.byAddress[j].span
		if a.meets(b) {
			return span{first: higher(a.first, b.first), last: lower(a.last, b.last)}, true
		}

		if a.last.less(b.first) {
			i++
		} else {
			j++
		}
	}

	return span{}, false
}
