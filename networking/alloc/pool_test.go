// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc_test

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/test/must"
)

func TestPrefixLength(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		spec alloc.Spec
		want map[string]int
	}{
		"the prefix length of the spec takes precedence": {
			alloc.Spec{Addresses: []string{"10.0.0.0/25", "10.0.0.200-10.0.0.210"}, Gateways: []string{"10.0.0.254"}, PrefixLengthV4: 24},
			map[string]int{"10.0.0.2": 24, "10.0.0.200": 24},
		},
		"each entry has its own prefix length": {
			alloc.Spec{Addresses: []string{"10.0.0.0/25", "10.1.0.0/16"}},
			map[string]int{"10.0.0.2": 25, "10.1.0.2": 16},
		},
		"the prefix length of the smallest CIDR that contains the entry": {
			alloc.Spec{Addresses: []string{"10.0.0.5-10.0.0.6", "10.0.0.9/32", "10.0.0.0/8", "10.0.0.0/25"}},
			map[string]int{"10.0.0.5": 25, "10.0.0.9": 25, "10.3.0.0": 8},
		},
		"the documented example: the smallest subnet with range, single address and gateway": {
			alloc.Spec{
				Addresses: []string{"192.168.1.10-192.168.1.50", "2620:0:860:2::10-2620:0:860:2::50", "192.168.1.100/32"},
				Excluded:  []string{"192.168.1.20-192.168.1.25", "2620:0:860:2::20/128"},
				Gateways:  []string{"192.168.1.1", "2620:0:860:2::1"},
			},
			map[string]int{"192.168.1.10": 25, "192.168.1.100": 25, "2620:0:860:2::10": 64},
		},
		"a range and a gateway in a /26": {
			alloc.Spec{Addresses: []string{"10.0.0.10-10.0.0.50"}, Gateways: []string{"10.0.0.1"}},
			map[string]int{"10.0.0.10": 26},
		},
		"IPv6 that differs in the upper half": {
			alloc.Spec{Addresses: []string{"2001:db8:0:1::10-2001:db8:0:1::20"}, Gateways: []string{"2001:db8::1"}},
			map[string]int{"2001:db8:0:1::10": 63},
		},
		"IPv6 with a link-local gateway": {
			alloc.Spec{Addresses: []string{"fd00::10-fd00::20"}, Gateways: []string{"fe80::1"}}, map[string]int{"fd00::10": 64},
		},
		"IPv6 without a gateway": {
			alloc.Spec{Addresses: []string{"fd00::10-fd00::20", "fd00:0:0:1::5/128"}}, map[string]int{"fd00::10": 63, "fd00:0:0:1::5": 63},
		},
		"a distant gateway makes the subnet large": {
			alloc.Spec{Addresses: []string{"10.0.0.10-10.0.0.50"}, Gateways: []string{"10.0.3.254"}},
			map[string]int{"10.0.0.10": 22},
		},
		"both gateways of a family are covered": {
			alloc.Spec{Addresses: []string{"10.0.0.10-10.0.0.50"}, Gateways: []string{"10.0.0.1", "10.0.0.129"}},
			map[string]int{"10.0.0.10": 24},
		},
		"a link-local gateway does not determine the subnet and is valid": {
			alloc.Spec{Addresses: []string{"2001:db8::/64"}, Gateways: []string{"fe80::1"}},
			map[string]int{"2001:db8::1": 64},
		},
		"the anycast address of a subnet may be its gateway": {
			alloc.Spec{Addresses: []string{"2001:db8::/64"}, Gateways: []string{"2001:db8::"}},
			map[string]int{"2001:db8::1": 64},
		},
		"the first entry of a shared address counts": {
			alloc.Spec{Addresses: []string{"10.0.0.0/25", "10.0.0.0/24"}},
			map[string]int{"10.0.0.5": 25, "10.0.0.130": 24},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			p := newPool(t, "p", tc.spec)
			if p.Name() != "p" {
				t.Errorf("the pool's name is %s", p.Name())
			}

			for text, want := range tc.want {
				got, found := p.PrefixFor(netip.MustParseAddr(text))
				if !found || got.Bits() != want {
					t.Errorf("Prefix(%s) = %s, %v, want /%d", text, got, found, want)
				}
			}
		})
	}
}

