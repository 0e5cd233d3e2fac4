// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/leanovate/gopter"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"

	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
)

// explainForbidden returns why a pool must never allocate an address. It is empty if the pool may. It parses
// the texts of the spec itself.
func explainForbidden(spec alloc.Spec, given netip.Prefix) string {
	addr := given.Addr()
	inside := func(texts []string) bool {
		return slices.ContainsFunc(texts, func(text string) bool {
			r, err := alloc.ParseRange(text)

			return err == nil && r.Contains(addr)
		})
	}

	if !inside(spec.Addresses) {
		return "it is not in the pool"
	}

	if inside(spec.Excluded) {
		return "it is excluded"
	}

	for _, gateway := range spec.Gateways {
		if parsed, err := netip.ParseAddr(gateway); err == nil && parsed == addr {
			return "it is a gateway"
		}
	}

	whole := given.Masked()
	if whole.Bits() <= addr.BitLen()-2 && (addr == whole.Addr() || (addr.Is4() && !whole.Contains(addr.Next()))) {
		return "it is the first or last address of its subnet"
	}

	return ""
}

// listAddresses returns the addresses of a pool that is small enough for a map with each of its addresses, in
// the order of allocation.
func listAddresses(spec alloc.Spec) []netip.Prefix {
	var out []netip.Prefix

	seen := map[netip.Addr]bool{}

	for _, text := range spec.Addresses {
		r, err := alloc.ParseRange(text)
		if err != nil {
			panic(err)
		}

		bits := spec.PrefixLengthV4
		if r.First.Is6() {
			bits = spec.PrefixLengthV6
		}

		for addr := r.First; addr.IsValid() && !r.Last.Less(addr); addr = addr.Next() {
			given := netip.PrefixFrom(addr, bits)
			cidr := r.Bits >= 0 && r.Bits <= 30 && addr.Is4() && (addr == r.First || addr == r.Last)

			if !seen[addr] && !cidr && explainForbidden(spec, given) == "" {
				out = append(out, given)
			}

			seen[addr] = true
		}
	}

	// The first and last address of a CIDR are never allocated, even if another entry lists them.
	for _, text := range spec.Addresses {
		if r, _ := alloc.ParseRange(text); r.Bits >= 0 && r.Bits <= 30 && r.First.Is4() {
			out = slices.DeleteFunc(out, func(p netip.Prefix) bool { return p.Addr() == r.First || p.Addr() == r.Last })
		}
	}

	return out
}

// genRange generates an entry in 10.0.0.0/24, or in fd00::/120 for IPv6.
func genRange(v6 bool) gopter.Gen {
	return gopter.CombineGens(gen.IntRange(0, 255), gen.IntRange(0, 40), gen.IntRange(0, 3)).Map(func(values []any) string {
		index, length, form := values[0].(int), values[1].(int), values[2].(int)
		name := func(i int) string {
			if v6 {
				return fmt.Sprintf("fd00::%x", i)
			}

			return fmt.Sprintf("10.0.0.%d", i)
		}

		limit := 32
		if v6 {
			limit = 128
		}

		switch form {
		case 0:
			return fmt.Sprintf("%s/%d", name(index), limit)
		case 1:
			bits := 2 + length%4

			return fmt.Sprintf("%s/%d", name(index>>bits<<bits), limit-bits)
		default:
			return name(index) + "-" + name(min(index+length, 255))
		}
	})
}

// genSpec generates specs of up to a few hundred addresses, of one family or both. NewPool refuses some of
// them. genPool leaves these out.
func genSpec() gopter.Gen {
	entries := func(v6 bool, limit int) gopter.Gen {
		return gen.IntRange(0, limit).FlatMap(func(n any) gopter.Gen { return gen.SliceOfN(n.(int), genRange(v6)) }, stringsType)
	}

	return gopter.CombineGens(
		entries(false, 4), entries(true, 3), entries(false, 3), entries(true, 2), gen.IntRange(1, 254), gen.IntRange(1, 255), gen.IntRange(0, 3),
	).Map(func(values []any) alloc.Spec {
		v4, v6, not4, not6 := values[0].([]string), values[1].([]string), values[2].([]string), values[3].([]string)
		spec := alloc.Spec{Addresses: slices.Concat(v4, v6)}

		if len(v4) > 0 {
			spec.PrefixLengthV4 = 24
			spec.Excluded = append(spec.Excluded, not4...)

			if values[6].(int)&1 != 0 {
				spec.Gateways = append(spec.Gateways, fmt.Sprintf("10.0.0.%d", values[4]))
			}
		}

		if len(v6) > 0 {
			spec.PrefixLengthV6 = 120
			spec.Excluded = append(spec.Excluded, not6...)

			if values[6].(int)&2 != 0 {
				spec.Gateways = append(spec.Gateways, fmt.Sprintf("fd00::%x", values[5]))
			}
		}

		return removeInvalid(spec)
	})
}

