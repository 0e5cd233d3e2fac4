// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc

import "slices"

// span contains all numbers from first to last, including both.
type span struct{ first, last u128 }

func (s span) overlaps(t span) bool { return !s.last.less(t.first) && !t.last.less(s.first) }
func (s span) isSingle() bool       { return s.first == s.last }
func (s span) contains(t span) bool { return !t.first.less(s.first) && !s.last.less(t.last) }

// spans is a list of disjoint, ascending spans that do not touch.
type spans []span

// indexFrom returns the index of the first span that ends at or after n.
func (s spans) indexFrom(n u128) int {
	i, _ := slices.BinarySearchFunc(s, n, func(r span, n u128) int { return r.last.cmp(n) })

	return i
}

// add merges a span into the list, and returns the new list.
func (s spans) add(r span) spans {
	// Neighbours that only touch the span are merged too.
	first := s.indexFrom(r.first)
	if first > 0 && s[first-1].last.next() == r.first {
		first--
	}

	end := first
	for end < len(s) && (s[end].overlaps(r) || r.last.next() == s[end].first || s[end].last.next() == r.first) {
		r = span{first: minUint128(r.first, s[end].first), last: maxUint128(r.last, s[end].last)}
		end++
	}

	return slices.Replace(s, first, end, r)
}

// findGaps returns the parts of a span that s does not contain.
func (s spans) findGaps(r span) []span {
	var out []span

	for i := s.indexFrom(r.first); i < len(s) && s[i].overlaps(r); i++ {
		if r.first.less(s[i].first) {
			out = append(out, span{first: r.first, last: s[i].first.previous()})
		}

		if !s[i].last.less(r.last) {
			return out
		}

		r.first = s[i].last.next()
	}

	return append(out, r)
}

func (s spans) overlaps(r span) bool {
	i := s.indexFrom(r.first)

	return i < len(s) && s[i].overlaps(r)
}

func minUint128(a, b u128) u128 {
	if b.less(a) {
		return b
	}

	return a
}

func maxUint128(a, b u128) u128 {
	if a.less(b) {
		return b
	}

	return a
}
