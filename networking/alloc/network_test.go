// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// compareAddresses compares addresses by value.
var compareAddresses = cmp.Options{
	cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty(),
}

func newPool(t testing.TB, name string, spec alloc.Spec) *alloc.Pool {
	t.Helper()

	p, err := alloc.NewPool(name, spec)
	must.Do(t, err)

	return p
}

func newNetwork(t testing.TB, pools ...*alloc.Pool) *alloc.Network {
	t.Helper()

	n, err := alloc.Rebuild("net", pools, nil)
	must.Do(t, err)

	return n
}

func setPool(t testing.TB, n *alloc.Network, p *alloc.Pool) []alloc.Assignment {
	t.Helper()

	outside, err := n.SetPool(p)
	must.Do(t, err)

	return outside
}

// acquireText returns the addresses of an owner as one text.
func acquireText(n *alloc.Network, pool, owner string, want ...string) (string, error) {
	addrs := make([]netip.Addr, 0, len(want))
	for _, w := range want {
		addrs = append(addrs, netip.MustParseAddr(w))
	}

	got, err := n.Acquire(pool, owner, addrs...)

	texts := make([]string, 0, len(got))
	for _, g := range got {
		texts = append(texts, g.String())
	}

	return strings.Join(texts, " "), err
}

// listNextAddresses returns the addresses that the next owners get in turn, until the pool is exhausted.
func listNextAddresses(t testing.TB, n *alloc.Network, pool string, limit int) []string {
	t.Helper()

	var out []string

	for i := range limit {
		got, err := acquireText(n, pool, fmt.Sprintf("seq-%d", i))

		var exhausted *alloc.ExhaustedError
		if errors.As(err, &exhausted) {
			break
		}

		must.Do(t, err)

		out = append(out, got)
	}

	return out
}

