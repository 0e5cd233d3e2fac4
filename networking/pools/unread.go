// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/networking/alloc"
)

// UnreadError means that a pool allocates no addresses, because machines of the pool use addresses that are unknown.
type UnreadError struct {
	Pool string
	// Owners are the owners of these addresses, in alphabetical order.
	Owners []string
}

func (e *UnreadError) Error() string {
	return fmt.Sprintf("pool %s allocates no addresses, because the addresses of these machines are unknown: %s",
		e.Pool, strings.Join(e.Owners, ", "))
}

// MarkUnread records that an owner uses addresses of a pool that are unknown, for example because they were not read from
// its VM yet. Until Restore, Release or MarkRead is called for the owner, the pool allocates no addresses to owners without
// addresses.
func (a *AddressRegistry) MarkUnread(pool, owner string) {
	a.mu.Lock()
	defer a.mu.Unlock()

	if a.unread[pool] == nil {
		a.unread[pool] = map[string]bool{}
	}

	a.unread[pool][owner] = true
}

// IsUnread returns whether the addresses of an owner are unknown (see MarkUnread).
func (a *AddressRegistry) IsUnread(owner string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()

	for _, owners := range a.unread {
		if owners[owner] {
			return true
		}
	}

	return false
}

// MarkRead reverts MarkUnread, and wakes the owners that waited for it.
func (a *AddressRegistry) MarkRead(owner string) {
	a.mu.Lock()
	wakeFuncs := a.markRead(owner)
	a.mu.Unlock()

	callAll(wakeFuncs)
}

// markRead removes an owner from unread. It returns Wake of the owners that can get addresses now.
func (a *AddressRegistry) markRead(owner string) []func() {
	hasChanged := false

	for pool, owners := range a.unread {
		hasChanged = hasChanged || owners[owner]
		delete(owners, owner)

		if len(owners) == 0 {
			delete(a.unread, pool)
		}
	}

	var wakeFuncs []func()

	if hasChanged {
		for _, n := range a.networks {
			wakeFuncs = append(wakeFuncs, n.takeWakeFuncs()...)
		}
	}

	return wakeFuncs
}

// checkAddressesKnown returns an *UnreadError if the pool must not allocate an address to the owner.
func (a *AddressRegistry) checkAddressesKnown(n *network, r Request) error {
	owners := maps.Clone(a.unread[r.Pool])
	delete(owners, r.UnreadOwner)

	if len(owners) == 0 || len(n.addresses.AddressesOf(r.Owner)) > 0 {
		return nil
	}

	return &UnreadError{Pool: r.Pool, Owners: slices.Sorted(maps.Keys(owners))}
}

// Inherit gives an owner the addresses of all owners whose text begins with prefix. These are earlier objects
// with the same name, which a restored object replaces.
func (a *AddressRegistry) Inherit(prefix, owner string) error {
	a.mu.Lock()
	defer a.mu.Unlock()

	for _, n := range a.networks {
		for _, assignment := range n.addresses.Assignments() {
			if assignment.Owner == owner || !strings.HasPrefix(assignment.Owner, prefix) {
				continue
			}

			for _, released := range n.addresses.Release(assignment.Owner) {
				if err := n.addresses.Restore(alloc.Assignment{Owner: owner, Pool: released.Pool, Address: released.Address}); err != nil {
					return fmt.Errorf("move addresses of %s: %w", released.Owner, err)
				}
			}
		}
	}

	return nil
}
