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
func (b *AddressRegistry) MarkUnread(pool, owner string) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if b.unread[pool] == nil {
		b.unread[pool] = map[string]bool{}
	}

	b.unread[pool][owner] = true
}

// IsUnread returns whether the addresses of an owner are unknown (see MarkUnread).
func (b *AddressRegistry) IsUnread(owner string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()

	for _, owners := range b.unread {
		if owners[owner] {
			return true
		}
	}

	return false
}

// MarkRead reverts MarkUnread, and wakes the owners that waited for it.
func (b *AddressRegistry) MarkRead(owner string) {
	b.mu.Lock()
	callbacks := b.markRead(owner)
	b.mu.Unlock()

	callAll(callbacks)
}

// markRead removes an owner from unread, and returns the callbacks to call.
func (b *AddressRegistry) markRead(owner string) []func() {
	hasChanged := false

	for pool, owners := range b.unread {
		hasChanged = hasChanged || owners[owner]
		delete(owners, owner)

		if len(owners) == 0 {
			delete(b.unread, pool)
		}
	}

	var callbacks []func()

	if hasChanged {
		for _, n := range b.networks {
			callbacks = append(callbacks, n.collectCallbacks()...)
		}
	}

	return callbacks
}

// checkRead returns an *UnreadError if the pool must not allocate an address to the owner.
func (b *AddressRegistry) checkRead(n *network, r Request) error {
	owners := maps.Clone(b.unread[r.Pool])
	delete(owners, r.Unread)

	if len(owners) == 0 || len(n.addresses.AddressesOf(r.Owner)) > 0 {
		return nil
	}

	return &UnreadError{Pool: r.Pool, Owners: slices.Sorted(maps.Keys(owners))}
}

// Inherit gives an owner the addresses of all owners whose text begins with prefix. These are earlier objects
// with the same name, which a restored object replaces.
func (b *AddressRegistry) Inherit(prefix, owner string) error {
	b.mu.Lock()
	defer b.mu.Unlock()

	for _, n := range b.networks {
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
