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
)

const (
	blue = "default/blue"
	red  = "default/red"
)

func pool(t testing.TB, network, name string, addresses ...string) pools.Pool {
	t.Helper()

	spec := alloc.Spec{Addresses: addresses, PrefixLengthV4: 8}
	if len(addresses) > 1 {
		spec.PrefixLengthV6 = 64
	}

	p, err := alloc.NewPool(name, spec)
	must(t, err)

	return pools.Pool{Network: network, Cluster: "one", Addresses: p}
}

func set(t testing.TB, b *pools.AddressRegistry, p pools.Pool) {
	t.Helper()

	must(t, b.SetPool(p, nil))
}

// wakeRecorder records the owners whose Wake was called, in order.
type wakes struct {
	mu  sync.Mutex
	who []string
}

func (w *wakes) of(who string) func() {
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()

		w.who = append(w.who, who)
	}
}

func (w *wakes) taken() []string {
	w.mu.Lock()
	defer w.mu.Unlock()

	who := w.who
	w.who = nil

	return who
}

// acquireAddresses calls Acquire for an owner and returns the addresses as text, or an empty text after an
// error.
func ask(t testing.TB, b *pools.AddressRegistry, w *wakes, pool, owner string) string {
	t.Helper()

	got, err := b.Acquire(pools.Request{Network: blue, Pool: pool, Owner: owner, Wake: w.of(owner)})

	var exhausted *alloc.ExhaustedError

	switch {
	case errors.As(err, &exhausted), errors.Is(err, alloc.ErrNoPool):
		return ""
	case err != nil:
		t.Fatal(err)
	}

	return fmt.Sprint(got)
}

