// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ids gives the machines of one HypervisorCluster ids out of its range, for providers
// whose machines are told apart by a number.
package ids

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// ReservationLife is how long an id is kept for a caller that has not come back with it. By
// then its claim was written or its process is gone.
const ReservationLife = 10 * time.Minute

// Allocator gives out ids of a range. It keeps a T with each reservation, such as what was
// promised with it. Many may use it at once.
type Allocator[T any] struct {
	min, max int
	now      func() time.Time
	first    func(owner string) int

	// seeding is held while Options.Claimed is asked; seeded says that it was.
	seeding sync.Mutex
	seeded  bool

	mu   sync.Mutex
	next int
	// byID and byOwner are reservations; claimed are ids known to be claims', with the
	// owner's uid where it is known.
	byID    map[int]reservation[T]
	byOwner map[string]int
	claimed map[int]string
	// taken are ids seen to be someone else's, whoever that is.
	taken map[int]bool
}

type reservation[T any] struct {
	owner string
	until time.Time
	note  T
}

// New makes an allocator of the ids from lowest to highest, both included. First says how far
// into the range an owner's search begins. Nil begins after the id given last: one just freed
// comes round late, so that what people see under it stays the same a while.
func New[T any](lowest, highest int, now func() time.Time, first func(owner string) int) *Allocator[T] {
	return &Allocator[T]{
		min: lowest, max: highest, now: now, first: first,
		byID: map[int]reservation[T]{}, byOwner: map[string]int{}, claimed: map[int]string{}, taken: map[int]bool{},
	}
}

// Seed asks once which ids claims hold already, as hypervisor.Options.Claimed gives them.
func (a *Allocator[T]) Seed(ctx context.Context, claimed func(context.Context) ([]int, error)) error {
	a.seeding.Lock()
	defer a.seeding.Unlock()

	if a.seeded || claimed == nil {
		return nil
	}

	ids, err := claimed(ctx)
	if err != nil {
		return fmt.Errorf("read the ids that claims hold: %w", err)
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	for _, id := range ids {
		if _, ok := a.claimed[id]; !ok {
			a.claimed[id] = ""
		}
	}

	a.seeded = true

	return nil
}

// Reserve gives the owner's reserved id, or reserves one that is free and that used, if it is
// not nil, does not know.
func (a *Allocator[T]) Reserve(owner string, note T, used func(int) bool) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.expire()

	if id, ok := a.byOwner[owner]; ok {
		return id, nil
	}

	size := a.max - a.min + 1

	first := a.next
	if a.first != nil {
		first = a.first(owner)
	}

	for i := range size {
		id := a.min + (first+i)%size
		if a.busy(id, owner) || used != nil && used(id) {
			continue
		}

		a.next = id + 1 - a.min
		a.byID[id] = reservation[T]{owner: owner, until: a.now().Add(ReservationLife), note: note}
		a.byOwner[owner] = id

		return id, nil
	}

	return 0, hypervisor.Errorf(hypervisor.NoCapacity, "IDsExhausted",
		"all ids from %d to %d are taken: widen vmIdRange or remove machines", a.min, a.max)
}

func (a *Allocator[T]) busy(id int, owner string) bool {
	_, reserved := a.byID[id]
	holder, claimed := a.claimed[id]

	return reserved || claimed && holder != owner || a.taken[id]
}

// Reserved gives an owner's reservation.
func (a *Allocator[T]) Reserved(owner string) (id int, note T, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.expire()

	id, ok = a.byOwner[owner]

	return id, a.byID[id].note, ok
}

// Reservations gives what was noted with each reservation.
func (a *Allocator[T]) Reservations() []T {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.expire()

	out := make([]T, 0, len(a.byID))
	for _, r := range a.byID {
		out = append(out, r.note)
	}

	return out
}

// Confirm turns a reservation into a claim's id. It tells whether the id was reserved for this
// owner by this process and is confirmed for the first time: then nothing can have been made
// under it yet.
func (a *Allocator[T]) Confirm(id int, owner string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()

	fresh := a.drop(id, owner)
	a.claimed[id] = owner

	return fresh
}

// HeldByOther tells whether this process deals with another claim's machine under an id.
func (a *Allocator[T]) HeldByOther(id int, owner string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()

	holder := a.claimed[id]

	return holder != "" && holder != owner
}

// Live gives the ids of the machines that this process deals with.
func (a *Allocator[T]) Live() map[int]bool {
	a.mu.Lock()
	defer a.mu.Unlock()

	out := map[int]bool{}

	for id, owner := range a.claimed {
		if owner != "" {
			out[id] = true
		}
	}

	return out
}

// Release frees the id of an owner that is gone.
func (a *Allocator[T]) Release(id int, owner string) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.free(id, owner)
}

// Reject frees an id that turned out to be someone else's, and does not give it again.
func (a *Allocator[T]) Reject(id int, owner string) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.free(id, owner)
	a.taken[id] = true
}

func (a *Allocator[T]) free(id int, owner string) {
	a.drop(id, owner)

	if holder, ok := a.claimed[id]; ok && (holder == owner || holder == "") {
		delete(a.claimed, id)
	}
}

// drop ends an owner's reservation, and tells whether there was one.
func (a *Allocator[T]) drop(id int, owner string) bool {
	r, ok := a.byID[id]
	if !ok || r.owner != owner {
		return false
	}

	delete(a.byID, id)
	delete(a.byOwner, owner)

	return true
}

func (a *Allocator[T]) expire() {
	now := a.now()
	for id, r := range a.byID {
		if now.After(r.until) {
			a.drop(id, r.owner)
		}
	}
}
