// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ids

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// ReservationTTL is the time after which a reservation that nobody confirmed expires. By then,
// either the claim records the id or the process that reserved it has ended.
const ReservationTTL = 10 * time.Minute

// Allocator reserves ids from a range. It keeps a value of type T with each reservation, for
// example the resources that the reservation uses. It is safe for concurrent use.
type Allocator[T any] struct {
	min, max    int
	now         func() time.Time
	searchStart func(owner string) int

	// loadMu is held while LoadClaimed reads the claimed ids. hasLoadedClaimed is true once it has read them.
	loadMu           sync.Mutex
	hasLoadedClaimed bool

	mu   sync.Mutex
	next int
	// byID holds the reservations, and byOwner the reserved id of each owner's UID.
	byID    map[int]reservation[T]
	byOwner map[string]int
	// claimed maps each id that a claim holds to the owner's UID. The UID is empty if it is
	// unknown.
	claimed map[int]string
	// taken holds the ids that belong to a machine of another owner.
	taken map[int]bool
	// restored holds the values of machines that another process has placed, by the owner's UID.
	restored map[string]reservation[T]
}

type reservation[T any] struct {
	owner     string
	expiresAt time.Time
	value     T
}

// New returns an allocator for the ids from lowest to highest, both included. It reads the time
// from now. searchStart returns the offset in the range at which the search for an owner's id
// starts. If searchStart is nil, the search starts after the id that was reserved last. A released
// id is then reused late, so people see the same machine under an id for a while.
func New[T any](lowest, highest int, now func() time.Time, searchStart func(owner string) int) *Allocator[T] {
	return &Allocator[T]{
		min: lowest, max: highest, now: now, searchStart: searchStart,
		byID: map[int]reservation[T]{}, byOwner: map[string]int{}, claimed: map[int]string{}, taken: map[int]bool{},
		restored: map[string]reservation[T]{},
	}
}

// LoadClaimed reads the machines that claims already hold with listClaimed, which is
// hypervisor.Options.ListClaimed and may be nil. It calls restore, which may be nil, for each machine of the
// cluster that has a node and may not run yet. After the first success, further calls do nothing.
func (a *Allocator[T]) LoadClaimed(
	ctx context.Context, cluster string,
	listClaimed func(context.Context, string) ([]hypervisor.ClaimedMachine, error), restore func(hypervisor.ClaimedMachine),
) error {
	a.loadMu.Lock()
	defer a.loadMu.Unlock()

	if a.hasLoadedClaimed || listClaimed == nil {
		return nil
	}

	machines, err := listClaimed(ctx, cluster)
	if err != nil {
		return fmt.Errorf("list the machines that claims hold: %w", err)
	}

	for _, m := range machines {
		a.addClaimed(m.ID)

		if m.Node != "" && restore != nil {
			restore(m)
		}
	}

	a.hasLoadedClaimed = true

	return nil
}

func (a *Allocator[T]) addClaimed(id int) {
	a.mu.Lock()
	defer a.mu.Unlock()

	if _, ok := a.claimed[id]; !ok {
		a.claimed[id] = ""
	}
}

// Restore keeps a value for an owner whose machine an earlier process has placed. It is one of Reservations until
// the owner's first call of Confirm, Release or MarkTaken, or until a reservation would expire.
func (a *Allocator[T]) Restore(owner string, value T) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.restored[owner] = reservation[T]{owner: owner, expiresAt: a.now().Add(ReservationTTL), value: value}
}

// Reserve returns the id that is reserved for the owner, or reserves a free id for it together
// with the value. If isUsed is not nil, Reserve skips the ids for which isUsed returns true. If no
// id is free, the error is of kind NoCapacity.
func (a *Allocator[T]) Reserve(owner string, value T, isUsed func(int) bool) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.deleteExpired()

	if id, ok := a.byOwner[owner]; ok {
		return id, nil
	}

	size := a.max - a.min + 1

	start := a.next
	if a.searchStart != nil {
		start = a.searchStart(owner)
	}

	for i := range size {
		id := a.min + (start+i)%size
		if a.isInUse(id, owner) || isUsed != nil && isUsed(id) {
			continue
		}

		a.next = id + 1 - a.min
		a.byID[id] = reservation[T]{owner: owner, expiresAt: a.now().Add(ReservationTTL), value: value}
		a.byOwner[owner] = id

		return id, nil
	}

	return 0, hypervisor.Errorf(hypervisor.NoCapacity, "IDsExhausted",
		"reserve id: all ids from %d to %d are in use: widen vmIdRange or delete machines", a.min, a.max)
}

func (a *Allocator[T]) isInUse(id int, owner string) bool {
	_, isReserved := a.byID[id]
	holder, isClaimed := a.claimed[id]

	return isReserved || isClaimed && holder != owner || a.taken[id]
}

// ReservationFor returns the id that is reserved for the owner and the value of the reservation.
// ok is false if the owner has no reservation.
func (a *Allocator[T]) ReservationFor(owner string) (id int, value T, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.deleteExpired()

	id, ok = a.byOwner[owner]

	return id, a.byID[id].value, ok
}

// Reservations returns the values of all reservations, also of restored ones, in no particular order.
func (a *Allocator[T]) Reservations() []T {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.deleteExpired()

	out := make([]T, 0, len(a.byID)+len(a.restored))
	for _, r := range a.byID {
		out = append(out, r.value)
	}

	for _, r := range a.restored {
		out = append(out, r.value)
	}

	return out
}

// Confirm records that the owner's claim holds the id, and deletes the owner's reservation of the
// id. It returns true if this process reserved the id for this owner and confirms it for the first
// time. In that case, no machine with this id can exist yet.
func (a *Allocator[T]) Confirm(id int, owner string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()

	wasReserved := a.deleteReservation(id, owner)
	a.claimed[id] = owner
	delete(a.restored, owner)

	return wasReserved
}

// IsHeldByOther reports whether this process has confirmed the id for another owner.
func (a *Allocator[T]) IsHeldByOther(id int, owner string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()

	holder := a.claimed[id]

	return holder != "" && holder != owner
}

// ConfirmedIDs returns the set of ids that this process has confirmed for an owner.
func (a *Allocator[T]) ConfirmedIDs() map[int]bool {
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

// Release frees the id of an owner whose machine no longer exists. It does nothing if the claim of
// another owner holds the id.
func (a *Allocator[T]) Release(id int, owner string) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.releaseLocked(id, owner)
}

// MarkTaken releases an id that belongs to a machine of another owner. The allocator never
// reserves the id again.
func (a *Allocator[T]) MarkTaken(id int, owner string) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.releaseLocked(id, owner)
	a.taken[id] = true
}

func (a *Allocator[T]) releaseLocked(id int, owner string) {
	a.deleteReservation(id, owner)
	delete(a.restored, owner)

	if holder, ok := a.claimed[id]; ok && (holder == owner || holder == "") {
		delete(a.claimed, id)
	}
}

// deleteReservation deletes the reservation of the id if the owner has it, and reports whether
// it did.
func (a *Allocator[T]) deleteReservation(id int, owner string) bool {
	r, ok := a.byID[id]
	if !ok || r.owner != owner {
		return false
	}

	delete(a.byID, id)
	delete(a.byOwner, owner)

	return true
}

func (a *Allocator[T]) deleteExpired() {
	now := a.now()
	for id, r := range a.byID {
		if now.After(r.expiresAt) {
			a.deleteReservation(id, r.owner)
		}
	}

	maps.DeleteFunc(a.restored, func(_ string, r reservation[T]) bool { return now.After(r.expiresAt) })
}
