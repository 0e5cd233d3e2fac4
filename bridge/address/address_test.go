// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package address_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	"go4.org/netipx"

	"github.com/hyperfleet/hyperfleet/bridge/address"
	"github.com/hyperfleet/hyperfleet/kit/property"
)

func TestParse(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		entry, first, last string
		bad                bool
	}{
		"CIDR":                      {entry: "10.0.0.0/24", first: "10.0.0.0", last: "10.0.0.255"},
		"CIDR with bits behind":     {entry: "10.0.0.77/30", first: "10.0.0.76", last: "10.0.0.79"},
		"one address":               {entry: "10.0.0.7/32", first: "10.0.0.7", last: "10.0.0.7"},
		"everything":                {entry: "0.0.0.0/0", first: "0.0.0.0", last: "255.255.255.255"},
		"range":                     {entry: "10.0.0.9-10.0.1.3", first: "10.0.0.9", last: "10.0.1.3"},
		"range with blanks":         {entry: " 10.0.0.9 - 10.0.0.9 ", first: "10.0.0.9", last: "10.0.0.9"},
		"IPv6":                      {entry: "fd00::/127", first: "fd00::", last: "fd00::1"},
		"length with a zero":        {entry: "10.0.0.0/024", first: "10.0.0.0", last: "10.0.0.255"},
		"IPv4 in IPv6":              {entry: "::ffff:10.0.0.0/120", first: "10.0.0.0", last: "10.0.0.255"},
		"range to IPv4 in IPv6":     {entry: "10.0.0.1-::ffff:10.0.0.9", first: "10.0.0.1", last: "10.0.0.9"},
		"address with zeros":        {entry: "010.0.0.0/24", bad: true},
		"address without length":    {entry: "10.0.0.7", bad: true},
		"range of two families":     {entry: "10.0.0.1-fd00::1", bad: true},
		"range backwards":           {entry: "10.0.0.9-10.0.0.1", bad: true},
		"range with a short end":    {entry: "10.0.0.1-9", bad: true},
		"CIDR that is too long":     {entry: "10.0.0.0/33", bad: true},
		"CIDR with blanks":          {entry: "10.0.0.0/24 ", bad: true},
		"nothing":                   {entry: "", bad: true},
		"range that begins nowhere": {entry: "-10.0.0.9", bad: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, err := address.Parse(tc.entry)
			if (err != nil) != tc.bad {
				t.Fatalf("error %v", err)
			}

			if !tc.bad && (got.From().String() != tc.first || got.To().String() != tc.last) {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestCover(t *testing.T) {
	t.Parallel()

	want := []string{
		"10.0.0.1/32", "10.0.0.2/31", "10.0.0.4/30", "10.0.0.8/31", "fd00::/64", "0.0.0.0/0", "255.255.255.255/32",
		"fd00::1/128", "fd00::2/127", "fd00::4/126", "fd00::8/127", "::/0",
	}
	got := address.SplitIntoCIDRs([]string{
		"10.0.0.1-10.0.0.9", "fd00::/64", "words", "0.0.0.0/0", "255.255.255.255/32", "fd00::1-fd00::9", "::/0", "fe80::1%a-fe80::2%a",
	})

	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func addr(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// wideAddr returns an IPv6 address that contains a number at both ends.
func wideAddr(n uint32) netip.Addr {
	a := addr(n).As4()

	return netip.AddrFrom16([16]byte{0: a[0], 1: a[1], 2: a[2], 3: a[3], 12: a[0], 13: a[1], 14: a[2], 15: a[3]})
}

// TestIndexFindsContainedAddresses checks that an address is in a range if and only if one of the CIDRs
// that contain the address is one of the CIDRs of the range.
func TestIndexFindsContainedAddresses(t *testing.T) {
	t.Parallel()

	property.Check(t, "the index finds what the range contains", property.Options{Runs: 500}, prop.ForAll(func(points []uint32, near int32) bool {
		a, b, at := points[0], points[1], points[2]

		for _, of := range []func(uint32) netip.Addr{addr, wideAddr} {
			first, last := of(min(a, b)), of(max(a, b))
			r := netipx.IPRangeFrom(first, last)
			cover := address.SplitIntoCIDRs([]string{first.String() + "-" + last.String()})

			for _, probe := range []netip.Addr{of(at), of(min(a, b) + uint32(near)), of(max(a, b) + uint32(near)), first, last} {
				found := slices.ContainsFunc(address.EnclosingCIDRs(probe), func(around string) bool { return slices.Contains(cover, around) })
				if found != r.Contains(probe) {
					return false
				}
			}
		}

		return true
	}, gen.SliceOfN(3, gen.UInt32()), gen.Int32Range(-3, 3)))
}

func FuzzParse(f *testing.F) {
	for _, entry := range []string{"10.0.0.0/24", "10.0.0.1-10.0.0.9", "fd00::/64", "::-::", "-", "/", "::ffff:0:0/90", "::ffff:10.0.0.0/100"} {
		f.Add(entry)
	}

	f.Fuzz(func(t *testing.T, entry string) {
		r, err := address.Parse(entry)
		if err == nil && (!r.Contains(r.From()) || !r.Contains(r.To())) {
			t.Errorf("%q is %v", entry, r)
		}

		_ = address.SplitIntoCIDRs([]string{entry})
	})
}
