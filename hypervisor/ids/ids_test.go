// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ids_test

import (
	"context"
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
		t.Error("only the first confirmation is fresh")
	}

	a.Release(100, "a")

	// Lowest free after the last given: 100 comes round late.
	if got := []int{reserve("b"), reserve("c"), reserve("d"), reserve("e")}; !cmp.Equal(got, []int{101, 102, 103, 100}) {
		t.Errorf("reserved %v", got)
	}

	if _, err := a.Reserve("f", "n", nil); !hypervisor.Is(err, hypervisor.NoCapacity) {
		t.Errorf("a full range gave %v", err)
	}

	if a.Confirm(101, "x") {
		t.Error("another's reservation was confirmed as fresh")
	}

	clk.Step(ids.ReservationLife + time.Second)

	if id := reserve("g"); id != 102 {
		t.Errorf("after the reservations ran out: %d", id)
	}
}

func TestReserveAvoids(t *testing.T) {
	t.Parallel()

	a := ids.New[string](100, 105, time.Now, nil)

	for range 2 { // it is asked once
		err := a.Seed(t.Context(), func(context.Context) ([]int, error) { return []int{100}, nil })
		if err != nil {
			t.Fatal(err)
		}
	}

	a.Reject(101, "a")

	id, err := a.Reserve("b", "n", func(id int) bool { return id == 102 })
	if err != nil || id != 103 {
		t.Errorf("reserved %d (%v): claimed, foreign and listed ids must be left out", id, err)
	}

	if got := a.Reservations(); !cmp.Equal(got, []string{"n"}) {
		t.Errorf("noted with reservations: %v", got)
	}
}

// Where the search begins can be the owner's own: a new process finds the same id.
func TestReserveBeginsWhereItIsTold(t *testing.T) {
	t.Parallel()

	for range 2 {
		a := ids.New[string](100, 103, time.Now, func(owner string) int { return len(owner) })

		for owner, want := range map[string]int{"ab": 102, "abc": 103} {
			if id, err := a.Reserve(owner, "", nil); err != nil || id != want {
				t.Errorf("%s: reserved %d (%v), want %d", owner, id, err, want)
			}
		}

		a.Reject(102, "ab")

		if id, err := a.Reserve("ab", "", nil); err != nil || id != 100 {
			t.Errorf("after another's was met: %d (%v)", id, err)
		}
	}
}