// removeInvalid removes the exclusions and single addresses that NewPool would refuse.
func removeInvalid(spec alloc.Spec) alloc.Spec {
	for range 20 {
		_, err := alloc.NewPool("p", spec)

		var wrong *alloc.SpecError
		if !errors.As(err, &wrong) {
			return spec
		}

		var i int
		if _, err := fmt.Sscanf(wrong.Field, "excludedAddresses[%d]", &i); err == nil {
			spec.Excluded = slices.Delete(slices.Clone(spec.Excluded), i, i+1)
		} else if _, err := fmt.Sscanf(wrong.Field, "addresses[%d]", &i); err == nil {
			spec.Addresses = slices.Delete(slices.Clone(spec.Addresses), i, i+1)
		} else {
			return spec
		}
	}

	return spec
}

func genPool() gopter.Gen {
	one := genSpec().SuchThat(func(spec alloc.Spec) bool {
		_, err := alloc.NewPool("p", spec)

		return err == nil
	})

	// NewPool refuses most specs. Skip them here, so they do not count as runs.
	return func(parameters *gopter.GenParameters) *gopter.GenResult {
		for {
			result := one(parameters)
			if _, ok := result.Retrieve(); ok {
				return result
			}
		}
	}
}

// genOtherPool and genLaterOperations name the second of two generated values.
func genOtherPool() gopter.Gen       { return genPool() }
func genLaterOperations() gopter.Gen { return genOperations() }

// operation is one call: the owner, whether it acquires or releases, and the address.
type operation struct {
	owner     int
	isRelease bool
	want      int
}

func genOperations() gopter.Gen {
	one := gopter.CombineGens(gen.IntRange(0, 60), gen.Bool(), gen.IntRange(-300, 255)).Map(func(v []any) operation {
		return operation{owner: v[0].(int), isRelease: v[1].(bool), want: v[2].(int)}
	})

	return gen.IntRange(0, 120).FlatMap(func(n any) gopter.Gen { return gen.SliceOfN(n.(int), one) }, operationsType)
}

// referenceAllocator is a simple allocator that ignores time and memory.
type referenceAllocator struct {
	order []netip.Prefix
	taken map[netip.Addr]string
}

func (o *referenceAllocator) listFamilies() []int {
	var out []int

	for _, bits := range []int{32, 128} {
		if slices.ContainsFunc(o.order, func(p netip.Prefix) bool { return p.Addr().BitLen() == bits }) {
			out = append(out, bits)
		}
	}

	return out
}

func (o *referenceAllocator) getAddresses(owner string) []netip.Addr {
	var out []netip.Addr

	for addr, has := range o.taken {
		if has == owner {
			out = append(out, addr)
		}
	}

	slices.SortFunc(out, netip.Addr.Compare)

	return out
}

// acquire returns the addresses of the owner after the call, and false if the address is not available.
func (o *referenceAllocator) acquire(owner string, want netip.Addr) ([]netip.Addr, bool) {
	now := maps.Clone(o.taken)
	has := map[int]bool{}

	for _, addr := range o.getAddresses(owner) {
		has[addr.BitLen()] = true
	}

	if want.IsValid() && o.taken[want] != owner {
		_, taken := o.taken[want]
		if taken || has[want.BitLen()] || !slices.ContainsFunc(o.order, func(p netip.Prefix) bool { return p.Addr() == want }) {
			return nil, false
		}

		now[want] = owner
		has[want.BitLen()] = true
	}

	for _, bits := range o.listFamilies() {
		if has[bits] {
			continue
		}

		i := slices.IndexFunc(o.order, func(p netip.Prefix) bool { return p.Addr().BitLen() == bits && now[p.Addr()] == "" })
		if i < 0 {
			return nil, false
		}

		now[o.order[i].Addr()] = owner
	}

	o.taken = now

	return o.getAddresses(owner), true
}

