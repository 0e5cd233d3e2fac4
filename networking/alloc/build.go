// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
)

// What a reserved address is.
const (
	networkAddress   = "network"
	broadcastAddress = "broadcast"
	anycastAddress   = "subnet-router anycast"
)

// build finds the subnets of the entries, and numbers what can be given. The result is
// what is wrong.
func (p *part) build(length int) []error {
	if len(p.entries) == 0 {
		return p.idle(length)
	}

	if problems := p.findSubnets(length); len(problems) > 0 {
		return problems
	}

	problems := p.checkGateways()
	p.reserve()
	problems = append(problems, p.checkSingles()...)
	problems = append(problems, p.checkExcluded()...)

	var used spans
	for _, out := range p.excluded {
		used = used.add(out.span())
	}

	for _, gateway := range p.gateways {
		used = used.add(span{first: number(gateway), last: number(gateway)})
	}

	for addr := range p.reserved {
		used = used.add(span{first: number(addr), last: number(addr)})
	}

	for _, in := range p.entries {
		for _, run := range used.missing(in.span()) {
			p.append(run, in.subnet.Bits())
		}

		used = used.add(in.span())
	}

	p.finish()

	if len(p.inOrder) == 0 && len(problems) == 0 {
		problems = append(problems, &SpecError{
			Field: "addresses", Problem: fmt.Sprintf("the pool has no %s address left to give: list more, or exclude less", p.family),
		})
	}

	return problems
}

// idle checks a family of which the pool has no addresses.
func (p *part) idle(length int) []error {
	var problems []error

	if length != 0 {
		problems = append(problems, p.lengthError(length, fmt.Sprintf("the pool has no %s addresses: leave it out", p.family)))
	}

	for _, gateway := range p.gateways {
		problems = append(problems, &SpecError{
			Field: "gateway", Value: gateway.String(),
			Problem: fmt.Sprintf("it is in no subnet of the pool, which has no %s addresses: leave it out, or list some", p.family),
		})
	}

	return append(problems, p.checkExcluded()...)
}

func (p *part) lengthError(length int, problem string) error {
	field := "prefixLengthV4"
	if p.family == IPv6 {
		field = "prefixLengthV6"
	}

	return &SpecError{Field: field, Value: strconv.Itoa(length), Problem: problem}
}

// findSubnets gives each entry its subnet.
func (p *part) findSubnets(length int) []error {
	if length < 0 || length > p.family.bits() {
		return []error{p.lengthError(length, fmt.Sprintf("an %s prefix length is from 1 to %d", p.family, p.family.bits()))}
	}

	var problems []error

	for i := range p.entries {
		in := &p.entries[i]

		bits := length
		if bits == 0 {
			bits, in.guessed = p.lengthOf(in.Range)
		}

		if bits == 0 {
			problems = append(problems, &SpecError{
				Field: in.field, Value: in.String(),
				Problem: "its prefix length is not known: give the prefix length, name the gateway, or write the network as a CIDR",
			})

			continue
		}

		in.subnet = netip.PrefixFrom(in.First, bits).Masked()
		if !in.subnet.Contains(in.Last) {
			problems = append(problems, &SpecError{
				Field: in.field, Value: in.String(),
				Problem: fmt.Sprintf("it does not fit into one subnet of prefix length %d: split it, or give a shorter length", bits),
			})
		}
	}

	return problems
}

// usualV6 is the prefix length of IPv6 networks (RFC 4291, 2.5.4).
const usualV6 = 64

// lengthOf is the prefix length of a range where the Spec gives none, and whether that is a
// guess; 0 if there is not even that.
func (p *part) lengthOf(in Range) (bits int, guessed bool) {
	for _, other := range p.entries {
		if other.network() && other.Bits > bits && other.span().holds(in.span()) {
			bits = other.Bits
		}
	}

	if in.network() {
		return in.Bits, false
	}

	if bits > 0 {
		return bits, false
	}

	all := in.span()
	for _, other := range p.entries {
		all = span{first: lower(all.first, number(other.First)), last: higher(all.last, number(other.Last))}
	}

	known := false

	for _, gateway := range p.gateways {
		if !onLink(gateway) {
			known = true
			all = span{first: lower(all.first, number(gateway)), last: higher(all.last, number(gateway))}
		}
	}

	// Addresses that have nothing in common have length 0, which is no subnet either.
	bits = p.family.bits() - u128{hi: all.first.hi ^ all.last.hi, lo: all.first.lo ^ all.last.lo}.bitLen()

	switch {
	case p.family == IPv6:
		return min(bits, usualV6), true
	case !known:
		return 0, false
	default:
		return bits, true
	}
}

