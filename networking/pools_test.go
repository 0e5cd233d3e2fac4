// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package networking_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/pools"
	"github.com/hyperfleet/hyperfleet/test/must"
)

const (
	blue = "default/blue"
	red  = "default/red"
)

func newPool(t testing.TB, network, name string, addresses ...string) pools.Pool {
	t.Helper()

	spec := alloc.Spec{Addresses: addresses, PrefixLengthV4: 8}
	if len(addresses) > 1 {
		spec.PrefixLengthV6 = 64
	}

	p, err := alloc.NewPool(name, spec)
	must.Do(t, err)

	return pools.Pool{Network: network, Cluster: "one", Addresses: p}
}

func setPool(t testing.TB, b *pools.AddressRegistry, p pools.Pool) {
	t.Helper()

	must.Do(t, b.SetPool(p, nil))
}

// wakeRecorder records the owners whose Wake was called, in order.
type wakeRecorder struct {
	mu     sync.Mutex
	owners []string
}

func (w *wakeRecorder) newWake(owner string) func() {
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()

		w.owners = append(w.owners, owner)
	}
}

func (w *wakeRecorder) takeOwners() []string {
	w.mu.Lock()
	defer w.mu.Unlock()

	owners := w.owners
	w.owners = nil

	return owners
}

// acquireAddresses calls Acquire for an owner and returns the addresses as text, or an empty text after an
// error.
func acquireAddresses(t testing.TB, b *pools.AddressRegistry, w *wakeRecorder, pool, owner string) string {
	t.Helper()

	got, err := b.Acquire(pools.Request{Network: blue, Pool: pool, Owner: owner, Wake: w.newWake(owner)})

	var exhausted *alloc.ExhaustedError

	switch {
	case errors.As(err, &exhausted), errors.Is(err, alloc.ErrNoPool):
		return ""
	case err != nil:
		t.Fatal(err)
	}

	return fmt.Sprint(got)
}

