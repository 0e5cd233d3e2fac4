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
	// UnreadOwner is the owner of the addresses of an existing machine that could not be read back (see MarkUnread).
	// They do not prevent this allocation, because the machine belongs to Owner and is not created again.
	UnreadOwner string
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
func (a *AddressRegistry) Acquire(r Request) ([]netip.Prefix, error) {
	a.mu.Lock()
	wakeFuncs := a.removeFromOtherQueues(r)
	n := a.ensureNetwork(r.Network)

	var addresses []netip.Prefix

	err := a.checkAddressesKnown(n, r)
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
			a.updateRelated(r.Network, address.Addr())
		}
	case errors.As(err, &unavailable), errors.As(err, &unread):
		n.storeCallback(r.Owner, r.Wake)
	default:
		n.enqueue(r)
	}

	if err != nil {
		a.deleteIfEmpty(r.Network) // the request may have created it, and may have left nothing in it
	}

	a.mu.Unlock()

	callAll(wakeFuncs)

	if err != nil {
		return nil, fmt.Errorf("acquire addresses for %s: %w", r.Owner, err)
	}

	return addresses, nil
}

// RestoreWaiting adds an owner that is recorded as waiting to the end of the pool's queue, so a restart does
// not change the order of the queue. It does nothing if the owner has an address. The owner must still call
// Acquire, because the registry has no Wake callback for it.
func (a *AddressRegistry) RestoreWaiting(network, pool, owner string) {
	a.mu.Lock()
	defer a.mu.Unlock()

	if n := a.ensureNetwork(network); len(n.addresses.AddressesOf(owner)) == 0 {
		n.enqueue(Request{Network: network, Pool: pool, Owner: owner, Wake: func() {}})
	}
}

// Restore records that an address is in use. It does not check the address against the pools. The error is an
// *alloc.ConflictError if another owner has the address. In this case the other owner keeps it.
func (a *AddressRegistry) Restore(network string, assignment alloc.Assignment) error {
	a.mu.Lock()
	n := a.ensureNetwork(network)
	err := n.addresses.Restore(assignment)

	var wakeFuncs []func()
	if err == nil {
		wakeFuncs = a.removeFromOtherQueues(Request{Owner: assignment.Owner}) // it no longer waits
		wakeFuncs = append(wakeFuncs, a.markRead(assignment.Owner)...)
		a.updateRelated(network, assignment.Address.Addr())
	}

	a.mu.Unlock()

	callAll(wakeFuncs)

	if err != nil {
		return fmt.Errorf("restore addresses of %s: %w", assignment.Owner, err)
	}

	return nil
}

// StopWaiting removes an owner from all queues. The owner keeps its addresses.
func (a *AddressRegistry) StopWaiting(owner string) {
	a.mu.Lock()

	var wakeFuncs []func()

	for name, n := range a.networks {
		n.dequeue(owner)

		wakeFuncs = append(wakeFuncs, n.takeWakeFuncs()...)

		a.deleteIfEmpty(name)
	}

	a.mu.Unlock()

	callAll(wakeFuncs)
}

// Release releases all addresses of an owner, removes the owner from all queues, and returns the released
// addresses. It calls Wake of the waiting owners that can get addresses now. It is idempotent.
func (a *AddressRegistry) Release(owner string) []alloc.Assignment {
	a.mu.Lock()

	var (
		freed     []alloc.Assignment
		wakeFuncs []func()
	)

	wakeFuncs = a.markRead(owner) // an owner without addresses no longer has unknown ones

	for name, n := range a.networks {
		n.dequeue(owner)

		released := n.addresses.Release(owner)
		freed = append(freed, released...)
		wakeFuncs = append(wakeFuncs, a.updateRelated(name, listAddresses(released)...)...)
		// Do this also if the owner had no addresses: the registry may have kept free addresses for it.
		wakeFuncs = append(wakeFuncs, n.takeWakeFuncs()...)

		a.deleteIfEmpty(name)
	}

	a.mu.Unlock()

	callAll(wakeFuncs)

	return freed
}

// AddressesOf returns all addresses of an owner on all networks, IPv4 first.
func (a *AddressRegistry) AddressesOf(owner string) []netip.Prefix {
	a.mu.Lock()
	defer a.mu.Unlock()

	var out []netip.Prefix
	for _, n := range a.networks {
		out = append(out, n.addresses.AddressesOf(owner)...)
	}

	slices.SortFunc(out, func(x, y netip.Prefix) int { return x.Addr().Compare(y.Addr()) })

	return out
}

// OwnersWithPrefix returns the owners that have or wait for an address and whose text begins with prefix, in
// alphabetical order. It reads the whole address registry, so it is only for rare operations.
func (a *AddressRegistry) OwnersWithPrefix(prefix string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()

	found := map[string]bool{}

	for _, n := range a.networks {
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

	for _, owners := range a.unread {
		maps.Copy(found, owners)
	}

	maps.DeleteFunc(found, func(owner string, _ bool) bool { return !strings.HasPrefix(owner, prefix) })

	return slices.Sorted(maps.Keys(found))
}
