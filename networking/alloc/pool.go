// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// maxGateways is how many gateways a pool may name for each family.
const maxGateways = 2

// Spec is a pool as users write it.
type Spec struct {
	// Addresses to give, in this order; each entry in the form that ParseRange reads.
	Addresses []string
	// Excluded are never given. Each entry, in the same form, has to meet Addresses.
	Excluded []string
	// Gateways are addresses of either family, at most two of each. They are never given.
	Gateways []string
	// PrefixLengthV4 and PrefixLengthV6 are those of the network's subnet, 0 for what
	// the package's description says.
	PrefixLengthV4, PrefixLengthV6 int
}

// SpecOf is the Spec of an API's object, where ranges and addresses have types of their own.
func SpecOf[R, A ~string](addresses, excluded []R, gateways []A, lengthV4, lengthV6 int32) Spec {
	return Spec{
		Addresses: texts(addresses), Excluded: texts(excluded), Gateways: texts(gateways),
		PrefixLengthV4: int(lengthV4), PrefixLengthV6: int(lengthV6),
	}
}

func texts[T ~string](in []T) []string {
	out := make([]string, 0, len(in))
	for _, text := range in {
		out = append(out, string(text))
	}

	return out
}

// Pool is a checked Spec. It does not change, and many may use it at once.
type Pool struct {
	name     string
	gateways []netip.Addr
	parts    [families]part
}

// part is a pool's half of one family.
type part struct {
	layout

	entries  []entry
	excluded []listed
	gateways []netip.Addr
	reserved map[netip.Addr]string
}

// listed is an entry of a list, with its place in the Spec.
type listed struct {
	Range

	field string
}

// entry is one that addresses are given from.
type entry struct {
	listed

	// subnet is the one that the machines with these addresses are told they are in.
	subnet netip.Prefix
	// guessed says that nobody has said its length.
	guessed bool
}

// NewPool checks a Spec. The error joins a *SpecError for each thing that is wrong.
func NewPool(name string, spec Spec) (*Pool, error) {
	p := &Pool{name: name}

	var problems []error

	addresses, bad := readRanges("addresses", spec.Addresses)
	problems = append(problems, bad...)
	excluded, bad := readRanges("excludedAddresses", spec.Excluded)
	problems = append(problems, bad...)
	problems = append(problems, p.readGateways(spec.Gateways)...)

	if len(spec.Addresses) == 0 {
		problems = append(problems, &SpecError{Field: "addresses", Problem: "the pool has no addresses: list a CIDR or a range"})
	}

	if len(problems) > 0 {
		return nil, p.wrong(problems)
	}

	for i := range p.parts {
		p.parts[i].family = Family(i)
	}

	for _, in := range addresses {
		part := &p.parts[in.Family()]
		part.entries = append(part.entries, entry{listed: in})
		problems = append(problems, unusable(in)...)
	}

	for _, out := range excluded {
		part := &p.parts[out.Family()]
		part.excluded = append(part.excluded, out)
	}

	for _, gateway := range p.gateways {
		part := &p.parts[FamilyOf(gateway)]
		part.gateways = append(part.gateways, gateway)
	}

	lengths := [families]int{IPv4: spec.PrefixLengthV4, IPv6: spec.PrefixLengthV6}
	for i := range p.parts {
		problems = append(problems, p.parts[i].build(lengths[i])...)
	}

	if len(problems) > 0 {
		return nil, p.wrong(problems)
	}

	return p, nil
}

func (p *Pool) wrong(problems []error) error {
	return fmt.Errorf("check pool %s: %w", p.name, errors.Join(problems...))
}

// Name is the one that NewPool was given.
func (p *Pool) Name() string { return p.name }

// Has says whether the pool gives addresses of a family.
func (p *Pool) Has(family Family) bool { return len(p.parts[family].inOrder) > 0 }

// Size is how many addresses of a family the pool can give; what does not fit into
// 64 bits is the largest number that does.
func (p *Pool) Size(family Family) uint64 { return p.parts[family].size.saturated() }

// Machines is how many machines the pool can serve at once: each needs an address of
// each family that the pool has.
func (p *Pool) Machines() uint64 {
	switch {
	case !p.Has(IPv4):
		return p.Size(IPv6)
	case !p.Has(IPv6):
		return p.Size(IPv4)
	default:
		return min(p.Size(IPv4), p.Size(IPv6))
	}
}

// Prefix is an address of the pool with its prefix length, as machines get it; false
// if the pool does not give the address.
func (p *Pool) Prefix(addr netip.Addr) (netip.Prefix, bool) {
	addr = addr.Unmap()
	if !addr.IsValid() || addr.Zone() != "" {
		return netip.Prefix{}, false
	}

	_, bits, found := p.parts[FamilyOf(addr)].find(number(addr))
	if !found {
		return netip.Prefix{}, false
	}

	return netip.PrefixFrom(addr, bits), true
}

// Gateways are those of the pool, in the order of the Spec.
func (p *Pool) Gateways() []netip.Addr { return slices.Clone(p.gateways) }

// Overlap is the first run of addresses that both pools give; false if there is none.
func (p *Pool) Overlap(q *Pool) (Range, bool) {
	for i := range p.parts {
		if both, found := p.parts[i].common(&q.parts[i].layout); found {
			family := Family(i)

			return Range{First: family.addr(both.first), Last: family.addr(both.last), Bits: -1}, true
		}
	}

	return Range{}, false
}

// refusal is why the pool never gives an address; empty if it does.
func (p *Pool) refusal(addr netip.Addr) Refusal {
	part := &p.parts[FamilyOf(addr)]
	if _, _, found := part.find(number(addr)); found {
		return ""
	}

	if slices.Contains(part.gateways, addr) {
		return RefusedGateway
	}

	for _, out := range part.excluded {
		if out.Contains(addr) {
			return RefusedExcluded
		}
	}

	for _, in := range part.entries {
		if in.Contains(addr) {
			return RefusedReserved
		}
	}

	return RefusedOutside
}