func TestNewPoolErrors(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		spec  alloc.Spec
		field string
		want  string
	}{
		"no addresses": {alloc.Spec{}, "addresses", "the pool has no addresses"},
		"an address without prefix length, and its field": {
			alloc.Spec{Addresses: []string{"10.0.0.0/24", "10.0.1.1"}}, "addresses[1]", "write 10.0.1.1/32",
		},
		"an exclusion without prefix length": {
			alloc.Spec{Addresses: []string{"10.0.0.0/24"}, Excluded: []string{"10.0.0.1"}}, "excludedAddresses[0]", "write 10.0.0.1/32",
		},
		"an exclusion outside": {
			alloc.Spec{Addresses: []string{"10.0.0.0/24"}, Excluded: []string{"10.0.1.0/24"}}, "excludedAddresses[0]", "outside the pool",
		},
		"an exclusion of a family that the pool lacks": {
			alloc.Spec{Addresses: []string{"10.0.0.0/24"}, Excluded: []string{"fd00::/64"}}, "excludedAddresses[0]", "outside the pool",
		},
		"no address left": {
			alloc.Spec{Addresses: []string{"10.0.0.0/24"}, Excluded: []string{"10.0.0.0/24"}}, "addresses", "no IPv4 address left",
		},
		"no address left of one family": {
			alloc.Spec{Addresses: []string{"10.0.0.0/24", "fd00::/64"}, Excluded: []string{"fd00::/63"}}, "addresses", "no IPv6 address left",
		},
		"unknown prefix length": {
			alloc.Spec{Addresses: []string{"10.0.0.10-10.0.0.20"}}, "addresses[0]", "set the prefix length, set the gateway",
		},
		"nothing in common with the gateway": {
			alloc.Spec{Addresses: []string{"10.0.0.10-10.0.0.20"}, Gateways: []string{"192.168.0.1"}}, "addresses[0]", "its prefix length is unknown",
		},
		"a gateway in no subnet": {
			alloc.Spec{Addresses: []string{"10.0.0.64/26"}, Gateways: []string{"10.0.0.1"}}, "gateway", "in no subnet of the pool, such as 10.0.0.64/26",
		},
		"a gateway of a family without addresses": {
			alloc.Spec{Addresses: []string{"10.0.0.0/24"}, Gateways: []string{"fd00::1"}}, "gateway", "no IPv6 addresses",
		},
		"a subnet without the gateway": {
			alloc.Spec{Addresses: []string{"10.0.0.0/24", "10.0.1.0/24"}, Gateways: []string{"10.0.0.1"}}, "addresses[1]", "no gateway is in its subnet 10.0.1.0/24",
		},
		"a gateway that is the broadcast address": {
			alloc.Spec{Addresses: []string{"10.0.0.0/24"}, Gateways: []string{"10.0.0.255"}}, "gateway", "the broadcast address of 10.0.0.0/24",
		},
		"three gateways of a family": {
			alloc.Spec{Addresses: []string{"10.0.0.0/24"}, Gateways: []string{"10.0.0.1", "fd00::1", "10.0.0.2", "10.0.0.3"}},
			"gateway[3]", "more than 2 IPv4 gateways",
		},
		"a gateway twice": {
			alloc.Spec{Addresses: []string{"10.0.0.0/24"}, Gateways: []string{"10.0.0.1", "10.0.0.1"}}, "gateway[1]", "twice",
		},
		"a gateway with a prefix": {
			alloc.Spec{Addresses: []string{"10.0.0.0/24"}, Gateways: []string{"10.0.0.1/24"}}, "gateway[0]", "is not an address",
		},
		"a gateway that is not a host address": {
			alloc.Spec{Addresses: []string{"10.0.0.0/24"}, Gateways: []string{"0.0.0.0"}}, "gateway[0]", "no machine can use",
		},
		"a prefix length that is too long": {
			alloc.Spec{Addresses: []string{"10.0.0.0/24"}, PrefixLengthV4: 33}, "prefixLengthV4", "from 1 to 32",
		},
		"a negative prefix length": {
			alloc.Spec{Addresses: []string{"fd00::/64"}, PrefixLengthV6: -1}, "prefixLengthV6", "from 1 to 128",
		},
		"a prefix length for nothing": {
			alloc.Spec{Addresses: []string{"10.0.0.0/24"}, PrefixLengthV6: 64}, "prefixLengthV6", "no IPv6 addresses",
		},
		"an entry that spans subnets": {
			alloc.Spec{Addresses: []string{"10.0.0.10-10.0.1.10"}, PrefixLengthV4: 24}, "addresses[0]", "one subnet of prefix length 24",
		},
		"multicast": {
			alloc.Spec{Addresses: []string{"224.0.0.0/24"}}, "addresses[0]", "224.0.0.0/4",
		},
		"IPv6 multicast": {
			alloc.Spec{Addresses: []string{"ff05::/120"}}, "addresses[0]", "ff00::/8",
		},
		"loopback": {
			alloc.Spec{Addresses: []string{"127.0.0.0/24"}}, "addresses[0]", "127.0.0.0/8",
		},
		"IPv6 loopback": {
			alloc.Spec{Addresses: []string{"::1/128"}}, "addresses[0]", "::/127",
		},
		"this network": {
			alloc.Spec{Addresses: []string{"0.0.0.0/24"}}, "addresses[0]", "0.0.0.0/8",
		},
		"limited broadcast": {
			alloc.Spec{Addresses: []string{"255.255.255.255/32"}}, "addresses[0]", "255.255.255.255/32",
		},
		"everything": {
			alloc.Spec{Addresses: []string{"::/0"}}, "addresses[0]", "no machine can use",
		},
		"a single address that is the broadcast address": {
			alloc.Spec{Addresses: []string{"10.0.0.10-10.0.0.20", "10.0.0.31/32"}, Gateways: []string{"10.0.0.1"}},
			"addresses[1]", "the broadcast address of 10.0.0.0/27",
		},
		"a single address that is the gateway": {
			alloc.Spec{Addresses: []string{"10.0.0.10-10.0.0.20", "10.0.0.1/32"}, Gateways: []string{"10.0.0.1"}}, "addresses[1]", "it is a gateway",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			_, err := alloc.NewPool("ns/p", tc.spec)

			var wrong *alloc.SpecError
			if !errors.As(err, &wrong) {
				t.Fatalf("got %v", err)
			}

			if wrong.Field != tc.field || !strings.Contains(wrong.Error(), tc.want) {
				t.Errorf("got %s: %v, want %s: %s", wrong.Field, wrong, tc.field, tc.want)
			}

			if !strings.Contains(err.Error(), "pool ns/p") {
				t.Errorf("%v does not name the pool", err)
			}
		})
	}
}

