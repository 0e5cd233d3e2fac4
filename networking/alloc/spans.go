// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc

import "slices"

// span is all numbers from first to last, both included.
type span struct{ first, last u128 }

func (s span) meets(t span) bool { return !s.last.less(t.first) && !t.last.less(s.first) }
func (s span) single() bool      { return s.first == s.last }
func (s span) holds(t span) bool { return !t.first.less(s.first) && !s.last.less(t.last) }

// spans are disjoint and ascending, and no two of them touch.
type spans []span

// from is the index of the first span that ends at n or after it.
func (s spans) from(n u128) int {
	i, _ := slices.BinarySearchFunc(s, n, func(in span, n u128) int { return in.last.cmp(n) })

	return i
}

// add joins a span with those that are there.
func (s spans) add(in span) spans {
	// Also the neighbours that merely touch are joined.
	first := s.from(in.first)
	if first > 0 && s[first-1].last.next() == in.first {
		first--
	}

	end := first
	for end < len(s) && (s[end].meets(in) || in.last.next() == s[end].first || s[end].last.next() == in.first) {
		in = span{first: lower(in.first, s[end].first), last: higher(in.last, s[end].last)}
		end++
	}

	return slices.Replace(s, first, end, in)
}

// missing are the parts of a span that s has not.
func (s spans) missing(in span) []span {
	var out []span

	for i := s.from(in.first); i < len(s) && s[i].meets(in); i++ {
		if in.first.less(s[i].first) {
			out = append(out, span{first: in.first, last: s[i].first.previous()})
		}

		if !s[i].last.less(in.last) {
			return out
		}

		in.first = s[i].last.next()
	}

	return append(out, in)
}

func (s spans) meet(in span) bool {
	i := s.from(in.first)

	return i < len(s) && s[i].meets(in)
}

func lower(a, b u128) u128 {
	if b.less(a) {
		return b
	}

	return a
}

func higher(a, b u128) u128 {
	if a.less(b) {
		return b
	}

	return a
}