// Guessed are the subnets whose prefix length nobody has said, in the order of the entries: of
// IPv4 the smallest that covers the addresses and their gateway, which may cut a network short,
// of IPv6 a /64.
func (p *Pool) Guessed() []netip.Prefix {
	var out []netip.Prefix

	for i := range p.parts {
		for _, in := range p.parts[i].entries {
			if in.guessed && !slices.Contains(out, in.subnet) {
				out = append(out, in.subnet)
			}
		}
	}

	return out
}

// checkGateways wants each gateway in a subnet, and each subnet to have one, if there
// are any: a machine can't reach a gateway outside its subnet. One that is local to the
// link is reached from any.
func (p *part) checkGateways() []error {
	var problems []error

	for _, gateway := range p.gateways {
		if !onLink(gateway) {
			problems = append(problems, p.checkGateway(gateway)...)
		}
	}

	if len(problems) > 0 || len(p.gateways) == 0 || slices.ContainsFunc(p.gateways, onLink) {
		return problems
	}

	for _, in := range p.entries {
		if !slices.ContainsFunc(p.gateways, in.subnet.Contains) {
			problems = append(problems, &SpecError{
				Field: in.field, Value: in.String(), Problem: fmt.Sprintf(
					"no gateway is in its subnet %s, so its machines reach none: name one, or give the prefix length of the network",
					in.subnet),
			})
		}
	}

	return problems
}

func (p *part) checkGateway(gateway netip.Addr) []error {
	complain := func(problem string, args ...any) []error {
		return []error{&SpecError{
			Field: "gateway", Value: gateway.String(),
			Problem: fmt.Sprintf(problem, args...) + ": fix it, or give the prefix length of the network",
		}}
	}

	i := slices.IndexFunc(p.entries, func(in entry) bool { return in.subnet.Contains(gateway) })
	if i < 0 {
		return complain("it is in no subnet of the pool, such as %s", p.entries[0].subnet)
	}

	subnet := p.entries[i].subnet
	if what := special(subnet, gateway); what == networkAddress || what == broadcastAddress {
		return complain("it is the %s address of %s", what, subnet)
	}

	return nil
}

// onLink says whether an address is one of IPv6 that is local to the link. It tells
// nothing of the network's subnet, and is reached from any.
func onLink(addr netip.Addr) bool { return addr.Is6() && addr.IsLinkLocalUnicast() }

// reserve notes the addresses that have a meaning of their own in a subnet.
func (p *part) reserve() {
	p.reserved = map[netip.Addr]string{}
	note := func(subnet netip.Prefix) {
		for _, addr := range []netip.Addr{subnet.Addr(), lastOf(subnet)} {
			if what := special(subnet, addr); what != "" {
				p.reserved[addr] = fmt.Sprintf("the %s address of %s", what, subnet)
			}
		}
	}

	for _, in := range p.entries {
		note(in.subnet)

		// A CIDR of IPv6 that is part of a larger subnet has no anycast address.
		if p.family == IPv4 && in.network() {
			note(netip.PrefixFrom(in.First, in.Bits))
		}
	}
}

// special says what an address is in a subnet; empty if it is one for a machine. In a
// subnet of two addresses, both are (RFC 3021, RFC 6164).
func special(subnet netip.Prefix, addr netip.Addr) string {
	switch {
	case subnet.Bits() > addr.BitLen()-2:
		return ""
	case addr.Is6() && addr == subnet.Addr():
		return anycastAddress
	case addr.Is6():
		return ""
	case addr == subnet.Addr():
		return networkAddress
	case addr == lastOf(subnet):
		return broadcastAddress
	default:
		return ""
	}
}

// checkSingles wants an address that is listed by itself to be one that can be given.
func (p *part) checkSingles() []error {
	var problems []error

	for _, in := range p.entries {
		what, is := p.reserved[in.First]
		if slices.Contains(p.gateways, in.First) {
			what, is = "a gateway", true
		}

		if is && in.span().single() {
			problems = append(problems, &SpecError{
				Field: in.field, Value: in.String(),
				Problem: fmt.Sprintf("it is %s, which no machine may have: leave it out, or give the prefix length of the network", what),
			})
		}
	}

	return problems
}

// checkExcluded wants each exclusion to exclude something.
func (p *part) checkExcluded() []error {
	var (
		problems []error
		all      spans
	)

	for _, in := range p.entries {
		all = all.add(in.span())
	}

	for _, out := range p.excluded {
		if !all.meet(out.span()) {
			problems = append(problems, &SpecError{
				Field: out.field, Value: out.String(), Problem: "it is outside the pool: fix it, or leave it out",
			})
		}
	}

	return problems
}
