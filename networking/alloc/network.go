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

// Assignment is an address that is in use.
type Assignment struct {
	// Owner is any text that identifies one interface of one machine on this network, such as the UID of
	// the machine.
	Owner string
	// Pool is the name of the pool from which the address was allocated.
	Pool string
	// Address is the address with the prefix length that the owner got. It does not change when the pool
	// changes.
	Address netip.Prefix
}

// Usage is the usage of a pool in addresses of one family. A number that does not fit into 64 bits is the
// largest 64-bit number instead.
type Usage struct {
	// Size is the number of addresses in the pool, and Free is how many of them can be allocated now.
	Size, Free uint64
}

// Network holds the pools of one network, and records which owner has which address. It is safe for
// concurrent use. An address is in at most one pool and has at most one owner.
type Network struct {
	name string

	mu          sync.RWMutex
	pools       map[string]*poolState
	assignments assignments
	// occupied has what uses an address outside of the network (see SetOccupied).
	occupied map[netip.Addr]string
}

// poolState is a pool with its free addresses.
type poolState struct {
	pool *Pool
	free [familyCount]freeSet
	// used is the number of addresses of the pool that are not free.
	used [familyCount]uint64
}

// NewNetwork returns a network without pools.
func NewNetwork(name string) *Network {
	return &Network{name: name, pools: map[string]*poolState{}, assignments: newAssignments(), occupied: map[netip.Addr]string{}}
}

// Rebuild returns a network with the given pools and with the addresses in use from the machines' statuses.
// If two pools or two addresses conflict, the first one in the list wins. The network is usable even if
// Rebuild returns an error. The error joins an *OverlapError for each pool and a *ConflictError for each
// address that Rebuild left out.
func Rebuild(name string, pools []*Pool, assignments []Assignment) (*Network, error) {
	n := NewNetwork(name)

	var problems []error

	for _, pool := range pools {
		if _, err := n.SetPool(pool); err != nil {
			problems = append(problems, err)
		}
	}

	for _, assignment := range assignments {
		if err := n.Restore(assignment); err != nil {
			problems = append(problems, err)
		}
	}

	return n, errors.Join(problems...)
}

// SetPool adds a pool, or replaces the pool with the same name. Addresses in use stay with their owners.
// SetPool returns the addresses in use that the pool no longer contains, in ascending order. The
// network does not allocate them again after their release. If SetPool returns an *OverlapError, the network
// has not changed.
func (n *Network) SetPool(pool *Pool) ([]Assignment, error) {
	n.mu.Lock()
	defer n.mu.Unlock()

	names := make([]string, 0, len(n.pools))
	for name := range n.pools {
		names = append(names, name)
	}

	slices.Sort(names)

	for _, name := range names {
		if overlap, found := pool.Overlap(n.pools[name].pool); found && name != pool.name {
			return nil, &OverlapError{Network: n.name, Pool: pool.name, Other: name, Range: overlap}
		}
	}

	n.pools[pool.name] = &poolState{pool: pool}
	n.recountFree()

	return n.assignmentsNoLongerIn(pool.name), nil
}

// RemovePool removes a pool. It returns the addresses of the pool that are in use, in ascending order. These
// addresses stay with their owners until they are released.
func (n *Network) RemovePool(name string) []Assignment {
	n.mu.Lock()
	defer n.mu.Unlock()

	delete(n.pools, name)
	n.recountFree()

	return n.assignmentsNoLongerIn(name)
}

// recountFree computes the free addresses of all pools. A change of one pool can affect the other pools,
// because its gateways and its former addresses can be in the ranges of another pool.
func (n *Network) recountFree() {
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
			n.markUsed(gateway)
		}
	}

	for _, r := range n.assignments.records {
		if r.Owner != "" {
			n.markUsed(r.Address.Addr())
		}
	}

	for addr := range n.occupied {
		n.markUsed(addr)
	}
}

// markUsed removes an address from the free addresses of the pool that contains it, if there is such a pool.
func (n *Network) markUsed(addr netip.Addr) {
	family := FamilyOf(addr)

	for _, s := range n.pools {
		if position, _, found := s.pool.parts[family].find(toUint128(addr)); found {
			s.markUsed(family, position)

			return
		}
	}
}

func (s *poolState) markUsed(family Family, position u128) {
	if s.free[family].removeNumber(position) {
		s.used[family]++
	}
}

