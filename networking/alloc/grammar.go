// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"go4.org/netipx"
)

// Range is one entry of a list of addresses. It contains all addresses from First to Last, including both.
// All addresses are of one family.
type Range struct {
	First, Last netip.Addr
	// Bits is the prefix length of an entry that was written as a CIDR, and -1 for any other entry.
	Bits int
}

// String returns the range in a form that ParseRange accepts.
func (r Range) String() string {
	if r.Bits >= 0 {
		return netip.PrefixFrom(r.First, r.Bits).String()
	}

	return r.First.String() + "-" + r.Last.String()
}

// Family returns the family of the range's addresses.
func (r Range) Family() Family { return FamilyOf(r.First) }

// Contains returns whether the range contains an address.
func (r Range) Contains(addr netip.Addr) bool {
	return addr.BitLen() == r.First.BitLen() && !addr.Less(r.First) && !r.Last.Less(addr)
}

func (r Range) span() span { return span{first: toUint128(r.First), last: toUint128(r.Last)} }

// isNetwork returns whether the range is a CIDR of more than one address. The prefix length of such a CIDR
// is the prefix length of a network.
func (r Range) isNetwork() bool { return r.Bits >= 0 && r.Bits < r.First.BitLen() }

// ParseRange parses a CIDR (10.0.0.0/24), a first and a last address (10.0.0.10-10.0.0.20, with or without
// blanks around the addresses), or a single address (10.0.0.5/32, fd00::5/128). The errors say what to write
// instead. ParseRange accepts everything that MetalLB accepts, except for a CIDR with bits beyond its
// prefix, because such a CIDR can mean one address or its network.
func ParseRange(text string) (Range, error) {
	switch {
	case strings.Contains(text, "/"):
		return parseCIDR(text)
	case strings.Contains(text, "-"):
		return parsePair(text)
	}

	addr, err := parseAddr(strings.TrimSpace(text))
	if err != nil {
		return Range{}, err
	}

	return Range{}, fmt.Errorf("an address without a prefix length: write %s/%d for this address alone", addr, addr.BitLen())
}

func parseCIDR(text string) (Range, error) {
	if trimmed := strings.TrimSpace(text); trimmed != text {
		return Range{}, fmt.Errorf("%q has blanks around it: write %s", text, trimmed)
	}

	address, _, _ := strings.Cut(text, "/")
	if _, err := parseAddr(address); err != nil {
		return Range{}, err
	}

	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return Range{}, errors.New("not a CIDR: write a CIDR such as 10.0.0.0/24 or fd00::/64")
	}

	if prefix.Masked() != prefix {
		return Range{}, fmt.Errorf("the address has bits beyond its prefix: write %s for the network, or %s/%d for this address alone",
			prefix.Masked(), prefix.Addr(), prefix.Addr().BitLen())
	}

	return Range{First: prefix.Addr(), Last: netipx.PrefixLastIP(prefix), Bits: prefix.Bits()}, nil
}

// parsePair parses FIRST-LAST. Both addresses must be of one family, and LAST must not be below FIRST.
func parsePair(text string) (Range, error) {
	parts := strings.Split(text, "-")
	if len(parts) != 2 {
		return Range{}, errors.New("not a range: write two addresses with one hyphen, such as 10.0.0.10-10.0.0.20")
	}

	first, err := parseAddr(strings.TrimSpace(parts[0]))
	if err != nil {
		return Range{}, err
	}

	last, err := parseAddr(strings.TrimSpace(parts[1]))
	if err != nil {
		return Range{}, err
	}

	switch {
	case first.BitLen() != last.BitLen():
		return Range{}, fmt.Errorf("the range goes from %s to %s: write one range for each family", FamilyOf(first), FamilyOf(last))
	case last.Less(first):
		return Range{}, fmt.Errorf("the range ends before it begins: write %s-%s", last, first)
	}

	return Range{First: first, Last: last, Bits: -1}, nil
}

// parseAddr parses one address. It rejects a zone, and an IPv4 address written as IPv6.
func parseAddr(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)

	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("%q is not an address: write an address such as 10.0.0.5 or fd00::5", text)
	case addr.Zone() != "":
		return netip.Addr{}, fmt.Errorf("%q has a zone, which has a meaning on one machine only: remove the zone", text)
	case addr.Is4In6():
		return netip.Addr{}, fmt.Errorf("%q is an IPv4 address written as IPv6: write %s", text, addr.Unmap())
	default:
		return addr, nil
	}
}
