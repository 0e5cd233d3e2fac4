// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/networking/alloc"
)

// Request is a request for the addresses of an owner.
type Request struct {
	Network, Pool string
	// Owner identifies one interface of one machine. Errors show it, so it should be readable, such as
	// NAMESPACE/NAME/UID.
	Owner string
	// Requested are the addresses to allocate. For a family without a requested address, the registry
	// allocates the lowest free address.
	Requested []netip.Addr
	// Unread is the owner of the addresses of an existing machine that could not be read back (see MarkUnread).
	// They do not prevent this allocation, because the machine belongs to Owner and is not created again.
	Unread string
	// Wake is called once after a failed request, when a new request can succeed. It can run on any
	// goroutine. It must not block or call the address registry.
	Wake func()
}

// Acquire allocates one address of each family of the pool to an owner. The owner keeps the addresses that it
// already has, so Acquire is idempotent. Acquire returns the addresses with their prefix lengths, IPv4 first.
//
// The errors are *alloc.ExhaustedError, *alloc.UnavailableError, *UnreadError and alloc.ErrNoPool. After an error nothing
// was allocated, and the owner waits: Acquire adds it to the pool's queue, and Wake is called when the pool
// has an address for it. The queue is served in order, and the registry keeps the address for the owner in
// the meantime. Call Release or StopWaiting for an owner that will not call Acquire again. After an
// *alloc.UnavailableError or *UnreadError, the owner is not added to the queue, and Wake is called at the next
// change of the network.
func (b *AddressRegistry) Acquire(r Request) ([]netip.Prefix, error) {
	b.mu.Lock()
	callbacks := b.removeFromOtherQueues(r)
	n := b.ensureNetwork(r.Network)

	var addresses []netip.Prefix

	err := b.checkRead(n, r)
	if err == nil {
		err = n.checkTurn(r)
	}

	if err == nil {
		addresses, err = n.addresses.Acquire(r.Pool, r.Owner, r.Requested...)
	}

	var (
		unavailable *alloc.UnavailableError
		unread      *UnreadError
	)

	switch {
	case err == nil:
		n.dequeue(r.Owner)

		for _, address := range addresses {
			b.publish(r.Network, address.Addr())
		}
	case errors.As(err, &unavailable), errors.As(err, &unread):
		n.block(r.Owner, r.Wake)
	default:
		n.enqueue(r)
	}

	if err != nil {
		b.deleteIfEmpty(r.Network) // the request may have created it, and may have left nothing in it
	}

	b.mu.Unlock()

	callAll(callbacks)

	if err != nil {
		return nil, fmt.Errorf("acquire addresses for %s: %w", r.Owner, err)
	}

	return addresses, nil
}

// RestoreWaiting adds an owner that is recorded as waiting to the end of the pool's queue, so a restart does
// not change the order of the queue. It does nothing if the owner has an address. The owner must still call
// Acquire, because the registry has no Wake callback for it.
func (b *AddressRegistry) RestoreWaiting(network, pool, owner string) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if n := b.ensureNetwork(network); len(n.addresses.AddressesOf(owner)) == 0 {
		n.enqueue(Request{Network: network, Pool: pool, Owner: owner, Wake: func() {}})
	}
}

// Restore records that an address is in use. It does not check the address against the pools. The error is an
// *alloc.ConflictError if another owner has the address. In this case the other owner keeps it.
func (b *AddressRegistry) Restore(network string, assignment alloc.Assignment) error {
	b.mu.Lock()
	n := b.ensureNetwork(network)
	err := n.addresses.Restore(assignment)

	var callbacks []func()
	if err == nil {
		callbacks = b.removeFromOtherQueues(Request{Owner: assignment.Owner}) // it no longer waits
		callbacks = append(callbacks, b.markRead(assignment.Owner)...)
		b.publish(network, assignment.Address.Addr())
	}

	b.mu.Unlock()

	callAll(callbacks)

	if err != nil {
		return fmt.Errorf("restore addresses of %s: %w", assignment.Owner, err)
	}

	return nil
}

// StopWaiting removes an owner from all queues. The owner keeps its addresses.
func (b *AddressRegistry) StopWaiting(owner string) {
	b.mu.Lock()

	var callbacks []func()

	for name, n := range b.networks {
		n.dequeue(owner)

		callbacks = append(callbacks, n.collectCallbacks()...)

		b.deleteIfEmpty(name)
	}

	b.mu.Unlock()

	callAll(callbacks)
}

// Release releases all addresses of an owner, removes the owner from all queues, and returns the released
// addresses. It calls Wake of the waiting owners that can get addresses now. It is idempotent.
func (b *AddressRegistry) Release(owner string) []alloc.Assignment {
	b.mu.Lock()

	var (
		freed     []alloc.Assignment
		callbacks []func()
	)

	callbacks = b.markRead(owner) // an owner without addresses no longer has unknown ones

	for name, n := range b.networks {
		n.dequeue(owner)

		released := n.addresses.Release(owner)
		freed = append(freed, released...)
		callbacks = append(callbacks, b.publish(name, listAddresses(released)...)...)
		// Do this also if the owner had no addresses: the registry may have kept free addresses for it.
		callbacks = append(callbacks, n.collectCallbacks()...)

		b.deleteIfEmpty(name)
	}

	b.mu.Unlock()

	callAll(callbacks)

	return freed
}

// AddressesOf returns all addresses of an owner on all networks, IPv4 first.
func (b *AddressRegistry) AddressesOf(owner string) []netip.Prefix {
	b.mu.Lock()
	defer b.mu.Unlock()

	var out []netip.Prefix
	for _, n := range b.networks {
		out = append(out, n.addresses.AddressesOf(owner)...)
	}

	slices.SortFunc(out, func(x, y netip.Prefix) int { return x.Addr().Compare(y.Addr()) })

	return out
}

// OwnersWithPrefix returns the owners that have or wait for an address and whose text begins with prefix, in
// alphabetical order. It reads the whole address registry, so it is only for rare operations.
func (b *AddressRegistry) OwnersWithPrefix(prefix string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()

	found := map[string]bool{}

	for _, n := range b.networks {
		for _, assignment := range n.addresses.Assignments() {
			found[assignment.Owner] = true
		}

		for _, list := range n.queues {
			for _, w := range list {
				found[w.owner] = true
			}
		}

		for key := range n.blocked {
			found[key] = true
		}
	}

	for _, owners := range b.unread {
		maps.Copy(found, owners)
	}

	maps.DeleteFunc(found, func(owner string, _ bool) bool { return !strings.HasPrefix(owner, prefix) })

	return slices.Sorted(maps.Keys(found))
}
