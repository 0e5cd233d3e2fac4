// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kargs

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Result is what network data comes to.
type Result struct {
	// Arguments of dracut, in order. None leaves the network to dracut's defaults.
	Arguments []string
	// Warnings say what was passed over.
	Warnings []string
}

// String gives the arguments as they stand on a kernel's command line.
func (r *Result) String() string { return strings.Join(r.Arguments, " ") }

// iface is one interface.
type iface struct {
	name, mac    string
	dhcp4, dhcp6 bool
	addresses    []netip.Prefix
	routes       []route
	servers      []netip.Addr
}

type route struct {
	to  netip.Prefix
	via netip.Addr
}

// server adds a name server, once.
func (i *iface) server(a netip.Addr) {
	if !slices.Contains(i.servers, a) {
		i.servers = append(i.servers, a)
	}
}

// arguments prints interfaces: those with names by name, then the others as they came.
func (r *Result) arguments(all []iface) {
	slices.SortStableFunc(all, func(a, b iface) int {
		switch {
		case a.name == "" || b.name == "":
			return strings.Compare(b.name, a.name)
		default:
			return strings.Compare(a.name, b.name)
		}
	})

	var servers []netip.Addr

	for _, i := range all {
		id := i.name
		if id == "" {
			id = i.mac
		}

		if id == "" {
			r.warnf("an interface has neither name nor MAC address: it is left out")

			continue
		}

		r.Arguments = append(r.Arguments, i.arguments(id)...)

		for _, s := range i.servers {
			if !slices.Contains(servers, s) {
				servers = append(servers, s)
			}
		}
	}

	for _, s := range servers {
		r.Arguments = append(r.Arguments, "nameserver="+bracket(s))
	}
}

func (r *Result) warnf(format string, args ...any) {
	r.Warnings = append(r.Warnings, fmt.Sprintf(format, args...))
}

func (i *iface) arguments(id string) []string {
	var out []string

	for _, a := range i.addresses {
		length := strconv.Itoa(a.Bits())
		if a.Addr().Is4() {
			length = net.IP(net.CIDRMask(a.Bits(), 32)).String()
		}

		out = append(out, fmt.Sprintf("ip=%s:::%s::%s:static", bracket(a.Addr()), length, id))
	}

	switch {
	case i.dhcp4 && i.dhcp6:
		out = append(out, "ip="+id+":dhcp,dhcp6")
	case i.dhcp4:
		out = append(out, "ip="+id+":dhcp")
	case i.dhcp6:
		out = append(out, "ip="+id+":dhcp6")
	}

	for _, r := range i.routes {
		if r.to.Bits() == 0 {
			to := r.to.String()
			if r.to.Addr().Is6() {
				to = "[" + to + "]"
			}

			out = append(out, "rd.route="+to+":"+bracket(r.via))
		}
	}

	return out
}

// bracket puts an IPv6 address in brackets: colons separate the parts of an argument.
func bracket(a netip.Addr) string {
	if a.Is6() {
		return "[" + a.String() + "]"
	}

	return a.String()
}

// place is a value with its path, for errors.
type place struct {
	path string
	*value
}

func (p place) errorf(format string, args ...any) error {
	if p.value != nil && p.line > 0 {
		return fmt.Errorf("line %d: %s: "+format, append([]any{p.line, p.path}, args...)...)
	}

	return fmt.Errorf("%s: "+format, append([]any{p.path}, args...)...)
}

func (p place) at(key string) place {
	path := key
	if p.path != "" {
		path = p.path + "." + key
	}

	return place{path, p.get(key)}
}

// list gives the items of a list; none if it is not there.
func (p place) list() ([]place, error) {
	if p.value == nil {
		return nil, nil
	}

	if p.kind != sequence {
		return nil, p.errorf("must be a list")
	}

	var out []place
	for i, v := range p.items {
		out = append(out, place{fmt.Sprintf("%s[%d]", p.path, i), v})
	}

	return out, nil
}