func TestNewPoolReportsAllErrors(t *testing.T) {
	t.Parallel()

	_, err := alloc.NewPool("p", alloc.Spec{
		Addresses: []string{"10.0.0.1", "10.0.0.0/24", "10.0.0.9-10.0.0.1"}, Excluded: []string{"x"}, Gateways: []string{"y"},
	})
	for _, field := range []string{"addresses[0]", "addresses[2]", "excludedAddresses[0]", "gateway[0]"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name %s", err, field)
		}
	}
}

func TestSize(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		spec     alloc.Spec
		v4, v6   uint64
		machines uint64
	}{
		"a /24 with a gateway": {alloc.Spec{Addresses: []string{"10.0.0.0/24"}, Gateways: []string{"10.0.0.1"}}, 253, 0, 253},
		"a /64 exceeds the limit, a /64 without an address does not": {alloc.Spec{Addresses: []string{"2001:db8::/64"}}, 0, math.MaxUint64, math.MaxUint64},
		"a /48 exceeds the limit":                                    {alloc.Spec{Addresses: []string{"2001:db8::/48"}}, 0, math.MaxUint64, math.MaxUint64},
		"the smaller family counts":                                  {alloc.Spec{Addresses: []string{"2001:db8::/64", "10.0.0.0/29"}}, 6, math.MaxUint64, 6},
		"the other one may be smaller":                               {alloc.Spec{Addresses: []string{"2001:db8::/126", "10.0.0.0/24"}}, 254, 3, 3},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			p := newPool(t, "p", tc.spec)
			if p.Size(alloc.IPv4) != tc.v4 || p.Size(alloc.IPv6) != tc.v6 || p.MachineCapacity() != tc.machines {
				t.Errorf("got %d, %d, %d", p.Size(alloc.IPv4), p.Size(alloc.IPv6), p.MachineCapacity())
			}
		})
	}
}

