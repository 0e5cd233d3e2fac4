// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

func owner(n int) hypervisor.Owner {
	return hypervisor.Owner{Name: strconv.Itoa(n), UID: strconv.Itoa(n)}
}

func testGates(limit int) (*gates, *clocktesting.FakeClock, *[]string) {
	clk := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	woken := &[]string{}

	return newGates(limit, func(o hypervisor.Owner) { *woken = append(*woken, o.UID) }, clk.Now), clk, woken
}

func TestGateServesInOrder(t *testing.T) {
	g, _, woken := testGates(2)

	for n, want := range []bool{true, true, false, false, false} {
		if entered, _ := g.enter("s", owner(n), false); entered != want {
			t.Errorf("owner %d entered: %t", n, entered)
		}
	}

	// Coming again keeps the place in line.
	if _, ahead := g.enter("s", owner(3), false); ahead != 1 {
		t.Errorf("%d before owner 3", ahead)
	}

	g.leave("s", owner(0))

	if diff := cmp.Diff([]string{"2"}, *woken); diff != "" {
		t.Errorf("woken (-want +got):\n%s", diff)
	}

	// The place is kept for the one woken.
	if entered, _ := g.enter("s", owner(9), false); entered {
		t.Error("a latecomer went before the one woken")
	}

	if entered, _ := g.enter("s", owner(2), false); !entered {
		t.Error("the one woken did not enter")
	}
}

func TestGatePassesOnTurnsNotTaken(t *testing.T) {
	g, clk, woken := testGates(1)
	g.enter("s", owner(0), false)
	g.enter("s", owner(1), false)
	g.enter("s", owner(2), false)
	g.leave("s", owner(0))
	clk.Step(turnLife + time.Second)

	if !g.tick() {
		t.Error("nobody waits")
	}

	if diff := cmp.Diff([]string{"1", "2"}, *woken); diff != "" {
		t.Errorf("woken (-want +got):\n%s", diff)
	}

	g.leave("s", owner(2))

	if g.tick() || g.load("s") != 0 {
		t.Error("the gate is not empty")
	}
}

func TestGateForgetsWhoGivesUp(t *testing.T) {
	g, _, woken := testGates(1)
	g.enter("s", owner(0), false)
	g.enter("s", owner(1), false)
	g.enter("s", owner(2), false)
	g.leave("s", owner(1))
	g.leave("s", owner(0))

	if diff := cmp.Diff([]string{"2"}, *woken); diff != "" {
		t.Errorf("woken (-want +got):\n%s", diff)
	}
}

func TestGateLetsTheWantedGoFirst(t *testing.T) {
	g, _, woken := testGates(2)

	if entered, _ := g.enter("s", owner(0), true); !entered {
		t.Error("the first to be held found no place")
	}

	if entered, _ := g.enter("s", owner(1), true); entered {
		t.Error("those to be held left no place free")
	}

	g.enter("s", owner(2), true)

	if entered, _ := g.enter("s", owner(3), false); !entered {
		t.Error("a wanted one did not get the place that is left free")
	}

	if _, ahead := g.enter("s", owner(4), false); ahead != 0 {
		t.Errorf("%d to be held are before a wanted one", ahead)
	}

	// What was to be held is wanted now.
	if _, ahead := g.enter("s", owner(2), false); ahead != 1 {
		t.Errorf("%d before the one that has come to be wanted", ahead)
	}

	g.leave("s", owner(0))
	g.leave("s", owner(3))

	// The last in line is to be held, and leaves the free place free.
	if diff := cmp.Diff([]string{"4", "2"}, *woken); diff != "" {
		t.Errorf("woken (-want +got):\n%s", diff)
	}

	g.enter("s", owner(4), false)
	g.enter("s", owner(2), false)
	g.leave("s", owner(4))
	g.leave("s", owner(2))

	if diff := cmp.Diff([]string{"4", "2", "1"}, *woken); diff != "" {
		t.Errorf("woken (-want +got):\n%s", diff)
	}
}

func TestGateOfOnePlaceServesBoth(t *testing.T) {
	g, _, woken := testGates(1)

	if entered, _ := g.enter("s", owner(0), true); !entered {
		t.Error("one to be held never gets the only place")
	}

	g.enter("s", owner(1), true)
	g.enter("s", owner(2), false)
	g.leave("s", owner(0))

	if diff := cmp.Diff([]string{"2"}, *woken); diff != "" {
		t.Errorf("woken (-want +got):\n%s", diff)
	}
}

