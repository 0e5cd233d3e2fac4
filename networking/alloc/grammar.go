// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// Range is one entry of a list of addresses: all addresses from First to Last, both
// included, which are of one family.
type Range struct {
	First, Last netip.Addr
	// Bits is the prefix length of an entry that was written as a CIDR; for any other
	// entry it is -1.
	Bits int
}

// String is the entry as ParseRange reads it.
func (r Range) String() string {
	if r.Bits >= 0 {
		return netip.PrefixFrom(r.First, r.Bits).String()
	}

	return r.First.String() + "-" + r.Last.String()
}

// Family is that of the range's addresses.
func (r Range) Family() Family { return FamilyOf(r.First) }

// Contains says whether an address lies in the range.
func (r Range) Contains(addr netip.Addr) bool {
	return addr.BitLen() == r.First.BitLen() && !addr.Less(r.First) && !r.Last.Less(addr)
}

func (r Range) span() span { return span{first: number(r.First), last: number(r.Last)} }

// network says whether the range is a CIDR of more than one address, whose prefix length
// is therefore that of a network.
func (r Range) network() bool { return r.Bits >= 0 && r.Bits < r.First.BitLen() }

// ParseRange reads a CIDR (10.0.0.0/24), a first and a last address (10.0.0.10-10.0.0.20,
// with blanks around them or without), or a single address (10.0.0.5/32, fd00::5/128). The
// errors say what to write instead. It takes what MetalLB takes, but for a CIDR with bits
// beyond its prefix, which may be meant for one address or for its network.
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

	return Range{}, fmt.Errorf("a bare address: write %s/%d for this one alone", addr, addr.BitLen())
}

func parseCIDR(text string) (Range, error) {
	if bare := strings.TrimSpace(text); bare != text {
		return Range{}, fmt.Errorf("%q has blanks around it: write %s", text, bare)
	}

	before, _, _ := strings.Cut(text, "/")
	if _, err := parseAddr(before); err != nil {
		return Range{}, err
	}

	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return Range{}, errors.New("not a CIDR: write it as 10.0.0.0/24 or fd00::/64")
	}

	if prefix.Masked() != prefix {
		return Range{}, fmt.Errorf("the address has bits beyond its prefix: write %s for the network, or %s/%d for this address alone",
			prefix.Masked(), prefix.Addr(), prefix.Addr().BitLen())
	}

	last := lastOf(prefix)

	return Range{First: prefix.Addr(), Last: last, Bits: prefix.Bits()}, nil
}

func parsePair(text string) (Range, error) {
	parts := strings.Split(text, "-")
	if len(parts) != 2 {
		return Range{}, errors.New("not a range: write two addresses with one hyphen, as 10.0.0.10-10.0.0.20")
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
		return Range{}, fmt.Errorf("a range from %s to %s: write one range for each family", FamilyOf(first), FamilyOf(last))
	case last.Less(first):
		return Range{}, fmt.Errorf("the range ends before it begins: write %s-%s", last, first)
	}

	return Range{First: first, Last: last, Bits: -1}, nil
}

// parseAddr reads one address in the form that all the world agrees on.
func parseAddr(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)

	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("%q is not an address: write it as 10.0.0.5 or fd00::5", text)
	case addr.Zone() != "":
		return netip.Addr{}, fmt.Errorf("%q has a zone, which only has a meaning on one machine: leave it out", text)
	case addr.Is4In6():
		return netip.Addr{}, fmt.Errorf("%q is an IPv4 address written as IPv6: write %s", text, addr.Unmap())
	default:
		return addr, nil
	}
}

// lastOf is the last address of a prefix.
func lastOf(prefix netip.Prefix) netip.Addr {
	// Not FamilyOf: ::ffff:0:0/96 is a prefix of IPv6.
	family := IPv6
	if prefix.Addr().Is4() {
		family = IPv4
	}

	return family.addr(number(prefix.Masked().Addr()).plus(size(family, prefix.Bits())).previous())
}

// size is how many addresses a prefix of this length has; that of ::/0 wraps to 0.
func size(family Family, bits int) u128 {
	host := family.bits() - bits

	switch {
	case host >= 128:
		return u128{}
	case host >= 64:
		return u128{hi: 1 << (host - 64)}
	default:
		return u128{lo: 1 << host}
	}
}
