// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/networking/alloc"
)

func TestASpecificAddress(t *testing.T) {
	t.Parallel()

	n := newNetwork(t,
		newPool(t, "p", alloc.Spec{
			Addresses: []string{"10.0.0.0/24", "fd00::/64"}, Excluded: []string{"10.0.0.9/32"}, Gateways: []string{"10.0.0.1"},
		}),
		newPool(t, "q", alloc.Spec{
			Addresses: []string{"10.0.1.0/24"}, Gateways: []string{"10.0.0.7"}, PrefixLengthV4: 16,
		}))

	if got, err := acquireText(n, "p", "a", "10.0.0.50"); err != nil || got != "10.0.0.50/24 fd00::1/64" {
		t.Fatalf("got %q, %v: the other family is the lowest free", got, err)
	}

	if got, err := acquireText(n, "p", "b", "fd00::50", "10.0.0.51"); err != nil || got != "10.0.0.51/24 fd00::50/64" {
		t.Fatalf("got %q, %v", got, err)
	}

	if got, err := acquireText(n, "p", "a", "10.0.0.50"); err != nil || got != "10.0.0.50/24 fd00::1/64" {
		t.Fatalf("got %q, %v: asking again changes nothing", got, err)
	}

	cases := map[string]struct {
		owner  string
		want   []string
		refuse alloc.Refusal
		holder string
	}{
		"outside":                            {"x", []string{"10.0.9.1"}, alloc.RefusedNotInPool, ""},
		"another pool's":                     {"x", []string{"10.0.1.5"}, alloc.RefusedNotInPool, ""},
		"excluded":                           {"x", []string{"10.0.0.9"}, alloc.RefusedExcluded, ""},
		"the gateway":                        {"x", []string{"10.0.0.1"}, alloc.RefusedGateway, ""},
		"another pool's gateway":             {"x", []string{"10.0.0.7"}, alloc.RefusedGateway, ""},
		"broadcast":                          {"x", []string{"10.0.0.255"}, alloc.RefusedReserved, ""},
		"network":                            {"x", []string{"10.0.0.0"}, alloc.RefusedReserved, ""},
		"anycast":                            {"x", []string{"fd00::"}, alloc.RefusedReserved, ""},
		"of another owner":                   {"x", []string{"10.0.0.50"}, alloc.RefusedInUse, "a"},
		"a second one for an owner":          {"a", []string{"10.0.0.60"}, alloc.RefusedSecondAddress, "a"},
		"two of a family at once":            {"x", []string{"10.0.0.60", "10.0.0.61"}, alloc.RefusedSecondAddress, "x"},
		"one free and one allocated address": {"x", []string{"10.0.0.60", "fd00::50"}, alloc.RefusedInUse, "b"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			before := n.Assignments()
			got, err := acquireText(n, "p", tc.owner, tc.want...)

			var no *alloc.UnavailableError
			if !errors.As(err, &no) {
				t.Fatalf("got %q, %v", got, err)
			}

			if no.Refusal != tc.refuse || no.Holder != tc.holder {
				t.Errorf("got %+v", no)
			}

			if strings.HasSuffix(no.Error(), ": ") || !strings.Contains(no.Error(), no.Address.String()) {
				t.Errorf("error %q", no)
			}

			if diff := cmp.Diff(before, n.Assignments(), compareAddresses); diff != "" {
				t.Errorf("an address was allocated: %s", diff)
			}
		})
	}

	if _, err := n.Acquire("p", "x", netip.Addr{}); err == nil {
		t.Error("an empty list of addresses was accepted")
	}
}

func TestRemovedPoolKeepsAddressesInUse(t *testing.T) {
	t.Parallel()

	spec := alloc.Spec{Addresses: []string{"10.0.0.0/29"}}
	n := newNetwork(t, newPool(t, "p", spec))
	listNextAddresses(t, n, "p", 2)

	if left := n.RemovePool("p"); len(left) != 2 {
		t.Errorf("remaining: %v", left)
	}

	// Another pool gets the range, but not the addresses in use.
	setPool(t, n, newPool(t, "q", spec))

	if got, err := acquireText(n, "q", "new"); err != nil || got != "10.0.0.3/29" {
		t.Errorf("got %q, %v", got, err)
	}

	n.Release("seq-0")

	if got, err := acquireText(n, "q", "newer"); err != nil || got != "10.0.0.1/29" {
		t.Errorf("got %q, %v", got, err)
	}

	if left := n.RemovePool("nothing"); len(left) != 0 {
		t.Errorf("remaining: %v", left)
	}
}