func (o *referenceAllocator) release(owner string) {
	maps.DeleteFunc(o.taken, func(_ netip.Addr, has string) bool { return has == owner })
}

// compareCalls makes the same calls to both, and returns a difference in the results or in the number of free
// addresses.
func compareCalls(n *alloc.Network, o *referenceAllocator, deeds []operation) string {
	for i, d := range deeds {
		owner := fmt.Sprintf("m%d", d.owner)

		if d.isRelease {
			if got, want := len(n.Release(owner)), len(o.getAddresses(owner)); got != want {
				return fmt.Sprintf("%d: %d addresses of %s were released, want %d", i, got, owner, want)
			}

			o.release(owner)

			continue
		}

		var wanted []netip.Addr
		if d.want >= 0 {
			wanted = []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(d.want)})}
		}

		got, err := n.Acquire("p", owner, wanted...)

		want, possible := o.acquire(owner, append(wanted, netip.Addr{})[0])
		if possible != (err == nil) {
			return fmt.Sprintf("%d: %s got %v, %v, want %v", i, owner, got, err, want)
		}

		if possible && fmt.Sprint(listAddrs(got)) != fmt.Sprint(want) {
			return fmt.Sprintf("%d: %s got %v, want %v", i, owner, got, want)
		}
	}

	for family, bits := range map[alloc.Family]int{alloc.IPv4: 32, alloc.IPv6: 128} {
		var want alloc.Usage

		for _, p := range o.order {
			if p.Addr().BitLen() == bits {
				want.Size++

				if o.taken[p.Addr()] == "" {
					want.Free++
				}
			}
		}

		if got := n.Usage("p", family); got != want {
			return fmt.Sprintf("%s: %+v, want %+v", family, got, want)
		}
	}

	return ""
}

func listAddrs(prefixes []netip.Prefix) []netip.Addr {
	out := make([]netip.Addr, 0, len(prefixes))
	for _, p := range prefixes {
		out = append(out, p.Addr())
	}

	return out
}

func checkProperty(t *testing.T, name string, condition any, gens ...gopter.Gen) {
	t.Helper()

	property.Check(t, name, property.Options{Runs: 200}, prop.ForAll(condition, gens...))
}

// Each allocated address is in the pool, and is not excluded, a gateway, or the first or last address of a
// subnet. No address is allocated twice. Until the pool is exhausted, all allowed addresses are allocated
// in the order of the list.
func TestPropertyGivesEachAddressOnceAndNoOther(t *testing.T) {
	t.Parallel()

	checkProperty(t, "all that may be given, in order", func(spec alloc.Spec) string {
		n := newNetwork(t, newPool(t, "p", spec))
		order := map[int][]netip.Prefix{}

		for _, p := range listAddresses(spec) {
			order[p.Addr().BitLen()] = append(order[p.Addr().BitLen()], p)
		}

		end := len(listAddresses(spec))
		for _, of := range order {
			end = min(end, len(of))
		}

		for i := 0; ; i++ {
			got, err := n.Acquire("p", strconv.Itoa(i))

			if (err != nil) != (i == end) {
				return fmt.Sprintf("%d of %d: %v", i, end, err)
			}

			if err != nil {
				return ""
			}

			for _, p := range got {
				if want := order[p.Addr().BitLen()][i]; p != want {
					return fmt.Sprintf("%d is %s, want %s", i, p, want)
				}
			}
		}
	}, genPool())
}

// Requests with or without an address and releases in any order have the same results as a map, and the
// numbers of free addresses are correct.
func TestPropertyAgreesWithAMap(t *testing.T) {
	t.Parallel()

	checkProperty(t, "the map agrees", func(spec alloc.Spec, deeds []operation) string {
		n := newNetwork(t, newPool(t, "p", spec))
		o := &referenceAllocator{order: listAddresses(spec), taken: map[netip.Addr]string{}}

		return compareCalls(n, o, deeds)
	}, genPool(), genOperations())
}

