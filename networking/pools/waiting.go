// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"slices"

	"github.com/hyperfleet/hyperfleet/networking/alloc"
)

// waiter is an owner in a queue. It stays in the queue until it has its addresses or stops waiting, so the
// registry keeps free addresses for it after the call of wake.
type waiter struct {
	owner string
	wake  func()
	// isWoken is true after the call of wake, until the owner makes another request.
	isWoken bool
}

// checkTurn returns an *alloc.ExhaustedError unless the pool has an address for the owner and for all owners
// before it in the queue. It returns nil for an owner that already has addresses, because such an owner can
// always request its addresses again and get the missing ones.
func (n *network) checkTurn(r Request) error {
	list := n.queues[r.Pool]
	if len(list) == 0 || len(n.addresses.AddressesOf(r.Owner)) > 0 {
		return nil
	}

	ahead := slices.IndexFunc(list, func(w waiter) bool { return w.owner == r.Owner })
	if ahead < 0 {
		ahead = len(list)
	}

	status := n.status("", r.Pool)
	if uint64(ahead) < status.CountAllocatable() {
		return nil
	}

	family, size := alloc.IPv4, status.IPv4.Size
	if size == 0 || status.IPv6.Size > 0 && status.IPv6.Free < status.IPv4.Free {
		family, size = alloc.IPv6, status.IPv6.Size
	}

	if size == 0 {
		return nil // the pool is missing or empty, and alloc.Network.Acquire returns the error for this
	}

	return &alloc.ExhaustedError{Network: r.Network, Pool: r.Pool, Family: family, Size: size}
}

// removeFromOtherQueues removes an owner from the queues of all pools except for the pool of the request. It
// returns Wake of the owners that can get addresses now.
func (a *AddressRegistry) removeFromOtherQueues(r Request) []func() {
	var wakeFuncs []func()

	for name, n := range a.networks {
		for pool, list := range n.queues {
			i := slices.IndexFunc(list, func(w waiter) bool { return w.owner == r.Owner })
			if i >= 0 && (name != r.Network || pool != r.Pool) {
				n.setQueue(pool, slices.Delete(list, i, i+1))

				wakeFuncs = append(wakeFuncs, n.takeWakeFuncs()...)
			}
		}
	}

	return wakeFuncs
}

// enqueue adds an owner to the end of its pool's queue. An owner that is already in the queue keeps its
// place. A request without Wake is not queued.
func (n *network) enqueue(r Request) {
	if r.Wake == nil {
		return
	}

	list := n.queues[r.Pool]
	for i := range list {
		if list[i].owner == r.Owner {
			list[i].wake, list[i].isWoken = r.Wake, false

			return
		}
	}

	n.queues[r.Pool] = append(list, waiter{owner: r.Owner, wake: r.Wake})
}

// storeCallback stores a callback for the next change of the network. wake may be nil.
func (n *network) storeCallback(key string, wake func()) {
	if wake != nil {
		n.blocked[key] = wake
	}
}

// countWaiting returns how many owners wait for a pool and were not woken.
func (n *network) countWaiting(pool string) int {
	count := 0

	for _, w := range n.queues[pool] {
		if !w.isWoken {
			count++
		}
	}

	return count
}

// dequeue removes an owner from all queues of the network, and its callback.
func (n *network) dequeue(owner string) {
	delete(n.blocked, owner)

	for pool, list := range n.queues {
		n.setQueue(pool, slices.DeleteFunc(list, func(w waiter) bool { return w.owner == owner }))
	}
}

func (n *network) setQueue(pool string, list []waiter) {
	if len(list) == 0 {
		delete(n.queues, pool)
	} else {
		n.queues[pool] = list
	}
}

// takeWakeFuncs returns Wake of the owners that can get addresses after a change of the network. If a pool has n free
// addresses, these are the first n owners in its queue, without the owners that were woken before and made no new request
// since. It also returns the callbacks in blocked, and removes them.
func (n *network) takeWakeFuncs() []func() {
	var wakeFuncs []func()

	for pool, list := range n.queues {
		if _, found := n.pools[pool]; !found {
			continue
		}

		status := n.status("", pool)
		count := len(list)

		if free := status.CountAllocatable(); free < uint64(count) {
			count = int(free) //nolint:gosec // G115: less than the length of a list
		}

		for i := range list[:count] {
			if !list[i].isWoken {
				list[i].isWoken = true

				wakeFuncs = append(wakeFuncs, list[i].wake)
			}
		}
	}

	for key, wake := range n.blocked {
		wakeFuncs = append(wakeFuncs, wake)
		delete(n.blocked, key)
	}

	return wakeFuncs
}

// callAll calls the functions. The caller must not hold the lock of the address registry.
func callAll(wakeFuncs []func()) {
	for _, wake := range wakeFuncs {
		wake()
	}
}
