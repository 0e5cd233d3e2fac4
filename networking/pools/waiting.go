// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"slices"

	"github.com/hyperfleet/hyperfleet/networking/alloc"
)

// turn says whether it is an owner's turn: the pool has an address for it and for all those
// who came before it. The error is an *alloc.ExhaustedError. What an owner has, it is given
// again at any time, and what is missing of it.
func (n *network) turn(r Request) error {
	list := n.waiting[r.Pool]
	if len(list) == 0 || len(n.addresses.Of(r.Owner)) > 0 {
		return nil
	}

	ahead := slices.IndexFunc(list, func(w waiter) bool { return w.owner == r.Owner })
	if ahead < 0 {
		ahead = len(list)
	}

	status := n.status("", r.Pool)
	if uint64(ahead) < status.Machines() {
		return nil
	}

	scarce, size := alloc.IPv4, status.IPv4.Size
	if size == 0 || status.IPv6.Size > 0 && status.IPv6.Free < status.IPv4.Free {
		scarce, size = alloc.IPv6, status.IPv6.Size
	}

	if size == 0 {
		return nil // there is no pool, or none that gives anything: that is for the network to say
	}

	return &alloc.ExhaustedError{Network: r.Network, Pool: r.Pool, Family: scarce, Size: size}
}

// leave takes an owner off the lists of all networks' pools but one, and gives those whom
// that is worth waking.
func (b *AddressRegistry) leave(r Request) []func() {
	var woken []func()

	for name, n := range b.networks {
		for pool, list := range n.waiting {
			at := slices.IndexFunc(list, func(w waiter) bool { return w.owner == r.Owner })
			if at >= 0 && (name != r.Network || pool != r.Pool) {
				n.keep(pool, slices.Delete(list, at, at+1))

				woken = append(woken, n.changed()...)
			}
		}
	}

	return woken
}

// wait puts an owner at the end of its pool's list, or leaves it in its place there.
func (n *network) wait(r Request) {
	if r.Wake == nil {
		return
	}

	list := n.waiting[r.Pool]
	for i := range list {
		if list[i].owner == r.Owner {
			list[i].wake, list[i].woken = r.Wake, false

			return
		}
	}

	n.waiting[r.Pool] = append(list, waiter{owner: r.Owner, wake: r.Wake})
}

// refuse keeps somebody to wake with the next change of the network.
func (n *network) refuse(who string, wake func()) {
	if wake != nil {
		n.refused[who] = wake
	}
}

// asleep is how many wait and were not woken.
func (n *network) asleep(pool string) int {
	count := 0

	for _, w := range n.waiting[pool] {
		if !w.woken {
			count++
		}
	}

	return count
}

// forget takes an owner off the lists.
func (n *network) forget(owner string) {
	delete(n.refused, owner)

	for pool, list := range n.waiting {
		n.keep(pool, slices.DeleteFunc(list, func(w waiter) bool { return w.owner == owner }))
	}
}

func (n *network) keep(pool string, list []waiter) {
	if len(list) == 0 {
		delete(n.waiting, pool)
	} else {
		n.waiting[pool] = list
	}
}

// changed gives those whom it is worth waking after a change: as many of each pool as it has
// room for, the first in front, but for those who were woken before and have not asked
// again; and all of those that were refused.
func (n *network) changed() []func() {
	var woken []func()

	for pool, list := range n.waiting {
		if _, there := n.pools[pool]; !there {
			continue
		}

		status := n.status("", pool)
		room := len(list)

		if free := status.Machines(); free < uint64(room) {
			room = int(free) //nolint:gosec // G115: less than the length of a list
		}

		for i := range list[:room] {
			if !list[i].woken {
				list[i].woken = true

				woken = append(woken, list[i].wake)
			}
		}
	}

	for who, wake := range n.refused {
		woken = append(woken, wake)
		delete(n.refused, who)
	}

	return woken
}

// call wakes, without the address registry's lock.
func call(woken []func()) {
	for _, wake := range woken {
		wake()
	}
}
