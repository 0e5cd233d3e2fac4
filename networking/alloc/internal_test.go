// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc

import (
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"reflect"
	"testing"

	"github.com/leanovate/gopter"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"

	"github.com/hyperfleet/hyperfleet/kit/property"
)

// base is the first number of the small universes of these tests. The universes cross the border between
// the two halves of a number.
var base = u128{lo: math.MaxUint64 - 31}

func newNumber(i int) u128 { return base.plus(u128{lo: uint64(i)}) }

func checkInternalProperty(t *testing.T, name string, condition any, gens ...gopter.Gen) {
	t.Helper()

	property.Check(t, name, property.Options{Runs: 200}, prop.ForAll(condition, gens...))
}

func genLists(limit int) gopter.Gen {
	return gen.IntRange(0, 200).FlatMap(func(n any) gopter.Gen {
		return gen.SliceOfN(n.(int), gen.IntRange(-limit, limit-1))
	}, reflect.TypeFor[[]int]())
}

// listIntervals returns the intervals of a set in ascending order, and an error if the tree is not a treap.
func (s *freeSet) listIntervals(node int32) ([]span, error) {
	if node == nilIndex {
		return nil, nil
	}

	r := s.nodes[node]
	for _, child := range []int32{r.left, r.right} {
		if child != nilIndex && s.nodes[child].priority > r.priority {
			return nil, fmt.Errorf("the node at %v has a child of higher priority", r.first)
		}
	}

	low, err := s.listIntervals(r.left)
	if err != nil {
		return nil, err
	}

	high, err := s.listIntervals(r.right)

	return append(append(low, r.span), high...), err
}

func (s *freeSet) getDepth(node int32) int {
	if node == nilIndex {
		return 0
	}

	return 1 + max(s.getDepth(s.nodes[node].left), s.getDepth(s.nodes[node].right))
}

// The set has the same numbers as a map, in the smallest number of intervals, and reuses unused nodes.
func TestPropertyFreeSet(t *testing.T) {
	t.Parallel()

	const universe = 64

	checkInternalProperty(t, "as a map", func(calls []int) string {
		s, want := newFreeSet(), map[int]bool{}
		s.fill(span{first: newNumber(0), last: newNumber(universe - 1)})

		for i := range universe {
			want[i] = true
		}

		for _, call := range calls {
			// A negative number is removed, and another number is added.
			n := call
			if call < 0 {
				n = -call - 1
			}

			if did := call < 0 && s.removeNumber(newNumber(n)) || call >= 0 && s.addNumber(newNumber(n)); did != (want[n] == (call < 0)) {
				return fmt.Sprintf("%d: did %v", call, did)
			}

			want[n] = call >= 0
		}

		var expected []span

		for i := range universe {
			if s.contains(newNumber(i)) != want[i] {
				return fmt.Sprintf("has %d: %v", i, !want[i])
			}

			switch {
			case want[i] && i > 0 && want[i-1]:
				expected[len(expected)-1].last = newNumber(i)
			case want[i]:
				expected = append(expected, span{first: newNumber(i), last: newNumber(i)})
			}
		}

		got, err := s.listIntervals(s.root)
		if err != nil || !reflect.DeepEqual(got, expected) {
			return fmt.Sprintf("%v, %v, want %v", got, err, expected)
		}

		if lowest, found := s.findLowest(); found != (len(got) > 0) || found && lowest != got[0].first {
			return fmt.Sprintf("lowest %v, %v", lowest, found)
		}

		if len(s.nodes) > universe/2+1 {
			return fmt.Sprintf("%d nodes for %d numbers", len(s.nodes), universe)
		}

		return ""
	}, genLists(universe))
}

// The depth stays logarithmic even if the calls are in ascending order, which turns a plain tree into a
// list.
func TestFreeSetStaysBalanced(t *testing.T) {
	t.Parallel()

	const many = 100_000

	s := newFreeSet()
	s.fill(span{last: u128{lo: 2 * many}})

	for i := range uint64(many) {
		s.removeNumber(u128{lo: 2*i + 1})
	}

	if depth := s.getDepth(s.root); depth > 4*bits.Len(many) {
		t.Errorf("depth %d with %d intervals", depth, many)
	}

	for i := range uint64(many) {
		s.addNumber(u128{lo: 2*i + 1})
	}

	if got, err := s.listIntervals(s.root); err != nil || len(got) != 1 {
		t.Errorf("%d intervals are left, %v", len(got), err)
	}
}

// Spans that overlap or touch are merged, and findGaps returns the numbers that a map does not have.
func TestPropertySpans(t *testing.T) {
	t.Parallel()

	const universe = 64

	checkInternalProperty(t, "as a map", func(starts []int, length int) string {
		var s spans

		has := map[int]bool{}
		clip := func(i int) (int, int) {
			i = max(i, -i-1)

			return i, min(i+(i*7+length)%9, universe-1)
		}

		for i, start := range starts {
			first, last := clip(start)
			r := span{first: newNumber(first), last: newNumber(last)}

			missing := map[int]bool{}

			for _, run := range s.findGaps(r) {
				for n := range universe {
					if !newNumber(n).less(run.first) && !run.last.less(newNumber(n)) {
						missing[n] = true
					}
				}
			}

			meets := false

			for n := first; n <= last; n++ {
				meets = meets || has[n]
				if missing[n] == has[n] {
					return fmt.Sprintf("%d: missing[%d] = %v", i, n, missing[n])
				}
			}

			if s.overlaps(r) != meets {
				return fmt.Sprintf("%d: meet = %v", i, !meets)
			}

			s = s.add(r)
			for n := first; n <= last; n++ {
				has[n] = true
			}
		}

		var want spans

		for i := range universe {
			switch {
			case has[i] && i > 0 && has[i-1]:
				want[len(want)-1].last = newNumber(i)
			case has[i]:
				want = append(want, span{first: newNumber(i), last: newNumber(i)})
			}
		}

		if fmt.Sprint(s) != fmt.Sprint(want) {
			return fmt.Sprintf("%v, want %v", s, want)
		}

		return ""
	}, genLists(universe), gen.IntRange(0, 8))
}

func TestNumbersOfAddresses(t *testing.T) {
	t.Parallel()

	for _, text := range []string{
		"0.0.0.0", "10.0.0.255", "255.255.255.255", "::", "fd00::ffff:ffff:ffff:ffff", "fd00:0:0:1::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
	} {
		addr := netip.MustParseAddr(text)
		family := FamilyOf(addr)

		if got := family.toAddr(toUint128(addr)); got != addr {
			t.Errorf("%s became %s", addr, got)
		}

		if next := family.toAddr(toUint128(addr).next()); addr.Next().IsValid() && next != addr.Next() {
			t.Errorf("after %s comes %s", addr, next)
		}
	}
}