func TestOverlap(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		a, b alloc.Spec
		want string
	}{
		"the same": {alloc.Spec{Addresses: []string{"10.0.0.0/24"}}, alloc.Spec{Addresses: []string{"10.0.0.0/24"}}, "10.0.0.1-10.0.0.254"},
		"a part":   {alloc.Spec{Addresses: []string{"10.0.0.0/24"}}, alloc.Spec{Addresses: []string{"10.0.0.99-10.0.0.110"}, PrefixLengthV4: 24}, "10.0.0.99-10.0.0.110"},
		"adjacent ranges": {
			alloc.Spec{Addresses: []string{"10.0.0.0/25"}}, alloc.Spec{Addresses: []string{"10.0.0.128/25"}}, "",
		},
		"one pool excludes the range of the other": {
			alloc.Spec{Addresses: []string{"10.0.0.0/24"}, Excluded: []string{"10.0.0.128/25"}}, alloc.Spec{Addresses: []string{"10.0.0.128/25"}}, "",
		},
		"overlap only in the second family": {
			alloc.Spec{Addresses: []string{"10.0.0.0/24", "fd00::5-fd00::9"}, PrefixLengthV6: 64},
			alloc.Spec{Addresses: []string{"10.0.1.0/24", "fd00::9-fd00::20"}, PrefixLengthV6: 64}, "fd00::9-fd00::9",
		},
		"overlap in later entries": {
			alloc.Spec{Addresses: []string{"10.9.0.0/24", "10.3.0.0/24", "10.5.0.0/24"}},
			alloc.Spec{Addresses: []string{"10.8.0.0/24", "10.4.0.0/24", "10.5.0.7/32"}, PrefixLengthV4: 24}, "10.5.0.7-10.5.0.7",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			a, b := newPool(t, "a", tc.a), newPool(t, "b", tc.b)

			for _, pair := range [][2]*alloc.Pool{{a, b}, {b, a}} {
				got, found := pair[0].Overlap(pair[1])
				if found != (tc.want != "") || (found && got.String() != tc.want) {
					t.Errorf("got %s, %v, want %q", got, found, tc.want)
				}
			}
		})
	}
}

// GuessedSubnets returns only subnets whose prefix length was guessed.
func TestGuessedSubnets(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		spec alloc.Spec
		want string
	}{
		"said":   {alloc.Spec{Addresses: []string{"10.0.0.10-10.0.0.15"}, PrefixLengthV4: 24}, "[]"},
		"a CIDR": {alloc.Spec{Addresses: []string{"10.0.0.0/24", "10.0.0.9/32", "fd00::/64"}}, "[]"},
		"a range and its gateway": {
			alloc.Spec{Addresses: []string{"10.0.0.10-10.0.0.14", "fd00::10-fd00::20"}, Gateways: []string{"10.0.0.1"}}, "[10.0.0.0/28 fd00::/64]",
		},
	} {
		pool, err := alloc.NewPool("p", tc.spec)
		must.Do(t, err)

		if got := fmt.Sprint(pool.GuessedSubnets()); got != tc.want {
			t.Errorf("%s: guessed %s, want %s", name, got, tc.want)
		}
	}
}
