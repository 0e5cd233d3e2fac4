// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ids_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/ids"
)

func TestReserve(t *testing.T) {
	t.Parallel()

	clk := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	a := ids.New[string](100, 103, clk.Now, nil)

	reserve := func(owner string) int {
		t.Helper()

		id, err := a.Reserve(owner, "n", nil)
		if err != nil {
			t.Fatal(err)
		}

		return id
	}

	if first, again := reserve("a"), reserve("a"); first != 100 || again != 100 {
		t.Errorf("reserved %d, then %d", first, again)
	}

	if !a.Confirm(100, "a") || a.Confirm(100, "a") {
		t.Error("want true only for the first confirmation")
	}

	a.Release(100, "a")

	// The search starts after the id that was reserved last, so 100 is reused last.
	if got := []int{reserve("b"), reserve("c"), reserve("d"), reserve("e")}; !cmp.Equal(got, []int{101, 102, 103, 100}) {
		t.Errorf("reserved %v", got)
	}

	if _, err := a.Reserve("f", "n", nil); !hypervisor.Is(err, hypervisor.NoCapacity) {
		t.Errorf("a full range gave %v", err)
	}

	if a.Confirm(101, "x") {
		t.Error("want false for the confirmation of another owner's reservation")
	}

	clk.Step(ids.ReservationTTL + time.Second)

	if id := reserve("g"); id != 102 {
		t.Errorf("reserved %d after the reservations expired, want 102", id)
	}
}

func TestReserveAvoids(t *testing.T) {
	t.Parallel()

	a := ids.New[string](100, 105, time.Now, nil)

	for range 2 { // the second call does nothing
		err := a.LoadClaimed(t.Context(), "", func(context.Context, string) ([]hypervisor.ClaimedMachine, error) {
			return []hypervisor.ClaimedMachine{{ID: 100}}, nil
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
	}

	a.MarkTaken(101, "a")

	id, err := a.Reserve("b", "n", func(id int) bool { return id == 102 })
	if err != nil || id != 103 {
		t.Errorf("reserved %d (%v), want 103: claimed, allocated and used ids must be skipped", id, err)
	}

	if got := a.Reservations(); !cmp.Equal(got, []string{"n"}) {
		t.Errorf("values of reservations: %v", got)
	}
}

// With a search start for each owner, a new process finds the same id for an owner.
func TestReserveStartsAtGivenID(t *testing.T) {
	t.Parallel()

	for range 2 {
		a := ids.New[string](100, 103, time.Now, func(owner string) int { return len(owner) })

		for owner, want := range map[string]int{"ab": 102, "abc": 103} {
			if id, err := a.Reserve(owner, "", nil); err != nil || id != want {
				t.Errorf("%s: reserved %d (%v), want %d", owner, id, err, want)
			}
		}

		a.MarkTaken(102, "ab")

		if id, err := a.Reserve("ab", "", nil); err != nil || id != 100 {
			t.Errorf("reserved %d (%v) after an id was allocated, want 100", id, err)
		}
	}
}

// A new process keeps the values of machines that another process has placed, until their owners use them or they expire.
func TestRestoredReservations(t *testing.T) {
	t.Parallel()

	clk := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	a := ids.New[string](100, 105, clk.Now, nil)
	list := func(_ context.Context, cluster string) ([]hypervisor.ClaimedMachine, error) {
		return []hypervisor.ClaimedMachine{
			{ID: 100, Node: cluster, OwnerUID: "a"}, {ID: 101}, {ID: 102, Node: cluster, OwnerUID: "b"}, {ID: 103, Node: cluster, OwnerUID: "c"},
		}, nil
	}

	err := a.LoadClaimed(t.Context(), "lab", list, func(m hypervisor.ClaimedMachine) { a.Restore(m.OwnerUID, m.Node+m.OwnerUID) })
	if err != nil {
		t.Fatal(err)
	}

	values := func() []string { return slices.Sorted(slices.Values(a.Reservations())) }

	if got := values(); !cmp.Equal(got, []string{"laba", "labb", "labc"}) {
		t.Errorf("restored %v", got)
	}

	// Somebody else has placed the machine, so it may exist.
	if a.Confirm(100, "a") {
		t.Error("want false for the first confirmation of a restored machine")
	}

	if _, _, ok := a.ReservationFor("b"); ok {
		t.Error("a restored machine is no reservation of this process, because it may exist")
	}

	a.Release(102, "b")

	if got := values(); !cmp.Equal(got, []string{"labc"}) {
		t.Errorf("%v are left, want that of c", got)
	}

	clk.Step(ids.ReservationTTL + time.Second)

	if got := values(); len(got) != 0 {
		t.Errorf("%v are left after their time", got)
	}
}
