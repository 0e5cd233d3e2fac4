// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// A VM list that is older than a machine does not hide the machine permanently.
func TestListYoungMachine(t *testing.T) {
	t.Parallel()

	p := connect(t, pvetest.New(t, fastModel()), useRealTime)
	m, _ := create(t, p, newSpec(1))

	timing.WaitUntil(t, "the machine is listed", func() bool {
		all, err := p.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}

		return slices.ContainsFunc(all, func(x hypervisor.Machine) bool { return x.ID == m.ID })
	})
}

// A new process lists a machine with everything that is known about it.
func TestListedMachine(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, fastModel())
	m, sp := create(t, connect(t, s, useRealTime), newSpec(1))

	vm, _ := s.Snapshot().VM(m.ID)
	notes, _ := getDescription(vm)

	record, err := proxmox.ParseRecord(notes)
	if err != nil || record.CreatedAt.IsZero() {
		t.Fatalf("record %+v, %v", record, err)
	}

	want := []hypervisor.Machine{{
		ID: m.ID, Name: sp.Hostname, Node: vm.Node, Owner: sp.Owner, State: hypervisor.StateRunning, CreatedAt: record.CreatedAt, MAC: m.MAC,
	}}

	got, err := connect(t, s, useRealTime).List(t.Context())
	if diff := cmp.Diff(want, got); err != nil || diff != "" || m.MAC == "" {
		t.Errorf("%v, MAC address %q (-want +got):\n%s", err, m.MAC, diff)
	}
}

// The free resources of a node are what running machines and disks leave.
func TestFreeResourcesOfANode(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, fastModel())
	p := connect(t, s, func(c *hypervisor.Config, _ *hypervisor.Options) {
		c.Nodes, c.DefaultStorage = []string{"pve1"}, "local-lvm"
	})

	used := func() hypervisor.Resources {
		capacity, err := p.Capacity(t.Context())
		if err != nil || len(capacity.Nodes) != 1 {
			t.Fatalf("capacity %+v, %v", capacity, err)
		}

		total, free := capacity.Nodes[0].Total, capacity.Nodes[0].Free

		return hypervisor.Resources{CPU: total.CPU - free.CPU, Memory: total.Memory - free.Memory, Disk: total.Disk - free.Disk}
	}

	before := used()
	if before.Disk < 20*gib {
		t.Errorf("disks use %d bytes, but the template has a disk of 20 GiB", before.Disk)
	}

	_, sp := create(t, p, newSpec(1))
	timing.WaitUntil(t, "the node has less CPUs and memory", func() bool {
		now := used()

		return now.CPU >= before.CPU+int64(sp.Shape.CPU) && now.Memory >= before.Memory+sp.Shape.Memory
	})
}

// If another claim refers to the machine, the machine still belongs to the claim that it was created for.
func TestDeleteYoungMachineOfAnother(t *testing.T) {
	t.Parallel()

	p := connect(t, pvetest.New(t, fastModel()), useRealTime)
	m, _ := create(t, p, newSpec(1))

	err := p.Delete(t.Context(), hypervisor.MachineRef{ID: m.ID, Owner: newSpec(2).Owner})
	if !hypervisor.Is(err, hypervisor.NotOwned) {
		t.Errorf("want NotOwned, got %v", err)
	}
}

// If the provider needs one request per node, it sends fewer requests per node in a large cluster, so that
// the calls per hour do not grow with the cluster.
func TestListingsDoNotGrowWithNodes(t *testing.T) {
	t.Parallel()

	hour := func(nodes int) int {
		s := pvetest.New(t, fastModel().WithNodes(nodes))
		clk := clocktesting.NewFakeClock(time.Now())
		p := connect(t, s, func(_ *hypervisor.Config, o *hypervisor.Options) { o.Clock = clk })

		// The operator reads the capacity every half minute, and lists all machines every minute.
		for half := range 120 {
			if _, err := p.Capacity(t.Context()); err != nil {
				t.Fatal(err)
			}

			if half%2 == 0 {
				if _, err := p.List(t.Context()); err != nil {
					t.Fatal(err)
				}
			}

			clk.Step(30 * time.Second)
		}

		return countCalls(s, "", "/storage")
	}

	const little = 1.1

	if few, many := hour(10), hour(30); few == 0 || float64(many) > little*float64(few) {
		t.Errorf("storages and ISOs of 10 nodes take %d calls in an hour, those of 30 nodes %d", few, many)
	}
}

// A cloud-init ISO that was deleted after the ISOs were listed is not returned.
func TestListRemovedISO(t *testing.T) {
	t.Parallel()

	p := connect(t, pvetest.New(t, fastModel().WithNodes(12)), useRealTime)
	_, sp := create(t, p, newSpec(1))

	if all, err := p.List(t.Context()); err != nil || len(all) > 1 {
		t.Fatalf("want one machine alone, got %+v (%v)", all, err)
	}

	remove(t, p, sp)
	timing.WaitUntil(t, "nothing is listed", func() bool {
		all, err := p.List(t.Context())
		if err != nil || slices.ContainsFunc(all, func(x hypervisor.Machine) bool { return x.State == hypervisor.StateRemains }) {
			t.Fatalf("want no remains, got %+v (%v)", all, err)
		}

		return len(all) == 0
	})
}