// str gives a single value.
func (p place) str() (string, error) {
	switch {
	case p.null():
		return "", p.errorf("is missing")
	case p.kind != scalar || strings.ContainsFunc(p.text, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		// A blank would make another argument of the kernel.
		return "", p.errorf("must be a text without blanks")
	default:
		return p.text, nil
	}
}

// optional gives a single value, empty if it is not there.
func (p place) optional() (string, error) {
	if p.value == nil {
		return "", nil
	}

	return p.str()
}

func (p place) boolean() (bool, error) {
	if p.value == nil {
		return false, nil
	}

	switch {
	case p.kind == scalar && !p.quoted && slices.Contains([]string{"true", "True", "TRUE"}, p.text):
		return true, nil
	case p.kind == scalar && !p.quoted && slices.Contains([]string{"false", "False", "FALSE"}, p.text):
		return false, nil
	default:
		return false, p.errorf("must be true or false")
	}
}

func (p place) addr() (netip.Addr, error) {
	s, err := p.str()
	if err != nil {
		return netip.Addr{}, err
	}

	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, p.errorf("%q: is not an IP address", s)
	}

	return a, nil
}

// addrs reads a list of addresses; a single one will do.
func (p place) addrs() ([]netip.Addr, error) {
	items := []place{p}

	if p.value == nil || p.kind != scalar {
		var err error
		if items, err = p.list(); err != nil {
			return nil, err
		}
	}

	var out []netip.Addr

	for _, i := range items {
		a, err := i.addr()
		if err != nil {
			return nil, err
		}

		out = append(out, a)
	}

	return out, nil
}

// prefix reads an address with its length; without one it is a single address.
func (p place) prefix() (netip.Prefix, error) {
	s, err := p.str()
	if err != nil {
		return netip.Prefix{}, err
	}

	return prefixOf(p, s)
}

func prefixOf(p place, s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}

	if ip, mask, found := strings.Cut(s, "/"); found {
		if a, err := netip.ParseAddr(ip); err == nil && a.Zone() == "" {
			return masked(p, a, mask)
		}
	}

	return netip.Prefix{}, p.errorf("%q: is not an IP address with its length, as 10.0.0.5/24", s)
}

// masked puts an address and its netmask together: an address or a length.
func masked(p place, a netip.Addr, mask string) (netip.Prefix, error) {
	if bits, err := strconv.ParseUint(mask, 10, 8); err == nil && int(bits) <= a.BitLen() {
		return netip.PrefixFrom(a, int(bits)), nil
	}

	if m, err := netip.ParseAddr(mask); err == nil && m.Zone() == "" && m.BitLen() == a.BitLen() {
		if ones, size := net.IPMask(m.AsSlice()).Size(); size > 0 {
			return netip.PrefixFrom(a, ones), nil
		}
	}

	return netip.Prefix{}, p.errorf("%q: is not a netmask of %s: write an address or a prefix length", mask, a)
}

// within reads an address at one key and its netmask at another. Without a netmask the
// address may carry its length itself.
func within(p place, address, netmask string) (netip.Prefix, error) {
	mask, err := p.at(netmask).optional()
	if err != nil {
		return netip.Prefix{}, err
	}

	if mask == "" {
		return p.at(address).prefix()
	}

	a, err := p.at(address).addr()
	if err != nil {
		return netip.Prefix{}, err
	}

	return masked(p.at(netmask), a, mask)
}

// identify reads an interface's name and MAC address.
func (i *iface) identify(name, mac place) error {
	var err error
	if i.name, err = name.optional(); err != nil {
		return err
	}

	text, err := mac.optional()
	if err != nil || text == "" {
		return err
	}

	hw, err := net.ParseMAC(text)
	if err != nil || len(hw) != 6 {
		return mac.errorf("%q: is not a MAC address", text)
	}

	i.mac = hw.String()

	return nil
}

// everywhere is the route of a gateway.
func everywhere(gateway netip.Addr) route {
	if gateway.Is4() {
		return route{netip.PrefixFrom(netip.IPv4Unspecified(), 0), gateway}
	}

	return route{netip.PrefixFrom(netip.IPv6Unspecified(), 0), gateway}
}