// Acquire allocates one address of each family of the pool to an owner. It allocates the requested
// addresses, or the lowest free address for a family without a requested address. The owner keeps the
// addresses that it already has, so Acquire is idempotent. Acquire returns all addresses of the owner with
// their prefix lengths, IPv4 first. The caller must record them before it uses them.
//
// The errors are *ExhaustedError, *UnavailableError and ErrNoPool. After an error nothing was allocated.
func (n *Network) Acquire(pool, owner string, requested ...netip.Addr) ([]netip.Prefix, error) {
	if owner == "" {
		return nil, fmt.Errorf("acquire an address of pool %s: the owner is empty", pool)
	}

	n.mu.Lock()
	defer n.mu.Unlock()

	s, found := n.pools[pool]
	if !found {
		return nil, fmt.Errorf("acquire an address of pool %s on network %s: %w", pool, n.name, ErrNoPool)
	}

	assignments := n.assignments.listOwner(owner)

	chosen, err := n.choose(s, owner, assignments, requested)
	if err != nil {
		return nil, err
	}

	for _, prefix := range chosen {
		if !prefix.IsValid() {
			continue
		}

		family := FamilyOf(prefix.Addr())
		position, _, _ := s.pool.parts[family].find(toUint128(prefix.Addr()))
		s.markUsed(family, position)

		assignment := Assignment{Owner: owner, Pool: pool, Address: prefix}
		n.assignments.add(assignment)
		assignments = append(assignments, assignment)
	}

	return sortedPrefixes(assignments), nil
}

// choose selects the addresses that an owner still needs, by family. It does not allocate them.
func (n *Network) choose(
	s *poolState, owner string, assignments []Assignment, requested []netip.Addr,
) ([familyCount]netip.Prefix, error) {
	var (
		has           [familyCount]bool
		chosen, empty [familyCount]netip.Prefix
	)

	for _, assignment := range assignments {
		has[FamilyOf(assignment.Address.Addr())] = true
	}

	for _, addr := range requested {
		addr = addr.Unmap()
		family := FamilyOf(addr)

		if slices.ContainsFunc(assignments, func(assignment Assignment) bool { return assignment.Address.Addr() == addr }) {
			continue
		}

		prefix, err := n.chooseRequested(s, owner, addr, has[family])
		if err != nil {
			return empty, err
		}

		has[family], chosen[family] = true, prefix
	}

	for i := range has {
		family := Family(i)
		if has[i] || !s.pool.HasFamily(family) {
			continue
		}

		position, found := s.free[i].findLowest()
		if !found {
			return empty, &ExhaustedError{Network: n.name, Pool: s.pool.name, Family: family, Size: s.pool.Size(family)}
		}

		addr, bits := s.pool.parts[i].address(position)
		chosen[i] = netip.PrefixFrom(family.toAddr(addr), bits)
	}

	return chosen, nil
}

// chooseRequested returns the prefix for a requested address. hasFamily is true if the owner already has an
// address of the same family, or requests another one.
func (n *Network) chooseRequested(s *poolState, owner string, addr netip.Addr, hasFamily bool) (netip.Prefix, error) {
	unavailable := &UnavailableError{Network: n.name, Pool: s.pool.name, Address: addr}

	prefix, isInPool := s.pool.PrefixFor(addr)
	holder, isInUse := n.assignments.holder(addr)

	switch {
	case !isInPool:
		unavailable.Refusal = RefusedNotInPool
		if addr.IsValid() && addr.Zone() == "" {
			unavailable.Refusal = s.pool.refusalFor(addr)
		}
	case isInUse:
		unavailable.Refusal, unavailable.Holder = RefusedInUse, holder
	case n.occupied[addr] != "":
		unavailable.Refusal, unavailable.Holder = RefusedInUse, n.occupied[addr]
	case hasFamily:
		unavailable.Refusal, unavailable.Holder = RefusedSecondAddress, owner
	default:
		position, _, _ := s.pool.parts[FamilyOf(addr)].find(toUint128(addr))
		if s.free[FamilyOf(addr)].contains(position) {
			return prefix, nil
		}

		unavailable.Refusal = RefusedGateway
	}

	return netip.Prefix{}, unavailable
}

// Restore records that an address is in use. It does not check the address against the pools, because a
// machine already has the address. It may be called before SetPool. The error is a *ConflictError if another
// owner has the address.
func (n *Network) Restore(assignment Assignment) error {
	addr := assignment.Address.Addr()
	if assignment.Owner == "" || !assignment.Address.IsValid() || addr.Is4In6() {
		return fmt.Errorf(
			"restore address %q of owner %q on network %s: set an owner, and an address such as 10.0.0.5/24 or fd00::5/64",
			assignment.Address, assignment.Owner, n.name)
	}

	n.mu.Lock()
	defer n.mu.Unlock()

	switch holder, isInUse := n.assignments.holder(addr); {
	case isInUse && holder != assignment.Owner:
		return &ConflictError{Network: n.name, Address: addr, Owner: assignment.Owner, Holder: holder}
	case isInUse:
		n.assignments.update(assignment)
	default:
		n.markUsed(addr)
		n.assignments.add(assignment)
	}

	return nil
}