// This test checks the first and last addresses of subnets. TestPropertyGivesEachAddressOnceAndNoOther
// checks the order of lists, exclusions, gateways and families.
func TestOrder(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		spec alloc.Spec
		want []string
	}{
		"machines can have both addresses of a /31 (RFC 3021)": {
			spec: alloc.Spec{Addresses: []string{"10.0.0.4/31"}},
			want: []string{"10.0.0.4/31", "10.0.0.5/31"},
		},
		"a v6 CIDR without its anycast address (RFC 4291)": {
			spec: alloc.Spec{Addresses: []string{"fd00::/126"}},
			want: []string{"fd00::1/126", "fd00::2/126", "fd00::3/126"},
		},
		"both addresses of a /127 (RFC 6164)": {
			spec: alloc.Spec{Addresses: []string{"fd00::/127"}},
			want: []string{"fd00::/127", "fd00::1/127"},
		},
		"a complete range except for the first and last address of its subnet": {
			spec: alloc.Spec{Addresses: []string{"10.0.0.0-10.0.0.3"}, PrefixLengthV4: 30},
			want: []string{"10.0.0.1/30", "10.0.0.2/30"},
		},
		"a range that ends where a /25 would, in a /24": {
			spec: alloc.Spec{Addresses: []string{"10.0.0.127-10.0.0.128"}, PrefixLengthV4: 24},
			want: []string{"10.0.0.127/24", "10.0.0.128/24"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			n := newNetwork(t, newPool(t, "p", tc.spec))
			if diff := cmp.Diff(tc.want, listNextAddresses(t, n, "p", 10)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestFirstFreeAddress checks that the next machine gets the first free address, in the order of the pool, although there
// are free addresses between used ones.
func TestFirstFreeAddress(t *testing.T) {
	t.Parallel()

	spec := alloc.Spec{Addresses: []string{"10.0.0.20-10.0.0.24", "10.0.0.10-10.0.0.11"}, PrefixLengthV4: 24}
	n := newNetwork(t, newPool(t, "p", spec))
	listNextAddresses(t, n, "p", 6)
	n.Release("seq-3")
	n.Release("seq-1")

	want := []string{"10.0.0.21/24", "10.0.0.23/24", "10.0.0.11/24"}
	for i, address := range want {
		if got, err := acquireText(n, "p", fmt.Sprintf("later-%d", i)); err != nil || got != address {
			t.Errorf("machine %d gets %s, error %v, want %s", i, got, err, address)
		}
	}
}

// A pool of more than a thousand addresses allocates all of them.
func TestLargePool(t *testing.T) {
	t.Parallel()

	n := newNetwork(t, newPool(t, "p", alloc.Spec{Addresses: []string{"10.0.0.0/20"}}))
	if got := listNextAddresses(t, n, "p", 5000); len(got) != 4094 || got[4093] != "10.0.15.254/20" {
		t.Errorf("%d addresses were allocated, the last of them %q", len(got), got[max(0, len(got)-1):])
	}
}

func TestExhaustedPoolAllocatesNothing(t *testing.T) {
	t.Parallel()

	small := alloc.Spec{Addresses: []string{"fd00::/64", "10.0.0.10-10.0.0.11"}, PrefixLengthV4: 24}
	n := newNetwork(t, newPool(t, "ns/p", small))
	listNextAddresses(t, n, "ns/p", 2)

	_, err := acquireText(n, "ns/p", "late")

	var exhausted *alloc.ExhaustedError
	if !errors.As(err, &exhausted) {
		t.Fatalf("got %v", err)
	}

	want := alloc.ExhaustedError{Network: "net", Pool: "ns/p", Family: alloc.IPv4, Size: 2}
	if *exhausted != want {
		t.Errorf("got %+v, want %+v", *exhausted, want)
	}

	if text := exhausted.LogMessage("eno101"); text != "No available IPs in pool for interface eno101" {
		t.Errorf("log message %q", text)
	}

	if text := err.Error(); !strings.Contains(text, "all 2 IPv4 addresses of pool ns/p on network net are in use") {
		t.Errorf("error %q", text)
	}

	if held := n.AddressesOf("late"); len(held) != 0 {
		t.Errorf("an address of the other family was allocated: %v", held)
	}
}

func TestNoPoolAndNoOwner(t *testing.T) {
	t.Parallel()

	n := newNetwork(t, newPool(t, "p", alloc.Spec{Addresses: []string{"10.0.0.0/29"}}))

	if _, err := acquireText(n, "q", "m"); !errors.Is(err, alloc.ErrNoPool) {
		t.Errorf("got %v", err)
	}

	if got, err := acquireText(n, "p", ""); err == nil {
		t.Errorf("no owner got %s", got)
	}

	if usage := n.Usage("q", alloc.IPv4); usage != (alloc.Usage{}) {
		t.Errorf("usage %+v", usage)
	}
}

// FreeRanges returns the addresses that are allocated next, in the order of the pool.
func TestFree(t *testing.T) {
	t.Parallel()

	n := newNetwork(t, newPool(t, "p", alloc.Spec{
		Addresses: []string{"10.0.0.10-10.0.0.20", "10.0.0.1-10.0.0.3", "fd00::10-fd00::12"},
		Excluded:  []string{"10.0.0.15/32"}, PrefixLengthV4: 24, PrefixLengthV6: 64,
	}))

	free := func(family alloc.Family, limit int) []string {
		var out []string
		for _, run := range n.FreeRanges("p", family, limit) {
			out = append(out, run.String())
		}

		return out
	}

	all := []string{"10.0.0.10-10.0.0.14", "10.0.0.16-10.0.0.20", "10.0.0.1-10.0.0.3"}
	if diff := cmp.Diff(all, free(alloc.IPv4, 9)); diff != "" {
		t.Errorf("unused pool (-want +got):\n%s", diff)
	}

	if diff := cmp.Diff(all[:2], free(alloc.IPv4, 2)); diff != "" {
		t.Errorf("limit of two (-want +got):\n%s", diff)
	}

	listNextAddresses(t, n, "p", 3)
	n.Release("seq-1")

	if diff := cmp.Diff([]string{"10.0.0.11-10.0.0.11", "10.0.0.13-10.0.0.14", "10.0.0.16-10.0.0.20", "10.0.0.1-10.0.0.3"},
		free(alloc.IPv4, 9)); diff != "" {
		t.Errorf("with addresses in use (-want +got):\n%s", diff)
	}

	if diff := cmp.Diff([]string{"fd00::11-fd00::11"}, free(alloc.IPv6, 9)); diff != "" {
		t.Errorf("IPv6 (-want +got):\n%s", diff)
	}

	if got := n.FreeRanges("other", alloc.IPv4, 9); got != nil {
		t.Errorf("a missing pool has %v", got)
	}
}
