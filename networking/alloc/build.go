// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"go4.org/netipx"
)

// Roles of reserved addresses.
const (
	networkAddress   = "network"
	broadcastAddress = "broadcast"
	anycastAddress   = "subnet-router anycast"
)

// build finds the subnet of each entry, and numbers the addresses that the pool can allocate. prefixLength
// is the one in the Spec, or 0. build returns the problems that it finds.
func (p *part) build(prefixLength int) []error {
	if len(p.entries) == 0 {
		return p.checkEmpty(prefixLength)
	}

	if problems := p.findSubnets(prefixLength); len(problems) > 0 {
		return problems
	}

	problems := p.checkGateways()
	p.reserve()
	problems = append(problems, p.checkSingleAddresses()...)
	problems = append(problems, p.checkExcluded()...)

	var unavailable spans
	for _, excluded := range p.excluded {
		unavailable = unavailable.add(excluded.span())
	}

	for _, gateway := range p.gateways {
		unavailable = unavailable.add(span{first: toUint128(gateway), last: toUint128(gateway)})
	}

	for addr := range p.reserved {
		unavailable = unavailable.add(span{first: toUint128(addr), last: toUint128(addr)})
	}

	for _, e := range p.entries {
		for _, run := range unavailable.findGaps(e.span()) {
			p.appendRun(run, e.subnet.Bits())
		}

		unavailable = unavailable.add(e.span())
	}

	p.finish()

	if len(p.inOrder) == 0 && len(problems) == 0 {
		problems = append(problems, &SpecError{
			Field: "addresses", Problem: fmt.Sprintf("the pool has no %s address left to allocate: list more, or exclude fewer", p.family),
		})
	}

	return problems
}

// checkEmpty checks a family for which the pool lists no addresses.
func (p *part) checkEmpty(length int) []error {
	var problems []error

	if length != 0 {
		problems = append(problems, p.newLengthError(length, fmt.Sprintf("the pool has no %s addresses: remove this field", p.family)))
	}

	for _, gateway := range p.gateways {
		problems = append(problems, &SpecError{
			Field: "gateway", Value: gateway.String(),
			Problem: fmt.Sprintf("the pool has no %s addresses: remove this gateway, or list addresses in its subnet", p.family),
		})
	}

	return append(problems, p.checkExcluded()...)
}

func (p *part) newLengthError(length int, problem string) error {
	field := "prefixLengthV4"
	if p.family == IPv6 {
		field = "prefixLengthV6"
	}

	return &SpecError{Field: field, Value: strconv.Itoa(length), Problem: problem}
}

// findSubnets sets the subnet of each entry.
func (p *part) findSubnets(length int) []error {
	if length < 0 || length > p.family.bits() {
		return []error{p.newLengthError(length, fmt.Sprintf("an %s prefix length must be from 1 to %d", p.family, p.family.bits()))}
	}

	var problems []error

	for i := range p.entries {
		e := &p.entries[i]

		bits := length
		if bits == 0 {
			bits, e.isGuessed = p.inferLength(e.Range)
		}

		if bits == 0 {
			problems = append(problems, &SpecError{
				Field: e.field, Value: e.String(),
				Problem: "its prefix length is unknown: set the prefix length, set the gateway, or write the network as a CIDR",
			})

			continue
		}

		e.subnet = netip.PrefixFrom(e.First, bits).Masked()
		if !e.subnet.Contains(e.Last) {
			problems = append(problems, &SpecError{
				Field: e.field, Value: e.String(),
				Problem: fmt.Sprintf("it does not fit into one subnet of prefix length %d: split it, or set a shorter prefix length", bits),
			})
		}
	}

	return problems
}

// defaultPrefixLengthV6 is the usual prefix length of an IPv6 network (RFC 4291, 2.5.4).
const defaultPrefixLengthV6 = 64

// inferLength returns the prefix length of a range when the Spec sets none. isGuessed is true if the
// length follows from no CIDR of the pool. The length is 0 if it cannot be guessed either.
func (p *part) inferLength(r Range) (bits int, isGuessed bool) {
	if r.isNetwork() {
		return r.Bits, false
	}

	for _, other := range p.entries {
		if other.isNetwork() && other.Bits > bits && other.span().contains(r.span()) {
			bits = other.Bits
		}
	}

	if bits > 0 {
		return bits, false
	}

	enclosing := r.span()
	for _, other := range p.entries {
		enclosing.first = minUint128(enclosing.first, toUint128(other.First))
		enclosing.last = maxUint128(enclosing.last, toUint128(other.Last))
	}

	hasGateway := false

	for _, gateway := range p.gateways {
		if !isLinkLocal(gateway) {
			hasGateway = true
			enclosing.first = minUint128(enclosing.first, toUint128(gateway))
			enclosing.last = maxUint128(enclosing.last, toUint128(gateway))
		}
	}

	// Addresses without a common prefix get length 0, which is not a valid subnet either.
	bits = p.family.bits() - u128{hi: enclosing.first.hi ^ enclosing.last.hi, lo: enclosing.first.lo ^ enclosing.last.lo}.bitLen()

	switch {
	case p.family == IPv6:
		return min(bits, defaultPrefixLengthV6), true
	case !hasGateway:
		return 0, false
	default:
		return bits, true
	}
}

