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
	// standby is true for a machine that is prepared and not started.
	standby bool
}

func newCloneQueues(limit int, wake func(hypervisor.Owner), now func() time.Time) *cloneQueues {
	return &cloneQueues{limit: max(limit, 1), wake: wake, now: now, queues: map[string]*cloneQueue{}}
}

// acquire takes a clone slot of a storage for the owner's machine. If no slot is free, acquire puts the
// owner in the queue and returns the number of owners ahead of it. An owner that holds a slot keeps that
// slot.
func (g *cloneQueues) acquire(storage string, owner hypervisor.Owner, standby bool) (entered bool, ahead int) {
	g.mu.Lock()
	defer g.mu.Unlock()

	p := g.queueOf(storage)
	g.expireReservations(p)

	if p.active[owner.UID] {
		return true, 0
	}

	entry := waiter{owner: owner, standby: standby}
	position := p.queuePosition(entry)

	if _, isReserved := p.reserved[owner.UID]; isReserved || g.hasFreeSlot(p, standby) && position == 0 {
		delete(p.reserved, owner.UID)
		p.removeWaiter(owner)
		p.active[owner.UID] = true

		return true, 0
	}

	if index := slices.Index(p.waiting, entry); index >= 0 {
		return false, index
	}

	p.removeWaiter(owner) // a standby machine that is needed now moves forward
	p.waiting = slices.Insert(p.waiting, position, entry)

	return false, position
}

// hasFreeSlot reports whether a slot is free for a machine. Standby machines leave one slot free if the
// limit is more than one.
func (g *cloneQueues) hasFreeSlot(p *cloneQueue, standby bool) bool {
	limit := g.limit
	if standby && limit > 1 {
		limit--
	}

	return len(p.active)+len(p.reserved) < limit
}

// queuePosition returns the number of waiting owners that come before a new waiter.
func (p *cloneQueue) queuePosition(entry waiter) int {
	if entry.standby {
		return len(p.waiting)
	}

	first := slices.IndexFunc(p.waiting, func(w waiter) bool { return w.standby })
	if first < 0 {
		return len(p.waiting)
	}

	return first
}

func (p *cloneQueue) removeWaiter(owner hypervisor.Owner) {
	p.waiting = slices.DeleteFunc(p.waiting, func(w waiter) bool { return w.owner.UID == owner.UID })
}

// release gives up the owner's slot, reservation and queue position of a storage, and wakes the owners that
// come next.
func (g *cloneQueues) release(storage string, owner hypervisor.Owner) {
	g.mu.Lock()

	p := g.queueOf(storage)
	delete(p.active, owner.UID)
	delete(p.reserved, owner.UID)
	p.removeWaiter(owner)
	g.expireReservations(p)
	owners := g.reserveSlots(p)
	g.deleteIfEmpty(storage, p)
	g.mu.Unlock()

	g.wakeAll(owners)
}

// wakeWaiters reserves the free slots, including expired reservations, for the next waiting owners and
// wakes those owners. It reports whether any owner still waits or has a reserved slot.
func (g *cloneQueues) wakeWaiters() bool {
	g.mu.Lock()

	var owners []hypervisor.Owner

	isWaiting := false

	for storage, p := range g.queues {
		g.expireReservations(p)
		owners = append(owners, g.reserveSlots(p)...)
		isWaiting = isWaiting || len(p.waiting) > 0 || len(p.reserved) > 0
		g.deleteIfEmpty(storage, p)
	}
	g.mu.Unlock()

	g.wakeAll(owners)

	return isWaiting
}

// load returns the number of clones that run or wait on a storage, including reserved slots.
func (g *cloneQueues) load(storage string) int {
	g.mu.Lock()
	defer g.mu.Unlock()

	p, ok := g.queues[storage]
	if !ok {
		return 0
	}

	return len(p.active) + len(p.reserved) + len(p.waiting)
}

func (g *cloneQueues) queueOf(storage string) *cloneQueue {
	p, ok := g.queues[storage]
	if !ok {
		p = &cloneQueue{active: map[string]bool{}, reserved: map[string]time.Time{}}
		g.queues[storage] = p
	}

	return p
}

func (g *cloneQueues) expireReservations(p *cloneQueue) {
	now := g.now()
	for uid, expiry := range p.reserved {
		if now.After(expiry) {
			delete(p.reserved, uid)
		}
	}
}

// reserveSlots reserves the free slots for the owners at the head of the queue and returns those owners.
func (g *cloneQueues) reserveSlots(p *cloneQueue) []hypervisor.Owner {
	var owners []hypervisor.Owner

	for len(p.waiting) > 0 && g.hasFreeSlot(p, p.waiting[0].standby) {
		next := p.waiting[0].owner
		p.waiting = p.waiting[1:]
		p.reserved[next.UID] = g.now().Add(reservationLifetime)
		owners = append(owners, next)
	}

	return owners
}

func (g *cloneQueues) deleteIfEmpty(storage string, p *cloneQueue) {
	if len(p.active)+len(p.reserved)+len(p.waiting) == 0 {
		delete(g.queues, storage)
	}
}

func (g *cloneQueues) wakeAll(owners []hypervisor.Owner) {
	for _, owner := range owners {
		g.wake(owner)
	}
}
