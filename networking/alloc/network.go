// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
)

// Held is an address that is in use.
type Held struct {
	// Owner is who has it: any text that is one machine's interface alone on this
	// network, such as the machine's UID.
	Owner string
	// Pool is the name of the pool that it came from.
	Pool string
	// Address is the address and the prefix length that the owner got with it; they
	// stay as they are when the pool changes.
	Address netip.Prefix
}

// Usage is how full a pool is, in addresses of one family. Numbers that do not fit into
// 64 bits are the largest number that does.
type Usage struct {
	// Size is how many addresses the pool gives, Free how many of them can be had now.
	Size, Free uint64
}

// Network is the pools of one network, and who has which address. Many may use it at
// once. An address is in one pool, and has one owner, at most.
type Network struct {
	name string

	mu          sync.RWMutex
	pools       map[string]*state
	assignments assignments
}

// state is a pool and what of it is free.
type state struct {
	pool *Pool
	free [families]freeSet
	// used is how many addresses of the pool are not free.
	used [families]uint64
}

// NewNetwork makes a network without pools.
func NewNetwork(name string) *Network {
	return &Network{name: name, pools: map[string]*state{}, assignments: newAssignments()}
}

// Rebuild makes a network of its pools and of what the machines' statuses say is in use,
// both in the order in which they are to win if they contradict each other. The network
// can be used even if there is an error, which joins an *OverlapError for each pool and
// a *ConflictError for each address that was left out.
func Rebuild(name string, pools []*Pool, held []Held) (*Network, error) {
	n := NewNetwork(name)

	var problems []error

	for _, pool := range pools {
		if _, err := n.SetPool(pool); err != nil {
			problems = append(problems, err)
		}
	}

	for _, h := range held {
		if err := n.Restore(h); err != nil {
			problems = append(problems, err)
		}
	}

	return n, errors.Join(problems...)
}

// SetPool adds a pool, or puts it in the place of the one with its name. Addresses that
// are in use stay with their owners; the result are those of the pool that it no longer
// gives, in order: once released, they are not given again. With an *OverlapError, all
// is as it was before.
func (n *Network) SetPool(pool *Pool) ([]Held, error) {
	n.mu.Lock()
	defer n.mu.Unlock()

	names := make([]string, 0, len(n.pools))
	for name := range n.pools {
		names = append(names, name)
	}

	slices.Sort(names)

	for _, name := range names {
		if both, found := pool.Overlap(n.pools[name].pool); found && name != pool.name {
			return nil, &OverlapError{Network: n.name, Pool: pool.name, Other: name, Range: both}
		}
	}

	n.pools[pool.name] = &state{pool: pool}
	n.count()

	return n.outside(pool.name), nil
}

// RemovePool takes a pool away. The result are its addresses that are in use, in order:
// they stay with their owners until they are released.
func (n *Network) RemovePool(name string) []Held {
	n.mu.Lock()
	defer n.mu.Unlock()

	delete(n.pools, name)
	n.count()

	return n.outside(name)
}

// count finds anew what is free in each pool: one pool's gateways, and addresses that
// it left behind, may be in another one's ranges.
func (n *Network) count() {
	for _, s := range n.pools {
		for i := range s.free {
			s.free[i], s.used[i] = newFreeSet(), 0
			if size := s.pool.parts[i].size; size != (u128{}) {
				s.free[i].fill(span{last: size.previous()})
			}
		}
	}

	for _, s := range n.pools {
		for _, gateway := range s.pool.gateways {
			n.take(gateway)
		}
	}

	for _, r := range n.assignments.records {
		if r.Owner != "" {
			n.take(r.Address.Addr())
		}
	}
}

// take makes an address not free in the pool that gives it, if one does.
func (n *Network) take(addr netip.Addr) {
	family := FamilyOf(addr)

	for _, s := range n.pools {
		if at, _, found := s.pool.parts[family].find(number(addr)); found {
			s.take(family, at)

			return
		}
	}
}