// Release releases all addresses of an owner and returns them, IPv4 first. It is idempotent: an owner
// without addresses is not an error. Call it only after the machine is deleted. A stopped machine keeps its
// addresses.
func (n *Network) Release(owner string) []Assignment {
	n.mu.Lock()
	defer n.mu.Unlock()

	released := n.assignments.removeOwner(owner)
	for _, assignment := range released {
		n.markFree(assignment.Address.Addr())
	}

	return released
}

// SetOccupied records what uses an address outside of the network, so that the network allocates the address to nobody.
// An empty user reverts this. An owner that already has the address keeps it.
func (n *Network) SetOccupied(addr netip.Addr, user string) {
	n.mu.Lock()
	defer n.mu.Unlock()

	if user != "" {
		n.occupied[addr] = user
		n.markUsed(addr)

		return
	}

	delete(n.occupied, addr)

	if _, isInUse := n.assignments.holder(addr); !isInUse {
		n.markFree(addr)
	}
}

// UserOf returns what uses an address in the network: its owner, or a pool whose gateway it is. It returns an empty text
// if nothing does.
func (n *Network) UserOf(addr netip.Addr) string {
	n.mu.RLock()
	defer n.mu.RUnlock()

	if holder, isInUse := n.assignments.holder(addr); isInUse {
		return holder
	}

	for name, s := range n.pools {
		if slices.Contains(s.pool.gateways, addr) {
			return "the gateway of pool " + name
		}
	}

	return ""
}

// Gateways returns the gateways of all pools, in no particular order.
func (n *Network) Gateways() []netip.Addr {
	n.mu.RLock()
	defer n.mu.RUnlock()

	var out []netip.Addr
	for _, s := range n.pools {
		out = append(out, s.pool.gateways...)
	}

	return out
}

// markFree adds an address to the free addresses of the pool that contains it, if there is such a pool. A
// gateway of any pool does not become free, nor does an occupied address.
func (n *Network) markFree(addr netip.Addr) {
	if n.occupied[addr] != "" {
		return
	}

	family := FamilyOf(addr)

	var target *poolState

	for _, s := range n.pools {
		if slices.Contains(s.pool.parts[family].gateways, addr) {
			return
		}

		if _, _, found := s.pool.parts[family].find(toUint128(addr)); found {
			target = s
		}
	}

	if target == nil {
		return
	}

	position, _, _ := target.pool.parts[family].find(toUint128(addr))
	if target.free[family].addNumber(position) {
		target.used[family]--
	}
}

// AddressesOf returns the addresses of an owner, IPv4 first.
func (n *Network) AddressesOf(owner string) []netip.Prefix {
	n.mu.RLock()
	defer n.mu.RUnlock()

	return sortedPrefixes(n.assignments.listOwner(owner))
}

// sortedPrefixes returns the addresses of the assignments in ascending order.
func sortedPrefixes(assignments []Assignment) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(assignments))
	for _, assignment := range assignments {
		out = append(out, assignment.Address)
	}

	slices.SortFunc(out, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })

	return out
}

// Assignments returns all addresses in use in ascending order, IPv4 first. Rebuild with these assignments
// returns the same network.
func (n *Network) Assignments() []Assignment {
	n.mu.RLock()
	defer n.mu.RUnlock()

	return n.assignments.filter(func(Assignment) bool { return true })
}

// AssignmentsNoLongerIn returns, in ascending order, the addresses in use that were allocated from a pool but that
// the pool does not contain. For example, they were in use when the pool shrank or was removed, or they were
// read from an object's status.
func (n *Network) AssignmentsNoLongerIn(pool string) []Assignment {
	n.mu.RLock()
	defer n.mu.RUnlock()

	return n.assignmentsNoLongerIn(pool)
}

func (n *Network) assignmentsNoLongerIn(pool string) []Assignment {
	s := n.pools[pool]

	return n.assignments.filter(func(assignment Assignment) bool {
		if assignment.Pool != pool {
			return false
		}

		if s == nil {
			return true // the network has no such pool
		}

		_, isInPool := s.pool.PrefixFor(assignment.Address.Addr())

		return !isInPool
	})
}

// Usage returns the usage of a pool. It is zero if the network does not have the pool.
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

// FreeRanges returns the ranges of addresses of a family that a pool can allocate now, in the order of
// allocation. It returns at most the first limit ranges.
func (n *Network) FreeRanges(pool string, family Family, limit int) []Range {
	n.mu.RLock()
	defer n.mu.RUnlock()

	s, found := n.pools[pool]
	if !found || s.free[family].root == nilIndex {
		return nil
	}

	var out []Range

	for _, numbers := range s.free[family].list(limit) {
		for _, run := range s.pool.parts[family].listRuns(numbers) {
			out = append(out, Range{First: family.toAddr(run.first), Last: family.toAddr(run.last), Bits: -1})
		}
	}

	return out[:min(len(out), limit)]
}
