// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package address

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

var (
	errFamilies = errors.New("the ends are of two families")
	errZone     = errors.New("an address has a zone")
	errOrder    = errors.New("the first address is behind the last")
)

// Range is what lies between two addresses of one family, both included.
type Range struct{ First, Last netip.Addr }

// Parse reads an entry of an IPAddressPool: a CIDR, or two addresses with a hyphen and
// perhaps blanks between them (MetalLB's internal/config, ParseCIDR).
func Parse(entry string) (Range, error) {
	first, last, isRange := strings.Cut(entry, "-")
	if !isRange {
		prefix, err := netip.ParsePrefix(entry)
		if err != nil {
			return Range{}, fmt.Errorf("parse %q: %w", entry, err)
		}

		prefix = prefix.Masked()

		return Range{prefix.Addr(), lastOf(prefix)}, nil
	}

	from, err := netip.ParseAddr(strings.TrimSpace(first))
	if err != nil {
		return Range{}, fmt.Errorf("parse %q: %w", entry, err)
	}

	to, err := netip.ParseAddr(strings.TrimSpace(last))

	switch {
	case err != nil:
		return Range{}, fmt.Errorf("parse %q: %w", entry, err)
	case from.Zone() != "", to.Zone() != "":
		return Range{}, fmt.Errorf("parse %q: %w", entry, errZone)
	case from.Is4() != to.Is4():
		return Range{}, fmt.Errorf("parse %q: %w", entry, errFamilies)
	case to.Less(from):
		return Range{}, fmt.Errorf("parse %q: %w", entry, errOrder)
	}

	return Range{from, to}, nil
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