func (s *state) take(family Family, at u128) {
	if s.free[family].take(at) {
		s.used[family]++
	}
}

// Acquire gives an owner one address of each family that the pool has: those asked for,
// else the lowest free ones. What the owner has already, it keeps, so that asking again
// changes nothing. The result are all addresses of the owner, IPv4 first, each with its
// prefix length; they have to be on record before they are used.
//
// Errors are *ExhaustedError, *UnavailableError, and ErrNoPool; nothing is taken then.
func (n *Network) Acquire(pool, owner string, want ...netip.Addr) ([]netip.Prefix, error) {
	if owner == "" {
		return nil, fmt.Errorf("acquire an address of pool %s: it needs an owner", pool)
	}

	n.mu.Lock()
	defer n.mu.Unlock()

	s, found := n.pools[pool]
	if !found {
		return nil, fmt.Errorf("acquire an address of pool %s on network %s: %w", pool, n.name, ErrNoPool)
	}

	held := n.assignments.of(owner)

	chosen, err := n.choose(s, owner, held, want)
	if err != nil {
		return nil, err
	}

	for _, at := range chosen {
		if !at.IsValid() {
			continue
		}

		family := FamilyOf(at.Addr())
		position, _, _ := s.pool.parts[family].find(number(at.Addr()))
		s.take(family, position)

		h := Held{Owner: owner, Pool: pool, Address: at}
		n.assignments.add(h)
		held = append(held, h)
	}

	return prefixes(held), nil
}

// choose picks the addresses that an owner lacks, by family. It takes none.
func (n *Network) choose(s *state, owner string, held []Held, want []netip.Addr) ([families]netip.Prefix, error) {
	var (
		has          [families]bool
		chosen, none [families]netip.Prefix
	)

	for _, h := range held {
		has[FamilyOf(h.Address.Addr())] = true
	}

	for _, addr := range want {
		addr = addr.Unmap()
		family := FamilyOf(addr)

		if slices.ContainsFunc(held, func(h Held) bool { return h.Address.Addr() == addr }) {
			continue
		}

		prefix, err := n.chooseExactly(s, owner, addr, has[family])
		if err != nil {
			return none, err
		}

		has[family], chosen[family] = true, prefix
	}

	for i := range has {
		family := Family(i)
		if has[i] || !s.pool.Has(family) {
			continue
		}

		at, found := s.free[i].lowest()
		if !found {
			return none, &ExhaustedError{Network: n.name, Pool: s.pool.name, Family: family, Size: s.pool.Size(family)}
		}

		addr, bits := s.pool.parts[i].address(at)
		chosen[i] = netip.PrefixFrom(family.addr(addr), bits)
	}

	return chosen, nil
}

func (n *Network) chooseExactly(s *state, owner string, addr netip.Addr, second bool) (netip.Prefix, error) {
	no := &UnavailableError{Network: n.name, Pool: s.pool.name, Address: addr}

	prefix, given := s.pool.Prefix(addr)
	holder, held := n.assignments.holder(addr)

	switch {
	case !given:
		no.Refusal = RefusedOutside
		if addr.IsValid() && addr.Zone() == "" {
			no.Refusal = s.pool.refusal(addr)
		}
	case held:
		no.Refusal, no.Holder = RefusedHeld, holder
	case second:
		no.Refusal, no.Holder = RefusedSecond, owner
	default:
		at, _, _ := s.pool.parts[FamilyOf(addr)].find(number(addr))
		if s.free[FamilyOf(addr)].has(at) {
			return prefix, nil
		}

		no.Refusal = RefusedGateway
	}

	return netip.Prefix{}, no
}

