// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc

import (
	"slices"
)

// layout numbers the addresses of one family that a pool can allocate. The numbers start at 0 and follow
// the order in which the pool allocates the addresses.
type layout struct {
	family Family
	// inOrder has the fragments in the order of their numbers, and byAddress has the same fragments in the
	// order of their addresses.
	inOrder, byAddress []fragment
	// size is the number of addresses. It never wraps, because a pool cannot contain the addresses that
	// no machine can use.
	size u128
}

// fragment is a run of addresses.
type fragment struct {
	span

	// offset is the number of the first address.
	offset u128
	// bits is the prefix length of the addresses.
	bits int
}

// appendRun adds a run of addresses. The layout must not contain any of them yet.
func (l *layout) appendRun(r span, bits int) {
	l.inOrder = append(l.inOrder, fragment{span: r, offset: l.size, bits: bits})
	l.size = l.size.plus(r.last.minus(r.first)).next()
}

// finish prepares the layout for look-ups. Call it after the last appendRun.
func (l *layout) finish() {
	l.byAddress = slices.Clone(l.inOrder)
	slices.SortFunc(l.byAddress, func(a, b fragment) int { return a.first.cmp(b.first) })
}

// find returns the number and the prefix length of an address, and false if the layout does not contain it.
func (l *layout) find(addr u128) (position u128, bits int, found bool) {
	i, _ := slices.BinarySearchFunc(l.byAddress, addr, func(f fragment, a u128) int { return f.last.cmp(a) })
	if i == len(l.byAddress) || addr.less(l.byAddress[i].first) {
		return u128{}, 0, false
	}

	f := l.byAddress[i]

	return f.offset.plus(addr.minus(f.first)), f.bits, true
}

// address returns the address with the number position, and its prefix length. position must be less than
// size.
func (l *layout) address(position u128) (addr u128, bits int) {
	i, found := slices.BinarySearchFunc(l.inOrder, position, func(f fragment, n u128) int { return f.offset.cmp(n) })
	if !found {
		i--
	}

	f := l.inOrder[i]

	return f.first.plus(position.minus(f.offset)), f.bits
}

// listRuns returns the addresses whose numbers are in a span, in the order of their numbers.
func (l *layout) listRuns(r span) []span {
	i, found := slices.BinarySearchFunc(l.inOrder, r.first, func(f fragment, n u128) int { return f.offset.cmp(n) })
	if !found {
		i--
	}

	var out []span

	for ; i < len(l.inOrder) && !r.last.less(l.inOrder[i].offset); i++ {
		f := l.inOrder[i]
		first := maxUint128(f.offset, r.first)
		last := minUint128(f.offset.plus(f.last.minus(f.first)), r.last)

		out = append(out, span{first: f.first.plus(first.minus(f.offset)), last: f.first.plus(last.minus(f.offset))})
	}

	return out
}

// findOverlap returns the first span of addresses that both layouts contain, and false if there is none.
func (l *layout) findOverlap(other *layout) (span, bool) {
	for i, j := 0, 0; i < len(l.byAddress) && j < len(other.byAddress); {
		a, b := l.byAddress[i].span, other.byAddress[j].span
		if a.overlaps(b) {
			return span{first: maxUint128(a.first, b.first), last: minUint128(a.last, b.last)}, true
		}

		if a.last.less(b.first) {
			i++
		} else {
			j++
		}
	}

	return span{}, false
}
