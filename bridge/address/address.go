// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package address

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

var (
	errFamilies = errors.New("the ends are of two families")
	errAddress  = errors.New("an end is no address")
	errOrder    = errors.New("the first address is behind the last")
)

// Range is what lies between two addresses of one family, both included.
type Range struct{ First, Last netip.Addr }

// Parse reads an entry of an IPAddressPool: a CIDR, or two addresses with a hyphen and
// perhaps blanks between them. It takes what MetalLB takes (internal/config, ParseCIDR), by
// the same readers: an address of IPv4 that is written as one of IPv6 is one of IPv4.
func Parse(entry string) (Range, error) {
	first, last, isRange := strings.Cut(entry, "-")
	if !isRange {
		_, network, err := net.ParseCIDR(entry)
		if err != nil {
			return Range{}, fmt.Errorf("parse %q: %w", entry, err)
		}

		return rangeOf(network), nil
	}

	from, fromOK := netip.AddrFromSlice(net.ParseIP(strings.TrimSpace(first)))
	to, toOK := netip.AddrFromSlice(net.ParseIP(strings.TrimSpace(last)))
	from, to = from.Unmap(), to.Unmap()

	switch {
	case !fromOK, !toOK:
		return Range{}, fmt.Errorf("parse %q: %w", entry, errAddress)
	case from.Is4() != to.Is4():
		return Range{}, fmt.Errorf("parse %q: %w", entry, errFamilies)
	case to.Less(from):
		return Range{}, fmt.Errorf("parse %q: %w", entry, errOrder)
	}

	return Range{from, to}, nil
}

func rangeOf(network *net.IPNet) Range {
	last := slices.Clone(network.IP)
	for i := range last {
		last[i] |= ^network.Mask[i]
	}

	from, _ := netip.AddrFromSlice(network.IP)
	to, _ := netip.AddrFromSlice(last)

	if from.Is4In6() {
		return Range{from.Unmap(), to.Unmap()}
	}

	return Range{from, to}
}

// Contains says whether an address is in the range.
func (r Range) Contains(addr netip.Addr) bool {
	return addr.Is4() == r.First.Is4() && !addr.Less(r.First) && !r.Last.Less(addr)
}

// Cover cuts a pool's entries into CIDRs. Entries that can't be read are left out: MetalLB
// refuses such a pool whole.
func Cover(entries []string) []string {
	var out []string

	for _, entry := range entries {
		if r, err := Parse(entry); err == nil {
			out = append(out, r.cover()...)
		}
	}

	return out
}

// cover cuts a range into the fewest CIDRs, from its start on: each is as large as the
// address's alignment and the rest of the range allow.
func (r Range) cover() []string {
	var out []string

	for at := r.First; ; {
		widest := netip.PrefixFrom(at, at.BitLen())

		for length := at.BitLen() - 1; length >= 0; length-- {
			wider := netip.PrefixFrom(at, length)
			if wider.Masked().Addr() != at || r.Last.Less(lastOf(wider)) {
				break
			}

			widest = wider
		}

		out = append(out, widest.String())

		last := lastOf(widest)
		if !last.Less(r.Last) {
			return out
		}

		at = last.Next()
	}
}

// Around gives the CIDRs that an address is in, the address's own first.
func Around(addr netip.Addr) []string {
	out := make([]string, 0, addr.BitLen()+1)

	for length := addr.BitLen(); length >= 0; length-- {
		prefix, err := addr.Prefix(length)
		if err != nil {
			return nil
		}

		out = append(out, prefix.String())
	}

	return out
}

// lastOf is a CIDR's last address.
func lastOf(prefix netip.Prefix) netip.Addr {
	raw := prefix.Addr().AsSlice()
	for i := range raw {
		for bit := range 8 {
			if i*8+bit >= prefix.Bits() {
				raw[i] |= 1 << (7 - bit)
			}
		}
	}

	last, _ := netip.AddrFromSlice(raw)

	return last
}