// Restore puts on record that an address is in use, whatever the pools say: machines
// that have it are not asked. It may be called before the pool is there. The error is a
// *ConflictError if somebody else has the address.
func (n *Network) Restore(h Held) error {
	addr := h.Address.Addr()
	if h.Owner == "" || !h.Address.IsValid() || addr.Is4In6() {
		return fmt.Errorf("restore address %q of %q on network %s: it needs an owner, and the form 10.0.0.5/24 or fd00::5/64",
			h.Address, h.Owner, n.name)
	}

	n.mu.Lock()
	defer n.mu.Unlock()

	switch holder, held := n.assignments.holder(addr); {
	case held && holder != h.Owner:
		return &ConflictError{Network: n.name, Address: addr, Owner: h.Owner, Holder: holder}
	case held:
		n.assignments.change(h)
	default:
		n.take(addr)
		n.assignments.add(h)
	}

	return nil
}

// Release frees all addresses of an owner, and returns them, IPv4 first. An owner
// without any is no error, so releasing twice changes nothing. It is for a machine that
// is gone: one that is merely off keeps its addresses.
func (n *Network) Release(owner string) []Held {
	n.mu.Lock()
	defer n.mu.Unlock()

	held := n.assignments.remove(owner)
	for _, h := range held {
		n.give(h.Address.Addr())
	}

	return held
}

// give makes an address free in the pool that gives it, if one does.
func (n *Network) give(addr netip.Addr) {
	family := FamilyOf(addr)

	var home *state

	for _, s := range n.pools {
		if slices.Contains(s.pool.parts[family].gateways, addr) {
			return
		}

		if _, _, found := s.pool.parts[family].find(number(addr)); found {
			home = s
		}
	}

	if home == nil {
		return
	}

	at, _, _ := home.pool.parts[family].find(number(addr))
	if home.free[family].give(at) {
		home.used[family]--
	}
}

// Of is an owner's addresses, IPv4 first; none if it has none.
func (n *Network) Of(owner string) []netip.Prefix {
	n.mu.RLock()
	defer n.mu.RUnlock()

	return prefixes(n.assignments.of(owner))
}

// prefixes are the addresses of an owner, in order.
func prefixes(held []Held) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(held))
	for _, h := range held {
		out = append(out, h.Address)
	}

	slices.SortFunc(out, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })

	return out
}

// Holder is who has an address; false if nobody does.
func (n *Network) Holder(addr netip.Addr) (string, bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()

	return n.assignments.holder(addr.Unmap())
}

// Held is all that is in use, by address, IPv4 first. Rebuild makes the same network of it.
func (n *Network) Held() []Held {
	n.mu.RLock()
	defer n.mu.RUnlock()

	return n.assignments.list(func(Held) bool { return true })
}

// Outside is what is in use of a pool that the pool does not give, by address: what was
// in use when the pool shrank, or was removed, and what a status said.
func (n *Network) Outside(pool string) []Held {
	n.mu.RLock()
	defer n.mu.RUnlock()

	return n.outside(pool)
}

func (n *Network) outside(pool string) []Held {
	s := n.pools[pool]

	return n.assignments.list(func(h Held) bool {
		if h.Pool != pool || s == nil {
			return h.Pool == pool
		}

		_, given := s.pool.Prefix(h.Address.Addr())

		return !given
	})
}

// Usage is how full a pool is; all zero if there is no such pool.
func (n *Network) Usage(pool string, family Family) Usage {
	n.mu.RLock()
	defer n.mu.RUnlock()

	s, found := n.pools[pool]
	if !found {
		return Usage{}
	}

	size := s.pool.parts[family].size

	return Usage{Size: size.saturated(), Free: size.minus(u128{lo: s.used[family]}).saturated()}
}

// Free are the addresses of a family that a pool can give now, as runs in the order in which it
// gives them: the first ones, at most so many.
func (n *Network) Free(pool string, family Family, most int) []Range {
	n.mu.RLock()
	defer n.mu.RUnlock()

	s, found := n.pools[pool]
	if !found || s.free[family].root == none {
		return nil
	}

	var out []Range

	for _, numbers := range s.free[family].list(most) {
		for _, run := range s.pool.parts[family].runs(numbers) {
			out = append(out, Range{First: family.addr(run.first), Last: family.addr(run.last), Bits: -1})
		}
	}

	return out[:min(len(out), most)]
}
