// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"fmt"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// reservationLife is how long an id is kept for a caller that has not come back with
// it. By then its claim was written or its process is gone.
const reservationLife = 10 * time.Minute

// allocator gives out ids of a range, the lowest free one after the last given: an id
// just freed comes round late, so that what people see under it stays the same a while.
type allocator struct {
	min, max int
	now      func() time.Time

	mu   sync.Mutex
	next int
	// byID and byOwner are reservations; claimed are ids known to be claims', with the
	// owner's uid where it is known.
	byID    map[int]reservation
	byOwner map[string]int
	claimed map[int]string
	// taken are ids seen to be someone else's though the listing does not show them.
	taken map[int]bool
}

type reservation struct {
	owner string
	node  string
	// template that the node was chosen for.
	until time.Time
	// memory promised on the node, in bytes.
	memory int64
}

func newAllocator(lowest, highest int, now func() time.Time) *allocator {
	return &allocator{
		min: lowest, max: highest, now: now, next: lowest,
		byID: map[int]reservation{}, byOwner: map[string]int{}, claimed: map[int]string{}, taken: map[int]bool{},
	}
}

// reserve gives the owner's reserved id, or reserves one that used does not know.
func (a *allocator) reserve(owner, node string, memory int64, used func(int) bool) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.expire()

	if id, ok := a.byOwner[owner]; ok {
		return id, nil
	}

	for i := range a.max - a.min + 1 {
		id := a.min + (a.next-a.min+i)%(a.max-a.min+1)
		if a.busy(id) || used(id) {
			continue
		}

		a.next = id + 1
		a.byID[id] = reservation{owner: owner, node: node, memory: memory, until: a.now().Add(reservationLife)}
		a.byOwner[owner] = id

		return id, nil
	}

	return 0, &hypervisor.Error{
		Kind: hypervisor.NoCapacity, Reason: "IDsExhausted",
		Message: fmt.Sprintf("all ids from %d to %d are taken: widen vmIdRange or remove machines", a.min, a.max),
	}
}

// reserved gives an owner's reservation.
func (a *allocator) reserved(owner string) (int, string, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.expire()

	id, ok := a.byOwner[owner]

	return id, a.byID[id].node, ok
}

// confirm turns a reservation into a claim's id. It tells whether the id was reserved
// for this owner by this process and is confirmed for the first time: then nothing can
// have been made under it yet.
func (a *allocator) confirm(id int, owner string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()

	r, ok := a.byID[id]
	fresh := ok && r.owner == owner

	if fresh {
		delete(a.byID, id)
		delete(a.byOwner, owner)
	}

	a.claimed[id] = owner

	return fresh
}

// claim marks ids that claims hold already.
func (a *allocator) claim(ids []int) {
	a.mu.Lock()
	defer a.mu.Unlock()

	for _, id := range ids {
		if _, ok := a.claimed[id]; !ok {
			a.claimed[id] = ""
		}
	}
}

// heldByOther tells whether this process deals with another claim's machine under an id.
func (a *allocator) heldByOther(id int, owner string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()

	holder := a.claimed[id]

	return holder != "" && holder != owner
}

// release frees an id, and marks it as another's where foreign.
func (a *allocator) release(id int, owner string, foreign bool) {
	a.mu.Lock()
	defer a.mu.Unlock()

	if r, ok := a.byID[id]; ok && r.owner == owner {
		delete(a.byID, id)
		delete(a.byOwner, owner)
	}

	if holder, ok := a.claimed[id]; ok && (holder == owner || holder == "") {
		delete(a.claimed, id)
	}

	if foreign {
		a.taken[id] = true
	}
}

// pending gives the reservations per node: how many, and the memory promised.
func (a *allocator) pending() (machines map[string]int, memory map[string]int64) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.expire()

	machines, memory = map[string]int{}, map[string]int64{}
	for _, r := range a.byID {
		machines[r.node]++
		memory[r.node] += r.memory
	}

	return machines, memory
}

func (a *allocator) busy(id int) bool {
	_, reserved := a.byID[id]
	_, claimed := a.claimed[id]

	return reserved || claimed || a.taken[id]
}

func (a *allocator) expire() {
	now := a.now()
	for id, r := range a.byID {
		if now.After(r.until) {
			delete(a.byID, id)
			delete(a.byOwner, r.owner)
		}
	}
}
