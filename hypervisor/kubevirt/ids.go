// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// reservationLife is how long an id is kept for a caller that has not come back with
// it. By then its claim was written or its process is gone.
const reservationLife = 10 * time.Minute

// allocator chooses ids. Where an owner's search begins follows from its uid, so that a
// new process finds the same id and a claim made again under an old name does not.
type allocator struct {
	min, max int
	now      func() time.Time

	mu sync.Mutex
	// reserved by id, until the claim holds it.
	reserved map[int]reservation
	byOwner  map[string]int
	// claimed are ids that claims hold, with the owner's uid where it is known.
	claimed map[int]string
	// taken are ids whose name turned out to be another's, by the owner it was tried for.
	taken map[string]map[int]bool
}

type reservation struct {
	owner string
	until time.Time
}

func newAllocator(lowest, highest int, now func() time.Time) *allocator {
	return &allocator{
		min: lowest, max: highest, now: now, reserved: map[int]reservation{}, byOwner: map[string]int{},
		claimed: map[int]string{}, taken: map[string]map[int]bool{},
	}
}

// reserve gives the owner's reserved id, or reserves one.
func (a *allocator) reserve(owner string) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.expire()

	if id, ok := a.byOwner[owner]; ok {
		return id, nil
	}

	size := a.max - a.min + 1
	first := start(owner, size)

	for i := range size {
		id := a.min + (first+i)%size
		if a.busy(id, owner) {
			continue
		}

		a.reserved[id] = reservation{owner: owner, until: a.now().Add(reservationLife)}
		a.byOwner[owner] = id

		return id, nil
	}

	return 0, &hypervisor.Error{
		Kind: hypervisor.NoCapacity, Reason: "IDsExhausted",
		Message: fmt.Sprintf("all ids from %d to %d are taken: widen vmIdRange or remove machines", a.min, a.max),
	}
}

func start(owner string, size int) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(owner))

	return int(h.Sum64() % uint64(size)) //nolint:gosec // below size, which is an int
}

func (a *allocator) busy(id int, owner string) bool {
	_, reserved := a.reserved[id]
	holder, claimed := a.claimed[id]

	return reserved || claimed && holder != owner || a.taken[owner][id]
}

// confirm turns a reservation into a claim's id.
func (a *allocator) confirm(id int, owner string) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.drop(id, owner)
	a.claimed[id] = owner
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

// reject frees an id whose name is another's, and does not give it to the owner again.
func (a *allocator) reject(id int, owner string) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.free(id, owner)

	if a.taken[owner] == nil {
		a.taken[owner] = map[int]bool{}
	}

	a.taken[owner][id] = true
}

// release frees the id of an owner that is gone.
func (a *allocator) release(id int, owner string) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.free(id, owner)
	delete(a.taken, owner)
}

func (a *allocator) free(id int, owner string) {
	a.drop(id, owner)

	if holder, ok := a.claimed[id]; ok && (holder == owner || holder == "") {
		delete(a.claimed, id)
	}
}

func (a *allocator) drop(id int, owner string) {
	if a.reserved[id].owner == owner {
		delete(a.reserved, id)
		delete(a.byOwner, owner)
	}
}

func (a *allocator) expire() {
	now := a.now()
	for id, r := range a.reserved {
		if now.After(r.until) {
			a.drop(id, r.owner)
		}
	}
}
