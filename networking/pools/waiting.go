// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pools

import "slices"

// wait puts an owner at the end of its pool's list, or leaves it in its place there.
func (n *network) wait(r Request) {
	if r.Wake == nil {
		return
	}

	list := n.waiting[r.Pool]
	for i := range list {
		if list[i].owner == r.Owner {
			list[i].wake = r.Wake

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

// changed takes off the lists, and gives, those whom it is worth waking after a change:
// as many of each pool as it has room for, the first in front, and all of those that
// were refused. Whoever is woken and finds nothing waits again.
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

		for _, w := range list[:room] {
			woken = append(woken, w.wake)
		}

		n.keep(pool, slices.Clone(list[room:]))
	}

	for who, wake := range n.refused {
		woken = append(woken, wake)
		delete(n.refused, who)
	}

	return woken
}

// call wakes, without the book's lock.
func call(woken []func()) {
	for _, wake := range woken {
		wake()
	}
}
