// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// maxGateways is the maximum number of gateways of a pool for each family.
const maxGateways = 2

// Spec is the specification of a pool as users write it.
type Spec struct {
	// Addresses are allocated in this order. ParseRange parses each entry.
	Addresses []string
	// Excluded addresses are never allocated. Each entry has the same form and must overlap Addresses.
	Excluded []string
	// Gateways are at most two addresses of each family. They are never allocated.
	Gateways []string
	// PrefixLengthV4 and PrefixLengthV6 are the prefix lengths of the network's subnets. For 0, the package
	// documentation says which length applies.
	PrefixLengthV4, PrefixLengthV6 int
}

// NewSpec returns a Spec from the fields of an API object, which has its own types for ranges and addresses.
func NewSpec[R, A ~string](addresses, excluded []R, gateways []A, lengthV4, lengthV6 int32) Spec {
	return Spec{
		Addresses: toStrings(addresses), Excluded: toStrings(excluded), Gateways: toStrings(gateways),
		PrefixLengthV4: int(lengthV4), PrefixLengthV6: int(lengthV6),
	}
}

func toStrings[T ~string](values []T) []string {
	out := make([]string, 0, len(values))
	for _, value := range values {
		out = append(out, string(value))
	}

	return out
}

// Pool is a validated Spec. It is immutable and safe for concurrent use.
type Pool struct {
	name     string
	gateways []netip.Addr
	parts    [familyCount]part
}

// part holds the addresses of one family of a pool.
type part struct {
	layout

	entries  []entry
	excluded []rangeEntry
	gateways []netip.Addr
	reserved map[netip.Addr]string
}

// rangeEntry is a range with its field path in the Spec.
type rangeEntry struct {
	Range

	field string
}

// entry is a range from which the pool allocates addresses.
type entry struct {
	rangeEntry

	// subnet is the subnet that machines with these addresses get in their network configuration.
	subnet netip.Prefix
	// isGuessed is true if neither the Spec nor a CIDR sets the prefix length.
	isGuessed bool
}

// NewPool validates a Spec and returns its Pool. The error joins one *SpecError for each problem.
func NewPool(name string, spec Spec) (*Pool, error) {
	p := &Pool{name: name}

	var problems []error

	addresses, rangeProblems := parseRanges("addresses", spec.Addresses)
	problems = append(problems, rangeProblems...)
	excluded, rangeProblems := parseRanges("excludedAddresses", spec.Excluded)
	problems = append(problems, rangeProblems...)
	problems = append(problems, p.parseGateways(spec.Gateways)...)

	if len(spec.Addresses) == 0 {
		problems = append(problems, &SpecError{Field: "addresses", Problem: "the pool has no addresses: list a CIDR or a range"})
	}

	if len(problems) > 0 {
		return nil, p.joinProblems(problems)
	}

	for i := range p.parts {
		p.parts[i].family = Family(i)
	}

	for _, r := range addresses {
		part := &p.parts[r.Family()]
		part.entries = append(part.entries, entry{rangeEntry: r})
		problems = append(problems, checkUsable(r)...)
	}

	for _, r := range excluded {
		part := &p.parts[r.Family()]
		part.excluded = append(part.excluded, r)
	}

	for _, gateway := range p.gateways {
		part := &p.parts[FamilyOf(gateway)]
		part.gateways = append(part.gateways, gateway)
	}

	lengths := [familyCount]int{IPv4: spec.PrefixLengthV4, IPv6: spec.PrefixLengthV6}
	for i := range p.parts {
		problems = append(problems, p.parts[i].build(lengths[i])...)
	}

	if len(problems) > 0 {
		return nil, p.joinProblems(problems)
	}

	return p, nil
}

func (p *Pool) joinProblems(problems []error) error {
	return fmt.Errorf("check pool %s: %w", p.name, errors.Join(problems...))
}

// Name returns the name that was passed to NewPool.
func (p *Pool) Name() string { return p.name }

// HasFamily returns whether the pool allocates addresses of a family.
func (p *Pool) HasFamily(family Family) bool { return len(p.parts[family].inOrder) > 0 }

// Size returns how many addresses of a family the pool can allocate, or the largest 64-bit number if the
// size does not fit into 64 bits.
func (p *Pool) Size(family Family) uint64 { return p.parts[family].size.saturated() }

// MachineCapacity returns how many machines can have addresses of the pool at the same time. Each machine
// needs one address of each family that the pool has.
func (p *Pool) MachineCapacity() uint64 {
	switch {
	case !p.HasFamily(IPv4):
		return p.Size(IPv6)
	case !p.HasFamily(IPv6):
		return p.Size(IPv4)
	default:
		return min(p.Size(IPv4), p.Size(IPv6))
	}
}

// PrefixFor returns an address with the prefix length that machines get, and false if the pool does not
// allocate the address.
func (p *Pool) PrefixFor(addr netip.Addr) (netip.Prefix, bool) {
	addr = addr.Unmap()
	if !addr.IsValid() || addr.Zone() != "" {
		return netip.Prefix{}, false
	}

	_, bits, found := p.parts[FamilyOf(addr)].find(toUint128(addr))
	if !found {
		return netip.Prefix{}, false
	}

	return netip.PrefixFrom(addr, bits), true
}

// Overlap returns the first run of addresses that both pools allocate, and false if there is none.
func (p *Pool) Overlap(q *Pool) (Range, bool) {
	for i := range p.parts {
		if overlap, found := p.parts[i].findOverlap(&q.parts[i].layout); found {
			family := Family(i)

			return Range{First: family.toAddr(overlap.first), Last: family.toAddr(overlap.last), Bits: -1}, true
		}
	}

	return Range{}, false
}

// refusalFor returns why the pool never allocates an address. The refusal is empty if the pool does.
func (p *Pool) refusalFor(addr netip.Addr) Refusal {
	part := &p.parts[FamilyOf(addr)]
	if _, _, found := part.find(toUint128(addr)); found {
		return ""
	}

	if slices.Contains(part.gateways, addr) {
		return RefusedGateway
	}

	for _, excluded := range part.excluded {
		if excluded.Contains(addr) {
			return RefusedExcluded
		}
	}

	for _, e := range part.entries {
		if e.Contains(addr) {
			return RefusedReserved
		}
	}

	return RefusedNotInPool
}