func requireEqual(t testing.TB, what string, got, want any) {
	t.Helper()

	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestWaitingOwnersAreWokenInTurn(t *testing.T) {
	t.Parallel()

	b, w := pools.New(), &wakeRecorder{}
	setPool(t, b, newPool(t, blue, "p", "10.0.0.10-10.0.0.11"))

	for i, want := range []string{"[10.0.0.10/8]", "[10.0.0.11/8]", "", "", ""} {
		if got := acquireAddresses(t, b, w, "p", fmt.Sprintf("m%d", i)); got != want {
			t.Fatalf("m%d has %q, want %q", i, got, want)
		}
	}

	requireEqual(t, "no owner is woken without a change", w.takeOwners(), []string(nil))

	if status, _ := b.Status("p"); status.Waiting != 3 || status.CountAllocatable() != 0 {
		t.Errorf("status is %+v", status)
	}

	b.Release("m1")
	requireEqual(t, "one owner is woken for one address", w.takeOwners(), []string{"m2"})
	requireEqual(t, "the address is used again", acquireAddresses(t, b, w, "p", "m2"), "[10.0.0.11/8]")

	b.Release("m3")
	requireEqual(t, "an owner that stops waiting wakes no other if the pool is full", w.takeOwners(), []string(nil))

	setPool(t, b, newPool(t, blue, "p", "10.0.0.10-10.0.0.19"))
	requireEqual(t, "a larger pool wakes the remaining owners", w.takeOwners(), []string{"m4"})

	if status, _ := b.Status("p"); status.Waiting != 0 || status.CountAllocatable() != 8 {
		t.Errorf("status is %+v", status)
	}
}

// An owner whose Wake was called gets the address, even if another owner calls Acquire in the meantime.
func TestWokenOwnerKeepsItsTurn(t *testing.T) {
	t.Parallel()

	b, w := pools.New(), &wakeRecorder{}
	setPool(t, b, newPool(t, blue, "p", "10.0.0.10-10.0.0.11"))

	for _, owner := range []string{"a", "b", "c", "d"} {
		acquireAddresses(t, b, w, "p", owner)
	}

	b.Release("a")
	requireEqual(t, "woken", w.takeOwners(), []string{"c"})
	requireEqual(t, "a new owner", acquireAddresses(t, b, w, "p", "late"), "")
	requireEqual(t, "the second waiting owner", acquireAddresses(t, b, w, "p", "d"), "")
	requireEqual(t, "an owner with an address", acquireAddresses(t, b, w, "p", "b"), "[10.0.0.11/8]")
	requireEqual(t, "the woken owner", acquireAddresses(t, b, w, "p", "c"), "[10.0.0.10/8]")
	requireEqual(t, "no other owner is woken", w.takeOwners(), []string(nil))

	// If a woken owner does not need its address, the next owner is woken, whichever call removes the first
	// owner.
	b.Release("b")
	requireEqual(t, "woken", w.takeOwners(), []string{"d"})
	requireEqual(t, "who waits", b.OwnersWithPrefix(""), []string{"c", "d", "late"})
	b.StopWaiting("d")
	requireEqual(t, "woken", w.takeOwners(), []string{"late"})
	setPool(t, b, newPool(t, blue, "other", "10.0.1.0/24"))
	requireEqual(t, "another pool's", acquireAddresses(t, b, w, "other", "late"), "[10.0.1.1/8]")
	requireEqual(t, "the way is free", acquireAddresses(t, b, w, "p", "last"), "[10.0.0.11/8]")

	// This is also the case if the pool has shrunk since.
	acquireAddresses(t, b, w, "p", "e")
	b.Release("last")
	setPool(t, b, newPool(t, blue, "p", "10.0.0.10/32"))
	requireEqual(t, "woken for what is not there any more", w.takeOwners(), []string{"e"})
	requireEqual(t, "has", acquireAddresses(t, b, w, "p", "e"), "")
	setPool(t, b, newPool(t, blue, "p", "10.0.0.10-10.0.0.11"))
	requireEqual(t, "woken again", w.takeOwners(), []string{"e"})

	held := alloc.Assignment{Owner: "e", Pool: "p", Address: netip.MustParsePrefix("10.9.0.1/8")}
	must.Do(t, b.Restore(blue, held))

	requireEqual(t, "who got one by hand waits no more", acquireAddresses(t, b, w, "p", "f"), "[10.0.0.11/8]")
}

func TestOwnersWaitForMissingPool(t *testing.T) {
	t.Parallel()

	b, w := pools.New(), &wakeRecorder{}
	requireEqual(t, "has", acquireAddresses(t, b, w, "p", "a"), "")
	setPool(t, b, newPool(t, blue, "other", "10.0.1.0/24"))
	requireEqual(t, "another pool wakes no owner", w.takeOwners(), []string(nil))
	setPool(t, b, newPool(t, blue, "p", "10.0.0.0/24"))
	requireEqual(t, "woken", w.takeOwners(), []string{"a"})
	requireEqual(t, "has", acquireAddresses(t, b, w, "p", "a"), "[10.0.0.1/8]")

	b.RemovePool("p")
	requireEqual(t, "keeps", fmt.Sprint(b.AddressesOf("a")), "[10.0.0.1/8]")
	requireEqual(t, "requests an address without a pool", acquireAddresses(t, b, w, "p", "late"), "")
}

func TestPoolsOverlap(t *testing.T) {
	t.Parallel()

	b, w := pools.New(), &wakeRecorder{}
	setPool(t, b, newPool(t, blue, "first", "10.0.0.10-10.0.0.20"))
	setPool(t, b, newPool(t, red, "elsewhere", "10.0.0.10-10.0.0.20"))

	second := newPool(t, blue, "second", "10.0.0.15-10.0.0.30")
	err := b.SetPool(second, w.newWake("second"))

	var overlap *alloc.OverlapError
	if !errors.As(err, &overlap) || overlap.Other != "first" {
		t.Fatalf("want an overlap with first, got %v", err)
	}

	if _, there := b.Status("second"); there {
		t.Error("the refused pool exists")
	}

	setPool(t, b, newPool(t, blue, "first", "10.0.0.10-10.0.0.14"))
	requireEqual(t, "the refused pool's owner is woken when the other one shrinks", w.takeOwners(), []string{"second"})
	setPool(t, b, second)

	setPool(t, b, newPool(t, red, "first", "10.0.0.100/32"))

	if status, _ := b.Status("first"); status.Network != red {
		t.Errorf("a pool that moved is on %s", status.Network)
	}

	setPool(t, b, newPool(t, blue, "third", "10.0.0.10-10.0.0.14"))
}

func TestAddressInUseIsAvailableLater(t *testing.T) {
	t.Parallel()

	b, w := pools.New(), &wakeRecorder{}
	setPool(t, b, newPool(t, blue, "p", "10.0.0.0/24"))

	want := []netip.Addr{netip.MustParseAddr("10.0.0.7")}
	request := pools.Request{Network: blue, Pool: "p", Owner: "a", Requested: want}

	if _, err := b.Acquire(request); err != nil {
		t.Fatal(err)
	}

	request.Owner, request.Wake = "b", w.newWake("b")

	var unavailable *alloc.UnavailableError
	if _, err := b.Acquire(request); !errors.As(err, &unavailable) || unavailable.Holder != "a" {
		t.Fatalf("want a refusal that names a, got %v", err)
	}

	b.Release("a")
	requireEqual(t, "woken", w.takeOwners(), []string{"b"})

	if got, err := b.Acquire(request); err != nil || fmt.Sprint(got) != "[10.0.0.7/8]" {
		t.Errorf("b has %v, error %v", got, err)
	}
}

func TestRestoredAddressesStayAllocated(t *testing.T) {
	t.Parallel()

	b, w := pools.New(), &wakeRecorder{}
	held := alloc.Assignment{Owner: "ns/a/1", Pool: "p", Address: netip.MustParsePrefix("10.0.0.1/8")}

	must.Do(t, b.Restore(blue, held))

	held.Owner = "ns/b/2"

	var conflict *alloc.ConflictError
	if err := b.Restore(blue, held); !errors.As(err, &conflict) || conflict.Holder != "ns/a/1" {
		t.Fatalf("want a conflict with ns/a/1, got %v", err)
	}

	setPool(t, b, newPool(t, blue, "p", "10.0.0.0/24"))
	requireEqual(t, "has", acquireAddresses(t, b, w, "p", "ns/b/2"), "[10.0.0.2/8]")
	requireEqual(t, "owners", b.OwnersWithPrefix("ns/a/"), []string{"ns/a/1"})
	requireEqual(t, "freed", len(b.Release("ns/a/1")), 1)
	requireEqual(t, "freed twice", len(b.Release("ns/a/1")), 0)
}

// Many machines run concurrently, and half of them are deleted as soon as they have an address. No two
// machines share an address, and waiting machines are served when addresses are free.
func TestConcurrentOwners(t *testing.T) {
	t.Parallel()

	b := pools.New()
	setPool(t, b, newPool(t, blue, "p", "10.0.0.10-10.0.0.59"))

	var (
		wg  sync.WaitGroup
		try func(owner string, stays bool)
	)

	try = func(owner string, stays bool) {
		wake := func() { wg.Go(func() { try(owner, stays) }) }

		_, err := b.Acquire(pools.Request{Network: blue, Pool: "p", Owner: owner, Wake: wake})

		var exhausted *alloc.ExhaustedError
		if err != nil && !errors.As(err, &exhausted) {
			t.Error(err)
		}

		if err == nil && !stays {
			b.Release(owner)
		}
	}

	for i := range 200 {
		wg.Go(func() { try(fmt.Sprintf("m%d", i), i%2 == 0) })
	}

	wg.Wait()

	status, _ := b.Status("p")
	if status.Waiting == 0 || status.CountAllocatable() != 0 {
		t.Errorf("100 owners remain on 50 addresses, status %+v", status)
	}

	var all []netip.Prefix
	for i := range 200 {
		all = append(all, b.AddressesOf(fmt.Sprintf("m%d", i))...)
	}

	slices.SortFunc(all, func(x, y netip.Prefix) int { return x.Addr().Compare(y.Addr()) })

	if len(all) != 50 || len(slices.Compact(all)) != 50 {
		t.Errorf("%d addresses, not 50 different ones", len(all))
	}
}

// Each of the owners that ask for an address of a full pool at the same time gets a place in the queue. There are many, so
// that requests really overlap.
func TestEachConcurrentOwnerIsInTheQueue(t *testing.T) {
	t.Parallel()

	const callers, owners = 8, 500

	b := pools.New()
	setPool(t, b, newPool(t, blue, "p", "10.0.0.10/32"))

	var wg sync.WaitGroup

	for caller := range callers {
		wg.Go(func() {
			for i := range owners {
				request := pools.Request{Network: blue, Pool: "p", Owner: fmt.Sprintf("m%d-%d", caller, i), Wake: func() {}}

				var exhausted *alloc.ExhaustedError
				if _, err := b.Acquire(request); err != nil && !errors.As(err, &exhausted) {
					t.Error(err)
				}
			}
		})
	}

	wg.Wait()

	if status, _ := b.Status("p"); status.Waiting != callers*owners-1 {
		t.Errorf("%d of %d owners wait", status.Waiting, callers*owners-1)
	}
}
