// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"slices"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// reservationLifetime is how long a clone slot stays reserved for an owner that was woken.
const reservationLifetime = 5 * time.Second

// cloneQueues limit the parallel clones per storage. If a storage has no free slot, the owner waits in a
// queue and needs no goroutine. When a slot becomes free, the slot is reserved for the next owner for
// reservationLifetime, and that owner is woken.
//
// Machines that are needed now are served before standby machines. If the limit is more than one, standby
// machines leave one slot free for machines that are needed now.
type cloneQueues struct {
	limit int
	wake  func(hypervisor.Owner)
	now   func() time.Time

	mu     sync.Mutex
	queues map[string]*cloneQueue
}

// cloneQueue is the state of one storage.
type cloneQueue struct {
	active map[string]bool
	// reserved maps the UIDs of woken owners to the time at which their reserved slot expires.
	reserved map[string]time.Time
	// waiting holds the waiting owners: first the machines that are needed now in the order of their
	// arrival, then the standby machines.
	waiting []waiter
}

// waiter is a waiting owner.
type waiter struct {
	owner hypervisor.Owner
	// isStandby is true for a machine that is prepared and not started.
	isStandby bool
}

func newCloneQueues(limit int, wake func(hypervisor.Owner), now func() time.Time) *cloneQueues {
	return &cloneQueues{limit: max(limit, 1), wake: wake, now: now, queues: map[string]*cloneQueue{}}
}

// acquire takes a clone slot of a storage for the owner's machine. If no slot is free, acquire puts the
// owner in the queue and returns the number of owners ahead of it. An owner that holds a slot keeps that
// slot.
func (c *cloneQueues) acquire(storage string, owner hypervisor.Owner, isStandby bool) (hasSlot bool, ahead int) {
	c.mu.Lock()
	defer c.mu.Unlock()

	q := c.queueOf(storage)
	c.expireReservations(q)

	if q.active[owner.UID] {
		return true, 0
	}

	entry := waiter{owner: owner, isStandby: isStandby}
	position := q.queuePosition(entry)

	if _, isReserved := q.reserved[owner.UID]; isReserved || c.hasFreeSlot(q, isStandby) && position == 0 {
		delete(q.reserved, owner.UID)
		q.removeWaiter(owner)
		q.active[owner.UID] = true

		return true, 0
	}

	if index := slices.Index(q.waiting, entry); index >= 0 {
		return false, index
	}

	q.removeWaiter(owner) // a standby machine that is needed now moves forward
	q.waiting = slices.Insert(q.waiting, position, entry)

	return false, position
}

// hasFreeSlot reports whether a slot is free for a machine. Standby machines leave one slot free if the
// limit is more than one.
func (c *cloneQueues) hasFreeSlot(q *cloneQueue, isStandby bool) bool {
	limit := c.limit
	if isStandby && limit > 1 {
		limit--
	}

	return len(q.active)+len(q.reserved) < limit
}

// queuePosition returns the number of waiting owners that come before a new waiter.
func (q *cloneQueue) queuePosition(entry waiter) int {
	if entry.isStandby {
		return len(q.waiting)
	}

	first := slices.IndexFunc(q.waiting, func(w waiter) bool { return w.isStandby })
	if first < 0 {
		return len(q.waiting)
	}

	return first
}

func (q *cloneQueue) removeWaiter(owner hypervisor.Owner) {
	q.waiting = slices.DeleteFunc(q.waiting, func(w waiter) bool { return w.owner.UID == owner.UID })
}

// release gives up the owner's slot, reservation and queue position of a storage, and wakes the owners that
// come next.
func (c *cloneQueues) release(storage string, owner hypervisor.Owner) {
	c.mu.Lock()

	q := c.queueOf(storage)
	delete(q.active, owner.UID)
	delete(q.reserved, owner.UID)
	q.removeWaiter(owner)
	c.expireReservations(q)
	owners := c.reserveSlots(q)
	c.deleteIfEmpty(storage, q)
	c.mu.Unlock()

	c.wakeAll(owners)
}

// wakeWaiters reserves the free slots, including expired reservations, for the next waiting owners and
// wakes those owners. It reports whether any owner still waits or has a reserved slot.
func (c *cloneQueues) wakeWaiters() bool {
	c.mu.Lock()

	var owners []hypervisor.Owner

	isWaiting := false

	for storage, q := range c.queues {
		c.expireReservations(q)
		owners = append(owners, c.reserveSlots(q)...)
		isWaiting = isWaiting || len(q.waiting) > 0 || len(q.reserved) > 0
		c.deleteIfEmpty(storage, q)
	}
	c.mu.Unlock()

	c.wakeAll(owners)

	return isWaiting
}

// load returns the number of clones that run or wait on a storage, including reserved slots.
func (c *cloneQueues) load(storage string) int {
	c.mu.Lock()
	defer c.mu.Unlock()

	q, ok := c.queues[storage]
	if !ok {
		return 0
	}

	return len(q.active) + len(q.reserved) + len(q.waiting)
}

func (c *cloneQueues) queueOf(storage string) *cloneQueue {
	q, ok := c.queues[storage]
	if !ok {
		q = &cloneQueue{active: map[string]bool{}, reserved: map[string]time.Time{}}
		c.queues[storage] = q
	}

	return q
}

func (c *cloneQueues) expireReservations(q *cloneQueue) {
	now := c.now()
	for uid, expiry := range q.reserved {
		if now.After(expiry) {
			delete(q.reserved, uid)
		}
	}
}

// reserveSlots reserves the free slots for the owners at the head of the queue and returns those owners.
func (c *cloneQueues) reserveSlots(q *cloneQueue) []hypervisor.Owner {
	var owners []hypervisor.Owner

	for len(q.waiting) > 0 && c.hasFreeSlot(q, q.waiting[0].isStandby) {
		next := q.waiting[0].owner
		q.waiting = q.waiting[1:]
		q.reserved[next.UID] = c.now().Add(reservationLifetime)
		owners = append(owners, next)
	}

	return owners
}

func (c *cloneQueues) deleteIfEmpty(storage string, q *cloneQueue) {
	if len(q.active)+len(q.reserved)+len(q.waiting) == 0 {
		delete(c.queues, storage)
	}
}

func (c *cloneQueues) wakeAll(owners []hypervisor.Owner) {
	for _, owner := range owners {
		c.wake(owner)
	}
}