// GuessedSubnets returns the subnets whose prefix length was guessed because neither the Spec nor a CIDR
// sets it, in the order of the entries. An IPv4 guess is the smallest subnet that contains the addresses
// and their gateway, so it may be smaller than the real network. An IPv6 guess is at least a /64.
func (p *Pool) GuessedSubnets() []netip.Prefix {
	var out []netip.Prefix

	for i := range p.parts {
		for _, e := range p.parts[i].entries {
			if e.isGuessed && !slices.Contains(out, e.subnet) {
				out = append(out, e.subnet)
			}
		}
	}

	return out
}

// checkGateways checks that each gateway is in a subnet of the pool and, if the Spec has gateways, that
// each subnet has a gateway. A machine cannot reach a gateway outside its subnet, except for a link-local
// gateway, which all subnets on the link can reach.
func (p *part) checkGateways() []error {
	var problems []error

	for _, gateway := range p.gateways {
		if !isLinkLocal(gateway) {
			problems = append(problems, p.checkGateway(gateway)...)
		}
	}

	if len(problems) > 0 || len(p.gateways) == 0 || slices.ContainsFunc(p.gateways, isLinkLocal) {
		return problems
	}

	for _, e := range p.entries {
		if !slices.ContainsFunc(p.gateways, e.subnet.Contains) {
			problems = append(problems, &SpecError{
				Field: e.field, Value: e.String(), Problem: fmt.Sprintf(
					"no gateway is in its subnet %s, so machines cannot reach one: add a gateway, or set the prefix length of the network",
					e.subnet),
			})
		}
	}

	return problems
}

func (p *part) checkGateway(gateway netip.Addr) []error {
	newProblem := func(problem string, args ...any) []error {
		return []error{&SpecError{
			Field: "gateway", Value: gateway.String(),
			Problem: fmt.Sprintf(problem, args...) + ": correct it, or set the prefix length of the network",
		}}
	}

	i := slices.IndexFunc(p.entries, func(e entry) bool { return e.subnet.Contains(gateway) })
	if i < 0 {
		return newProblem("it is in no subnet of the pool, such as %s", p.entries[0].subnet)
	}

	subnet := p.entries[i].subnet
	if role := roleOf(subnet, gateway); role == networkAddress || role == broadcastAddress {
		return newProblem("it is the %s address of %s", role, subnet)
	}

	return nil
}

// isLinkLocal returns whether an address is a link-local IPv6 address. Such a gateway does not show
// which subnet the network has, and all subnets can reach it.
func isLinkLocal(addr netip.Addr) bool { return addr.Is6() && addr.IsLinkLocalUnicast() }

// reserve records the addresses that have a reserved role in the subnet of an entry.
func (p *part) reserve() {
	p.reserved = map[netip.Addr]string{}
	reserveIn := func(subnet netip.Prefix) {
		for _, addr := range []netip.Addr{subnet.Addr(), netipx.PrefixLastIP(subnet)} {
			if role := roleOf(subnet, addr); role != "" {
				p.reserved[addr] = fmt.Sprintf("the %s address of %s", role, subnet)
			}
		}
	}

	for _, e := range p.entries {
		reserveIn(e.subnet)

		// An IPv6 CIDR that is part of a larger subnet has no anycast address of its own.
		if p.family == IPv4 && e.isNetwork() {
			reserveIn(netip.PrefixFrom(e.First, e.Bits))
		}
	}
}

// roleOf returns the reserved role that an address has in a subnet. The role is empty if a machine can
// use the address. In a subnet of two addresses, machines can use both (RFC 3021, RFC 6164).
func roleOf(subnet netip.Prefix, addr netip.Addr) string {
	switch {
	case subnet.Bits() > addr.BitLen()-2:
		return ""
	case addr.Is6() && addr == subnet.Addr():
		return anycastAddress
	case addr.Is6():
		return ""
	case addr == subnet.Addr():
		return networkAddress
	case addr == netipx.PrefixLastIP(subnet):
		return broadcastAddress
	default:
		return ""
	}
}

// checkSingleAddresses checks that the pool can allocate each address that is an entry of its own.
func (p *part) checkSingleAddresses() []error {
	var problems []error

	for _, e := range p.entries {
		role, isReserved := p.reserved[e.First]
		if slices.Contains(p.gateways, e.First) {
			role, isReserved = "a gateway", true
		}

		if isReserved && e.span().isSingle() {
			problems = append(problems, &SpecError{
				Field: e.field, Value: e.String(),
				Problem: fmt.Sprintf("it is %s, which no machine can use: remove it, or set the prefix length of the network", role),
			})
		}
	}

	return problems
}

// checkExcluded checks that each exclusion overlaps an entry.
func (p *part) checkExcluded() []error {
	var (
		problems []error
		all      spans
	)

	for _, e := range p.entries {
		all = all.add(e.span())
	}

	for _, excluded := range p.excluded {
		if !all.overlaps(excluded.span()) {
			problems = append(problems, &SpecError{
				Field: excluded.field, Value: excluded.String(), Problem: "it is outside the pool: correct it, or remove it",
			})
		}
	}

	return problems
}
