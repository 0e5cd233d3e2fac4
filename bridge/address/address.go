// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package address

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"strings"
)

var (
	errFamilies = errors.New("the ends are of two families")
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

// Cover cuts the IPv4 part of a pool's entries into CIDRs. Entries that can't be read are
// left out: MetalLB refuses such a pool whole.
func Cover(entries []string) []string {
	var out []string

	for _, entry := range entries {
		r, err := Parse(entry)
		if err != nil || !r.First.Is4() {
			continue
		}

		out = append(out, r.cover()...)
	}

	return out
}

// cover cuts an IPv4 range into the fewest CIDRs, from its start on: each is as large as
// the address's alignment and the rest of the range allow.
func (r Range) cover() []string {
	var out []string

	for at, end := number(r.First), number(r.Last); at <= end; {
		size := min(32, bits.TrailingZeros64(at))
		for uint64(1)<<size > end-at+1 {
			size--
		}

		out = append(out, netip.PrefixFrom(fromNumber(at), 32-size).String())
		at += uint64(1) << size
	}

	return out
}

// Around gives the CIDRs that an IPv4 address is in, /32 first.
func Around(addr netip.Addr) []string {
	out := make([]string, 0, 33)

	for length := 32; length >= 0; length-- {
		prefix, err := addr.Prefix(length)
		if err != nil {
			return nil
		}

		out = append(out, prefix.String())
	}

	return out
}

func number(addr netip.Addr) uint64 {
	b := addr.As4()

	return uint64(b[0])<<24 | uint64(b[1])<<16 | uint64(b[2])<<8 | uint64(b[3])
}

func fromNumber(n uint64) netip.Addr {
	// #nosec G115 -- n has 32 bits
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16 & 0xff), byte(n >> 8 & 0xff), byte(n & 0xff)})
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
