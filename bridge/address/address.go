// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package address

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"go4.org/netipx"
)

var (
	errFamilies     = errors.New("the two addresses are not of the same family")
	errNotAddresses = errors.New("it is not a range of two IP addresses")
	errOrder        = errors.New("the first address is above the last")
)

// Parse parses an entry of an IPAddressPool: a CIDR, or two addresses with a hyphen and optional blanks
// between them. It accepts what MetalLB accepts (internal/config, ParseCIDR) and uses the same parsers.
// An IPv4-mapped IPv6 address is an IPv4 address.
func Parse(entry string) (netipx.IPRange, error) {
	firstText, lastText, isRange := strings.Cut(entry, "-")
	if !isRange {
		_, network, err := net.ParseCIDR(entry)
		if err != nil {
			return netipx.IPRange{}, fmt.Errorf("parse %q: %w", entry, err)
		}

		addr, _ := netipx.FromStdIP(network.IP)
		length, bits := network.Mask.Size()

		// The mask of an IPv4-mapped address has 128 bits, and the address has 32.

		return netipx.RangeOfPrefix(netip.PrefixFrom(addr, length-bits+addr.BitLen())), nil
	}

	first, firstOK := netipx.FromStdIP(net.ParseIP(strings.TrimSpace(firstText)))
	last, lastOK := netipx.FromStdIP(net.ParseIP(strings.TrimSpace(lastText)))

	switch {
	case !firstOK, !lastOK:
		return netipx.IPRange{}, fmt.Errorf("parse %q: %w", entry, errNotAddresses)
	case first.Is4() != last.Is4():
		return netipx.IPRange{}, fmt.Errorf("parse %q: %w", entry, errFamilies)
	case last.Less(first):
		return netipx.IPRange{}, fmt.Errorf("parse %q: %w", entry, errOrder)
	}

	return netipx.IPRangeFrom(first, last), nil
}

// SplitIntoCIDRs splits the entries of a pool into as few CIDRs as possible, in ascending order for each
// entry. It ignores entries that are not valid, because MetalLB rejects the whole pool if one entry is not
// valid.
func SplitIntoCIDRs(entries []string) []string {
	var out []string

	for _, entry := range entries {
		if r, err := Parse(entry); err == nil {
			for _, prefix := range r.Prefixes() {
				out = append(out, prefix.String())
			}
		}
	}

	return out
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