func TestOwnersKeepTheirPrefixLength(t *testing.T) {
	t.Parallel()

	n := newNetwork(t, newPool(t, "p", alloc.Spec{Addresses: []string{"10.0.0.0/24"}}))
	listNextAddresses(t, n, "p", 1)
	setPool(t, n, newPool(t, "p", alloc.Spec{Addresses: []string{"10.0.0.0/24"}, PrefixLengthV4: 16}))

	if got, err := acquireText(n, "p", "seq-0"); err != nil || got != "10.0.0.1/24" {
		t.Errorf("got %q, %v", got, err)
	}

	if got, err := acquireText(n, "p", "new"); err != nil || got != "10.0.0.2/16" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestOverlappingPoolsAreRejected(t *testing.T) {
	t.Parallel()

	n := newNetwork(t, newPool(t, "a", alloc.Spec{Addresses: []string{"10.0.0.0/24"}}), newPool(t, "b", alloc.Spec{Addresses: []string{"10.0.1.0/24"}}))
	listNextAddresses(t, n, "a", 3)

	_, err := n.SetPool(newPool(t, "b", alloc.Spec{Addresses: []string{"10.0.0.200-10.0.1.20"}, PrefixLengthV4: 16}))

	var overlap *alloc.OverlapError
	if !errors.As(err, &overlap) {
		t.Fatalf("got %v", err)
	}

	if overlap.Pool != "b" || overlap.Other != "a" || overlap.Network != "net" || overlap.Range.String() != "10.0.0.200-10.0.0.254" {
		t.Errorf("got %+v", overlap)
	}

	if text := err.Error(); !strings.Contains(text, "pool b overlaps pool a on network net at 10.0.0.200-10.0.0.254") {
		t.Errorf("error %q", text)
	}

	// The network has not changed.
	if got, err := acquireText(n, "b", "m"); err != nil || got != "10.0.1.1/24" {
		t.Errorf("got %q, %v", got, err)
	}

	// A pool does not overlap its former version or a pool of another network.
	setPool(t, n, newPool(t, "a", alloc.Spec{Addresses: []string{"10.0.0.0/25"}}))
	setPool(t, alloc.NewNetwork("other"), newPool(t, "a", alloc.Spec{Addresses: []string{"10.0.0.0/24"}}))
}

func TestGatewayIsNeverAllocated(t *testing.T) {
	t.Parallel()

	a := alloc.Spec{Addresses: []string{"10.0.0.0/29"}}
	b := alloc.Spec{Addresses: []string{"10.0.0.8/29"}, Gateways: []string{"10.0.0.1", "10.0.0.2"}, PrefixLengthV4: 24}
	n := newNetwork(t, newPool(t, "a", a))
	listNextAddresses(t, n, "a", 1)
	setPool(t, n, newPool(t, "b", b))

	// The first gateway is an address in use. It stays in use and is not free after its release. The second
	// gateway is never allocated.
	n.Release("seq-0")

	if got, err := acquireText(n, "a", "m"); err != nil || got != "10.0.0.3/29" {
		t.Errorf("got %q, %v", got, err)
	}

	n.RemovePool("b")

	if got, err := acquireText(n, "a", "o"); err != nil || got != "10.0.0.1/29" {
		t.Errorf("got %q, %v: it is no gateway any more", got, err)
	}
}

func TestRestore(t *testing.T) {
	t.Parallel()

	p := newPool(t, "p", alloc.Spec{Addresses: []string{"10.0.0.0/29", "fd00::/64"}})
	held := func(owner, address string) alloc.Assignment {
		return alloc.Assignment{Owner: owner, Pool: "p", Address: netip.MustParsePrefix(address)}
	}

	n, err := alloc.Rebuild("net", []*alloc.Pool{p, newPool(t, "twin", alloc.Spec{Addresses: []string{"10.0.0.0/29"}})}, []alloc.Assignment{
		held("a", "10.0.0.1/29"), held("a", "fd00::1/64"), held("b", "10.0.0.3/29"),
		held("c", "10.0.0.1/24"), held("old", "172.16.0.9/24"), held("a", "10.0.0.1/29"),
	})

	var (
		conflict *alloc.ConflictError
		overlap  *alloc.OverlapError
	)

	if !errors.As(err, &conflict) || !errors.As(err, &overlap) {
		t.Fatalf("got %v", err)
	}

	if conflict.Owner != "c" || conflict.Holder != "a" || !strings.Contains(conflict.Error(), "recorded for a and for c") {
		t.Errorf("got %+v, want the first recorded owner to keep the address", conflict)
	}

	if diff := cmp.Diff([]alloc.Assignment{held("old", "172.16.0.9/24")}, n.AssignmentsNoLongerIn("p"), compareAddresses); diff != "" {
		t.Error(diff)
	}

	for _, tc := range [][2]string{{"a", "10.0.0.1/29 fd00::1/64"}, {"b", "10.0.0.3/29 fd00::2/64"}, {"c", "10.0.0.2/29 fd00::3/64"}} {
		if got, err := acquireText(n, "p", tc[0]); err != nil || got != tc[1] {
			t.Errorf("%s has %q, %v, want %q", tc[0], got, err, tc[1])
		}
	}

	for _, bad := range []alloc.Assignment{{}, {Owner: "x"}, held("", "10.0.0.6/29"), held("x", "::ffff:10.0.0.6/120")} {
		if err := n.Restore(bad); err == nil {
			t.Errorf("invalid record %+v was restored", bad)
		}
	}
}
