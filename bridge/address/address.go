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
	errFamilies     = errors.New("the two addresses are not of the same family")
	errNotAddresses = errors.New("it is not a range of two IP addresses")
	errOrder        = errors.New("the first address is above the last")
)

// Range holds all addresses from First to Last, both included. Both are of the same family.
type Range struct{ First, Last netip.Addr }

// Parse parses an entry of an IPAddressPool: a CIDR, or two addresses with a hyphen and optional blanks
// between them. It accepts what MetalLB accepts (internal/config, ParseCIDR) and uses the same parsers.
// An IPv4-mapped IPv6 address is an IPv4 address.
func Parse(entry string) (Range, error) {
	firstText, lastText, isRange := strings.Cut(entry, "-")
	if !isRange {
		_, network, err := net.ParseCIDR(entry)
		if err != nil {
			return Range{}, fmt.Errorf("parse %q: %w", entry, err)
		}

		return newRange(network), nil
	}

	first, firstOK := netip.AddrFromSlice(net.ParseIP(strings.TrimSpace(firstText)))
	last, lastOK := netip.AddrFromSlice(net.ParseIP(strings.TrimSpace(lastText)))
	first, last = first.Unmap(), last.Unmap()

	switch {
	case !firstOK, !lastOK:
		return Range{}, fmt.Errorf("parse %q: %w", entry, errNotAddresses)
	case first.Is4() != last.Is4():
		return Range{}, fmt.Errorf("parse %q: %w", entry, errFamilies)
	case last.Less(first):
		return Range{}, fmt.Errorf("parse %q: %w", entry, errOrder)
	}

	return Range{first, last}, nil
}

func newRange(network *net.IPNet) Range {
	lastIP := slices.Clone(network.IP)
	for i := range lastIP {
		lastIP[i] |= ^network.Mask[i]
	}

	first, _ := netip.AddrFromSlice(network.IP)
	last, _ := netip.AddrFromSlice(lastIP)

	if first.Is4In6() {
		return Range{first.Unmap(), last.Unmap()}
	}

	return Range{first, last}
}

// Contains returns whether the address is in the range.
func (r Range) Contains(addr netip.Addr) bool {
	return addr.Is4() == r.First.Is4() && !addr.Less(r.First) && !r.Last.Less(addr)
}

// SplitIntoCIDRs splits the entries of a pool into CIDRs. It ignores entries that are not valid, because
// MetalLB rejects the whole pool if one entry is not valid.
func SplitIntoCIDRs(entries []string) []string {
	var out []string

	for _, entry := range entries {
		if r, err := Parse(entry); err == nil {
			out = append(out, r.splitIntoCIDRs()...)
		}
	}

	return out
}

// splitIntoCIDRs splits the range into as few CIDRs as possible, in ascending order. Each CIDR is as
// large as the alignment of its first address and the rest of the range allow.
func (r Range) splitIntoCIDRs() []string {
	var out []string

	for start := r.First; ; {
		widest := netip.PrefixFrom(start, start.BitLen())

		for length := start.BitLen() - 1; length >= 0; length-- {
			wider := netip.PrefixFrom(start, length)
			if wider.Masked().Addr() != start || r.Last.Less(lastAddress(wider)) {
				break
			}

			widest = wider
		}

		out = append(out, widest.String())

		last := lastAddress(widest)
		if !last.Less(r.Last) {
			return out
		}

		start = last.Next()
	}
}

// EnclosingCIDRs returns all CIDRs that contain the address, the smallest first.
func EnclosingCIDRs(addr netip.Addr) []string {
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

// lastAddress returns the last address of a CIDR.
func lastAddress(prefix netip.Prefix) netip.Addr {
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
