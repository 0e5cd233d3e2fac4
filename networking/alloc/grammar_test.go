// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc_test

import (
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/networking/alloc"
)

func TestParseRange(t *testing.T) {
	t.Parallel()

	cases := map[string]struct{ text, want, last string }{
		"a CIDR":                          {"192.168.10.0/24", "192.168.10.0/24", "192.168.10.255"},
		"a range":                         {"192.168.9.1-192.168.9.5", "192.168.9.1-192.168.9.5", "192.168.9.5"},
		"blanks around the hyphen":        {" 192.168.9.1 - 192.168.9.5 ", "192.168.9.1-192.168.9.5", "192.168.9.5"},
		"a range of one":                  {"10.0.0.1-10.0.0.1", "10.0.0.1-10.0.0.1", "10.0.0.1"},
		"a single v4 address":             {"192.168.1.100/32", "192.168.1.100/32", "192.168.1.100"},
		"a single v6 address":             {"2001:db8::1/128", "2001:db8::1/128", "2001:db8::1"},
		"a v6 CIDR":                       {"2001:DB8::/64", "2001:db8::/64", "2001:db8::ffff:ffff:ffff:ffff"},
		"a v6 range":                      {"2620:0:860:2::10-2620:0:860:2::50", "2620:0:860:2::10-2620:0:860:2::50", "2620:0:860:2::50"},
		"a v6 range that ends in IPv4":    {"2001:db8::1.2.3.4-2001:db8::1.2.3.5", "2001:db8::102:304-2001:db8::102:305", "2001:db8::102:305"},
		"everything of a family":          {"0.0.0.0/0", "0.0.0.0/0", "255.255.255.255"},
		"everything of the other family":  {"::/0", "::/0", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
		"the highest address of a family": {"255.255.255.255/32", "255.255.255.255/32", "255.255.255.255"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, err := alloc.ParseRange(tc.text)
			if err != nil || got.String() != tc.want || got.Last.String() != tc.last {
				t.Errorf("ParseRange(%q) = %s that ends at %s, %v, want %s that ends at %s", tc.text, got, got.Last, err, tc.want, tc.last)
			}
		})
	}
}

func TestParseRangeErrors(t *testing.T) {
	t.Parallel()

	cases := map[string]struct{ text, want string }{
		"a bare v4 address":              {"192.168.1.1", "write 192.168.1.1/32 for this address alone"},
		"a bare v6 address":              {"2620:0:860:2::1", "write 2620:0:860:2::1/128 for this address alone"},
		"a range backwards":              {"10.0.0.9-10.0.0.1", "write 10.0.0.1-10.0.0.9"},
		"a range of two families":        {"10.0.0.1-fd00::1", "the range goes from IPv4 to IPv6: write one range for each family"},
		"blanks around a CIDR":           {" 10.0.0.0/24", "has blanks around it: write 10.0.0.0/24"},
		"bits beyond the prefix":         {"10.0.0.5/24", "write 10.0.0.0/24 for the network, or 10.0.0.5/32 for this address alone"},
		"v6 bits beyond the prefix":      {"fd00::5/64", "write fd00::/64 for the network, or fd00::5/128"},
		"three ends":                     {"10.0.0.1-10.0.0.2-10.0.0.3", "with one hyphen"},
		"no second end":                  {"10.0.0.1-", "\"\" is not an address"},
		"no first end":                   {"-10.0.0.1", "\"\" is not an address"},
		"nothing":                        {"", "\"\" is not an address"},
		"a CIDR as an end":               {"10.0.0.0/24-10.0.1.0/24", "not a CIDR"},
		"a prefix that is too long":      {"10.0.0.0/33", "not a CIDR"},
		"a mask":                         {"10.0.0.0/255.255.255.0", "not a CIDR"},
		"a leading zero":                 {"010.0.0.1/32", "is not an address"},
		"an abbreviation of other tools": {"10.0.0.1-20", "\"20\" is not an address"},
		"a zone":                         {"fe80::1%eth0-fe80::2%eth0", "has a zone"},
		"a zone in a CIDR":               {"fe80::1%eth0/128", "has a zone"},
		"IPv4 as IPv6":                   {"::ffff:10.0.0.1-::ffff:10.0.0.2", "write 10.0.0.1"},
		"an IPv4 CIDR as IPv6":           {"::ffff:10.0.0.0/120", "write 10.0.0.0"},
		"a name":                         {"router.example.com", "is not an address"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, err := alloc.ParseRange(tc.text)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("ParseRange(%q) = %s, %v, want %q", tc.text, got, err, tc.want)
			}
		})
	}
}

func FuzzParseRange(f *testing.F) {
	for _, seed := range []string{
		"192.168.10.0/24", "192.168.9.1-192.168.9.5", "192.168.1.100/32", "2001:db8::1/128", "::/0", "10.0.0.1",
		"fe80::1%e-fe80::2", "::ffff:1.2.3.4/96", "-", "/", "0.0.0.0/0", "255.255.255.255/32", "1.2.3.4-1.2.3.3",
	} {
		f.Add(seed)
	}

	f.Fuzz(func(t *testing.T, text string) {
		got, err := alloc.ParseRange(text)
		if err != nil {
			return
		}

		again, err := alloc.ParseRange(got.String())
		if err != nil || again != got {
			t.Fatalf("%q is %s, which is %s, %v", text, got, again, err)
		}

		if got.Last.Less(got.First) || got.First.BitLen() != got.Last.BitLen() || !got.Contains(got.First) || !got.Contains(got.Last) {
			t.Fatalf("%q is %+v", text, got)
		}

		// A valid range is a valid pool, or NewPool returns an error.
		p, err := alloc.NewPool("p", alloc.Spec{Addresses: []string{text}, PrefixLengthV4: 8, PrefixLengthV6: 16})
		if err == nil && p.MachineCapacity() == 0 {
			t.Fatalf("%q is a pool without addresses", text)
		}
	})
}

// FuzzNewPool checks whole specs: every valid spec allocates only allowed addresses.
func FuzzNewPool(f *testing.F) {
	f.Add("10.0.0.0/24,fd00::/64", "10.0.0.4/31", "10.0.0.1", 0, 0)
	f.Add("10.0.0.10-10.0.0.50,10.0.0.100/32", "", "10.0.0.1,fe80::1", 24, 64)
	f.Add("10.0.0.0/8,10.0.0.0/24", "10.0.0.0/9", "10.255.0.1", 8, 0)
	f.Add("0.0.0.0/0", "::/0", "::", -1, 129)

	f.Fuzz(func(t *testing.T, addresses, excluded, gateways string, v4, v6 int) {
		spec := alloc.Spec{
			Addresses: splitText(addresses), Excluded: splitText(excluded), Gateways: splitText(gateways),
			PrefixLengthV4: v4, PrefixLengthV6: v6,
		}

		p, err := alloc.NewPool("p", spec)
		if err != nil {
			return
		}

		n := alloc.NewNetwork("net")
		if _, err := n.SetPool(p); err != nil {
			t.Fatal(err)
		}

		got, err := n.Acquire("p", "m")
		if err != nil {
			t.Fatalf("%+v is a pool from which nothing can be had: %v", spec, err)
		}

		for _, prefix := range got {
			if what := explainForbidden(spec, prefix); what != "" {
				t.Fatalf("%+v gave %s: %s", spec, prefix, what)
			}
		}
	})
}

func splitText(text string) []string {
	if text == "" {
		return nil
	}

	return strings.Split(text, ",")
}