// A network that is rebuilt from the statuses behaves like the network that wrote them, in either order of
// reading pools and statuses.
func TestPropertyRebuiltGoesOnAlike(t *testing.T) {
	t.Parallel()

	checkProperty(t, "alike", func(spec alloc.Spec, before, after []operation) string {
		p := newPool(t, "p", spec)
		n := newNetwork(t, p)
		o := &referenceAllocator{order: listAddresses(spec), taken: map[netip.Addr]string{}}

		if wrong := compareCalls(n, o, before); wrong != "" {
			return wrong
		}

		rebuilt, err := alloc.Rebuild("net", []*alloc.Pool{p}, n.Assignments())
		if err != nil {
			return err.Error()
		}

		late := alloc.NewNetwork("net")
		for _, h := range slices.Backward(n.Assignments()) {
			if err := late.Restore(h); err != nil {
				return err.Error()
			}
		}

		setPool(t, late, p)

		for name, other := range map[string]*alloc.Network{"rebuilt": rebuilt, "late": late} {
			if diff := cmp.Diff(n.Assignments(), other.Assignments(), compareAddresses); diff != "" {
				return name + ": " + diff
			}

			if wrong := compareCalls(other, &referenceAllocator{order: o.order, taken: maps.Clone(o.taken)}, after); wrong != "" {
				return name + ": " + wrong
			}
		}

		return compareCalls(n, o, after)
	}, genPool(), genOperations(), genLaterOperations())
}

// A pool that grows, shrinks or is replaced takes no address from an owner and allocates no address twice.
// It reports the addresses that it no longer contains, and behaves like a map.
func TestPropertyChangedPoolsKeepWhatIsInUse(t *testing.T) {
	t.Parallel()

	checkProperty(t, "kept", func(first, second alloc.Spec, before, after []operation) string {
		n := newNetwork(t, newPool(t, "p", first))
		o := &referenceAllocator{order: listAddresses(first), taken: map[netip.Addr]string{}}

		if wrong := compareCalls(n, o, before); wrong != "" {
			return wrong
		}

		held := n.Assignments()
		outside := setPool(t, n, newPool(t, "p", second))
		o.order = listAddresses(second)

		if diff := cmp.Diff(held, n.Assignments(), compareAddresses); diff != "" {
			return diff
		}

		want := slices.DeleteFunc(held, func(h alloc.Assignment) bool {
			return slices.ContainsFunc(o.order, func(p netip.Prefix) bool { return p.Addr() == h.Address.Addr() })
		})
		if diff := cmp.Diff(want, outside, compareAddresses); diff != "" {
			return diff
		}

		return compareCalls(n, o, after)
	}, genPool(), genOtherPool(), genOperations(), genLaterOperations())
}

// Two accepted pools of one network never allocate the same address, and two pools of which one is refused
// share an address.
func TestPropertyPoolsOfANetworkShareNothing(t *testing.T) {
	t.Parallel()

	checkProperty(t, "nothing shared", func(a, b alloc.Spec) string {
		var both []string

		for _, p := range listAddresses(a) {
			if slices.ContainsFunc(listAddresses(b), func(q netip.Prefix) bool { return q.Addr() == p.Addr() }) {
				both = append(both, p.Addr().String())
			}
		}

		n := newNetwork(t, newPool(t, "a", a))
		_, err := n.SetPool(newPool(t, "b", b))

		var overlap *alloc.OverlapError

		switch {
		case (err != nil) != (len(both) > 0):
			return fmt.Sprintf("%v, and both give %v", err, both)
		case errors.As(err, &overlap) && !slices.Contains(both, overlap.Range.First.String()):
			return fmt.Sprintf("%v, and both give %v", err, both)
		default:
			return ""
		}
	}, genPool(), genOtherPool())
}

// Concurrent owners get different addresses. This test is also for the race detector.
func TestConcurrentOwners(t *testing.T) {
	t.Parallel()

	const many, rounds = 32, 20

	p := newPool(t, "p", alloc.Spec{Addresses: []string{"10.0.0.0/24", "fd00::/64"}})
	n := newNetwork(t, p)

	var group sync.WaitGroup

	for i := range many {
		group.Go(func() {
			owner := fmt.Sprintf("m%d", i)

			for range rounds {
				if _, err := acquireText(n, "p", owner); err != nil {
					t.Error(err)
				}

				n.Usage("p", alloc.IPv4)
				n.AssignmentsNoLongerIn("p")
				setPool(t, n, p)

				if i%2 == 0 {
					n.Release(owner)
				}
			}
		})
	}

	group.Wait()

	has := map[netip.Prefix]bool{}
	for _, held := range n.Assignments() {
		has[held.Address] = true
	}

	if len(has) != many || len(n.Assignments()) != many {
		t.Errorf("%d addresses are in use, %d different ones, want %d: two for each that did not release", len(n.Assignments()), len(has), many)
	}
}