func equal(t testing.TB, what string, got, want any) {
	t.Helper()

	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestWaitersAreWokenInTurnAndNoMoreThanThereIsRoomFor(t *testing.T) {
	t.Parallel()

	b, w := pools.New(), &wakes{}
	set(t, b, pool(t, blue, "p", "10.0.0.10-10.0.0.11"))

	for i, want := range []string{"[10.0.0.10/8]", "[10.0.0.11/8]", "", "", ""} {
		if got := ask(t, b, w, "p", fmt.Sprintf("m%d", i)); got != want {
			t.Fatalf("m%d has %q, want %q", i, got, want)
		}
	}

	equal(t, "no owner is woken without a change", w.taken(), []string(nil))

	if status, _ := b.Status("p"); status.Waiting != 3 || status.FreeMachines() != 0 {
		t.Errorf("status is %+v", status)
	}

	b.Release("m1")
	equal(t, "one owner is woken for one address", w.taken(), []string{"m2"})
	equal(t, "the address is used again", ask(t, b, w, "p", "m2"), "[10.0.0.11/8]")

	b.Release("m3")
	equal(t, "an owner that stops waiting wakes no other if the pool is full", w.taken(), []string(nil))

	set(t, b, pool(t, blue, "p", "10.0.0.10-10.0.0.19"))
	equal(t, "a larger pool wakes the remaining owners", w.taken(), []string{"m4"})

	if status, _ := b.Status("p"); status.Waiting != 0 || status.FreeMachines() != 8 {
		t.Errorf("status is %+v", status)
	}
}

// An owner whose Wake was called gets the address, even if another owner calls Acquire in the meantime.
func TestNobodyGetsAheadOfThoseWhoWait(t *testing.T) {
	t.Parallel()

	b, w := pools.New(), &wakes{}
	set(t, b, pool(t, blue, "p", "10.0.0.10-10.0.0.11"))

	for _, owner := range []string{"a", "b", "c", "d"} {
		ask(t, b, w, "p", owner)
	}

	b.Release("a")
	equal(t, "woken", w.taken(), []string{"c"})
	equal(t, "a new owner", ask(t, b, w, "p", "late"), "")
	equal(t, "the second waiting owner", ask(t, b, w, "p", "d"), "")
	equal(t, "an owner with an address", ask(t, b, w, "p", "b"), "[10.0.0.11/8]")
	equal(t, "the woken owner", ask(t, b, w, "p", "c"), "[10.0.0.10/8]")
	equal(t, "no other owner is woken", w.taken(), []string(nil))

	// If a woken owner does not need its address, the next owner is woken, whichever call removes the first
	// owner.
	b.Release("b")
	equal(t, "woken", w.taken(), []string{"d"})
	equal(t, "who waits", b.OwnersWithPrefix(""), []string{"c", "d", "late"})
	b.StopWaiting("d")
	equal(t, "woken", w.taken(), []string{"late"})
	set(t, b, pool(t, blue, "other", "10.0.1.0/24"))
	equal(t, "another pool's", ask(t, b, w, "other", "late"), "[10.0.1.1/8]")
	equal(t, "the way is free", ask(t, b, w, "p", "last"), "[10.0.0.11/8]")

	// This is also the case if the pool has shrunk since.
	ask(t, b, w, "p", "e")
	b.Release("last")
	set(t, b, pool(t, blue, "p", "10.0.0.10/32"))
	equal(t, "woken for what is not there any more", w.taken(), []string{"e"})
	equal(t, "has", ask(t, b, w, "p", "e"), "")
	set(t, b, pool(t, blue, "p", "10.0.0.10-10.0.0.11"))
	equal(t, "woken again", w.taken(), []string{"e"})

	held := alloc.Assignment{Owner: "e", Pool: "p", Address: netip.MustParsePrefix("10.9.0.1/8")}
	must(t, b.Restore(blue, held))

	equal(t, "who got one by hand waits no more", ask(t, b, w, "p", "f"), "[10.0.0.11/8]")
}

func TestWaitersOfAPoolThatIsNotThereYet(t *testing.T) {
	t.Parallel()

	b, w := pools.New(), &wakes{}
	equal(t, "has", ask(t, b, w, "p", "a"), "")
	set(t, b, pool(t, blue, "other", "10.0.1.0/24"))
	equal(t, "another pool wakes no owner", w.taken(), []string(nil))
	set(t, b, pool(t, blue, "p", "10.0.0.0/24"))
	equal(t, "woken", w.taken(), []string{"a"})
	equal(t, "has", ask(t, b, w, "p", "a"), "[10.0.0.1/8]")

	b.RemovePool("p")
	equal(t, "keeps", fmt.Sprint(b.AddressesOf("a")), "[10.0.0.1/8]")
	equal(t, "requests an address without a pool", ask(t, b, w, "p", "late"), "")
}

func TestPoolsOverlap(t *testing.T) {
	t.Parallel()

	b, w := pools.New(), &wakes{}
	set(t, b, pool(t, blue, "first", "10.0.0.10-10.0.0.20"))
	set(t, b, pool(t, red, "elsewhere", "10.0.0.10-10.0.0.20"))

	second := pool(t, blue, "second", "10.0.0.15-10.0.0.30")
	err := b.SetPool(second, w.of("second"))

	var overlap *alloc.OverlapError
	if !errors.As(err, &overlap) || overlap.Other != "first" {
		t.Fatalf("want an overlap with first, got %v", err)
	}

	if _, there := b.Status("second"); there {
		t.Error("the refused pool exists")
	}

	set(t, b, pool(t, blue, "first", "10.0.0.10-10.0.0.14"))
	equal(t, "the refused pool's owner is woken when the other one shrinks", w.taken(), []string{"second"})
	set(t, b, second)

	set(t, b, pool(t, red, "first", "10.0.0.100/32"))

	if status, _ := b.Status("first"); status.Network != red {
		t.Errorf("a pool that moved is on %s", status.Network)
	}

	set(t, b, pool(t, blue, "third", "10.0.0.10-10.0.0.14"))
}

func TestAnAddressThatSomebodyHasIsToBeHadLater(t *testing.T) {
	t.Parallel()

	b, w := pools.New(), &wakes{}
	set(t, b, pool(t, blue, "p", "10.0.0.0/24"))

	want := []netip.Addr{netip.MustParseAddr("10.0.0.7")}
	request := pools.Request{Network: blue, Pool: "p", Owner: "a", Requested: want}

	if _, err := b.Acquire(request); err != nil {
		t.Fatal(err)
	}

	request.Owner, request.Wake = "b", w.of("b")

	var unavailable *alloc.UnavailableError
	if _, err := b.Acquire(request); !errors.As(err, &unavailable) || unavailable.Holder != "a" {
		t.Fatalf("want a refusal that names a, got %v", err)
	}

	b.Release("a")
	equal(t, "woken", w.taken(), []string{"b"})

	if got, err := b.Acquire(request); err != nil || fmt.Sprint(got) != "[10.0.0.7/8]" {
		t.Errorf("b has %v, error %v", got, err)
	}
}

func TestRestoredAddressesAreNobodyElses(t *testing.T) {
	t.Parallel()

	b, w := pools.New(), &wakes{}
	held := alloc.Assignment{Owner: "ns/a/1", Pool: "p", Address: netip.MustParsePrefix("10.0.0.1/8")}

	must(t, b.Restore(blue, held))

	held.Owner = "ns/b/2"

	var conflict *alloc.ConflictError
	if err := b.Restore(blue, held); !errors.As(err, &conflict) || conflict.Holder != "ns/a/1" {
		t.Fatalf("want a conflict with ns/a/1, got %v", err)
	}

	set(t, b, pool(t, blue, "p", "10.0.0.0/24"))
	equal(t, "has", ask(t, b, w, "p", "ns/b/2"), "[10.0.0.2/8]")
	equal(t, "owners", b.OwnersWithPrefix("ns/a/"), []string{"ns/a/1"})
	equal(t, "freed", len(b.Release("ns/a/1")), 1)
	equal(t, "freed twice", len(b.Release("ns/a/1")), 0)
}

// Many machines run concurrently, and half of them are deleted as soon as they have an address. No two
// machines share an address, and waiting machines are served when addresses are free.
func TestConcurrentOwners(t *testing.T) {
	t.Parallel()

	b := pools.New()
	set(t, b, pool(t, blue, "p", "10.0.0.10-10.0.0.59"))

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
	if status.Waiting == 0 || status.FreeMachines() != 0 {
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