func TestGatesAreApart(t *testing.T) {
	g, _, _ := testGates(1)
	g.enter("a", owner(0), false)

	if entered, _ := g.enter("a", owner(1), false); entered {
		t.Error("entered a full gate")
	}

	if entered, _ := g.enter("b", owner(1), false); !entered {
		t.Error("one storage's gate closed another's")
	}
}

func TestChoose(t *testing.T) {
	const gib = int64(1) << 30

	node := func(name string, online bool, cores, free int64, queue int) candidate {
		return candidate{Node: name, Online: online, Cores: cores, FreeMemory: free * gib, TotalMemory: 64 * gib, Queue: queue}
	}
	full := func(c candidate) candidate {
		c.Full = "storage a/data was full"

		return c
	}
	aside := func(c candidate) candidate {
		c.Aside = "failed"

		return c
	}
	roomy := func(c candidate) candidate {
		c.Roomy = true

		return c
	}
	shape := hypervisor.Shape{CPU: 4, Memory: 8 * gib}
	spread := hypervisor.MachineSpec{Shape: shape}
	pack := hypervisor.MachineSpec{Shape: shape, Strategy: hypervisor.Pack}
	hold := hypervisor.MachineSpec{Shape: shape, Standby: true}

	cases := []struct {
		name  string
		spec  hypervisor.MachineSpec
		nodes []candidate
		want  string
		says  string
	}{
		{"shortest queue", spread, []candidate{node("a", true, 8, 64, 3), node("b", true, 8, 16, 1)}, "b", ""},
		{"then most memory", spread, []candidate{node("a", true, 8, 16, 1), node("b", true, 8, 64, 1)}, "b", ""},
		{"then the name", spread, []candidate{node("b", true, 8, 64, 1), node("a", true, 8, 64, 1)}, "a", ""},
		{"offline", spread, []candidate{node("a", false, 8, 64, 0)}, "", "a is offline"},
		{"too little memory", spread, []candidate{node("a", true, 8, 7, 0)}, "", "a has 7 GiB free"},
		{"too few cores", spread, []candidate{node("a", true, 2, 64, 0)}, "", "a has 2 cores"},
		{"exactly enough", spread, []candidate{node("a", true, 4, 8, 0)}, "a", ""},
		{"packed: the least memory that suffices", pack, []candidate{
			node("a", true, 8, 64, 0), node("b", true, 8, 8, 5), node("c", true, 8, 7, 0),
		}, "b", ""},
		{"packed: then the name", pack, []candidate{node("b", true, 8, 16, 0), node("a", true, 8, 16, 9)}, "a", ""},
		{"full storages not at all", spread, []candidate{full(node("a", true, 8, 64, 0)), node("b", true, 8, 8, 9)}, "b", ""},
		{"full storages alone", spread, []candidate{full(node("a", true, 8, 64, 0))}, "", "storage a/data was full"},
		{"set aside: the other", pack, []candidate{aside(node("a", true, 8, 8, 0)), node("b", true, 8, 64, 9)}, "b", ""},
		{"set aside: there is no other", spread, []candidate{aside(node("a", true, 8, 64, 0)), node("b", true, 2, 64, 0)}, "a", ""},
		{"room for the disk first", spread, []candidate{node("a", true, 8, 64, 0), roomy(node("b", true, 8, 16, 9))}, "b", ""},
		{"held: a node that is full now", hold, []candidate{node("a", true, 8, 0, 0)}, "a", ""},
		{"none", spread, nil, "", "no usable node has the template"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := choose(c.nodes, c.spec)
			if got.Node != c.want {
				t.Errorf("chose %q (%v)", got.Node, err)
			}

			if c.says != "" {
				says(t, err, hypervisor.NoCapacity, c.says)
			}
		})
	}
}

func TestTooLarge(t *testing.T) {
	nodes := []hypervisor.Node{
		{Name: "small", Total: hypervisor.Resources{CPU: 64, Memory: 8 << 30}},
		{Name: "big", Total: hypervisor.Resources{CPU: 8, Memory: 64 << 30}},
	}

	if err := tooLarge(nodes, hypervisor.Shape{CPU: 8, Memory: 64 << 30}); err != nil {
		t.Error(err)
	}

	// Each amount fits on some node, both together on none.
	err := tooLarge(nodes, hypervisor.Shape{CPU: 9, Memory: 9 << 30})
	says(t, err, hypervisor.Rejected, "the biggest node big has 8 cores and 64 GiB")
}
