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

func newOwner(n int) hypervisor.Owner {
	return hypervisor.Owner{Name: strconv.Itoa(n), UID: strconv.Itoa(n)}
}

func newTestQueues(limit int) (*cloneQueues, *clocktesting.FakeClock, *[]string) {
	clk := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	woken := &[]string{}

	return newCloneQueues(limit, func(o hypervisor.Owner) { *woken = append(*woken, o.UID) }, clk.Now), clk, woken
}

// expectAcquire checks whether an owner acquires a slot, and otherwise how many owners are ahead of it.
func expectAcquire(t *testing.T, g *cloneQueues, storage string, n int, held, want bool, ahead int) {
	t.Helper()

	if entered, before := g.acquire(storage, newOwner(n), held); entered != want || !entered && before != ahead {
		t.Errorf("owner %d entered: %t, %d before it", n, entered, before)
	}
}

func expectWoken(t *testing.T, woken *[]string, want ...string) {
	t.Helper()

	if diff := cmp.Diff(want, *woken); diff != "" {
		t.Errorf("woken (-want +got):\n%s", diff)
	}
}

func TestCloneQueueServesInOrder(t *testing.T) {
	g, _, woken := newTestQueues(2)

	for n := range 5 {
		expectAcquire(t, g, "s", n, false, n < 2, n-2)
	}

	expectAcquire(t, g, "s", 3, false, false, 1) // a second call keeps the position in the queue
	g.release("s", newOwner(0))

	expectWoken(t, woken, "2")

	// The slot stays reserved for the woken owner.
	expectAcquire(t, g, "s", 9, false, false, 2)
	expectAcquire(t, g, "s", 2, false, true, 0)
}

func TestCloneQueueWakesNextOwner(t *testing.T) {
	g, clk, woken := newTestQueues(1)
	g.acquire("s", newOwner(0), false)
	g.acquire("s", newOwner(1), false)
	g.acquire("s", newOwner(2), false)
	g.release("s", newOwner(0))
	clk.Step(reservationLifetime + time.Second)

	if !g.wakeWaiters() {
		t.Error("no owner waits")
	}

	expectWoken(t, woken, "1", "2")

	g.release("s", newOwner(2))

	if g.wakeWaiters() || g.load("s") != 0 {
		t.Error("the queues are not empty")
	}
}

func TestCloneQueueDropsCancelledOwners(t *testing.T) {
	g, _, woken := newTestQueues(1)
	g.acquire("s", newOwner(0), false)
	g.acquire("s", newOwner(1), false)
	g.acquire("s", newOwner(2), false)
	g.release("s", newOwner(1))
	g.release("s", newOwner(0))

	expectWoken(t, woken, "2")
}

func TestCloneQueuePriority(t *testing.T) {
	g, _, woken := newTestQueues(2)

	// Standby machines leave one slot free for a machine that is needed now.
	expectAcquire(t, g, "s", 0, true, true, 0)
	expectAcquire(t, g, "s", 1, true, false, 0)
	expectAcquire(t, g, "s", 2, true, false, 1)
	expectAcquire(t, g, "s", 3, false, true, 0)
	expectAcquire(t, g, "s", 4, false, false, 0) // no standby machine is ahead of a machine that is needed now
	expectAcquire(t, g, "s", 2, false, false, 1) // the standby machine is needed now
	g.release("s", newOwner(0))
	g.release("s", newOwner(3))

	// The last waiting machine is a standby machine and leaves the free slot free.
	expectWoken(t, woken, "4", "2")

	g.acquire("s", newOwner(4), false)
	g.acquire("s", newOwner(2), false)
	g.release("s", newOwner(4))
	g.release("s", newOwner(2))

	expectWoken(t, woken, "4", "2", "1")
}

func TestCloneQueueWithOneSlot(t *testing.T) {
	g, _, woken := newTestQueues(1)

	expectAcquire(t, g, "s", 0, true, true, 0)
	g.acquire("s", newOwner(1), true)
	g.acquire("s", newOwner(2), false)
	g.release("s", newOwner(0))

	expectWoken(t, woken, "2")
}

func TestGatesAreIndependent(t *testing.T) {
	g, _, _ := newTestQueues(1)
	expectAcquire(t, g, "a", 0, false, true, 0)
	expectAcquire(t, g, "a", 1, false, false, 0)
	expectAcquire(t, g, "b", 1, false, true, 0)
}

func TestChoose(t *testing.T) {
	const gib = int64(1) << 30

	node := func(name string, online bool, cores, free int64, queue int) candidate {
		return candidate{Node: name, Online: online, Cores: cores, FreeMemory: free * gib, TotalMemory: 64 * gib, QueuedClones: queue}
	}
	full := func(c candidate) candidate {
		c.StorageExclusion = "storage a/data was full"

		return c
	}
	aside := func(c candidate) candidate {
		c.TemplateExclusion = "failed"

		return c
	}
	roomy := func(c candidate) candidate {
		c.HasDiskSpace = true

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
			got, err := chooseNode(c.nodes, c.spec)
			if got.Node != c.want {
				t.Errorf("chose %q (%v)", got.Node, err)
			}

			if c.says != "" {
				requireError(t, err, hypervisor.NoCapacity, c.says)
			}
		})
	}
}

func TestTooLarge(t *testing.T) {
	nodes := []hypervisor.Node{
		{Name: "small", Total: hypervisor.Resources{CPU: 64, Memory: 8 << 30}},
		{Name: "big", Total: hypervisor.Resources{CPU: 8, Memory: 64 << 30}},
	}

	if err := checkNodeSize(nodes, hypervisor.Shape{CPU: 8, Memory: 64 << 30}); err != nil {
		t.Error(err)
	}

	// Each amount fits on a node, but no node has both.
	err := checkNodeSize(nodes, hypervisor.Shape{CPU: 9, Memory: 9 << 30})
	requireError(t, err, hypervisor.Rejected, "the biggest node big has 8 cores and 64 GiB")
}
