// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// A node has disk space for more machines than it has memory for. Machines that are released at the same
// time do not get the same memory, and a machine without free memory waits.
func TestReleasedMachinesShareTheMemoryOfTheirNode(t *testing.T) {
	t.Parallel()

	const machines, fit = 3, 2

	s := pvetest.New(t, fastModel())
	p := connect(t, s, func(c *hypervisor.Config, _ *hypervisor.Options) { c.Nodes = []string{"pve1"} })

	capacity, err := p.Capacity(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	specs := make([]hypervisor.MachineSpec, machines)
	for i := range specs {
		specs[i] = newSpec(i + 1)
		specs[i].Shape.Memory = capacity.Free.Memory / (fit + 1) * 5 / 4 &^ (1<<20 - 1)
		specs[i].Standby = true
		_, specs[i] = create(t, p, specs[i])
	}

	var (
		group sync.WaitGroup
		mu    sync.Mutex
		runs  []hypervisor.MachineSpec
		waits []hypervisor.MachineSpec
	)

	for _, one := range specs {
		one.Standby = false

		group.Go(func() {
			ran := startUntilSettled(t, p, one)

			mu.Lock()
			defer mu.Unlock()

			if ran {
				runs = append(runs, one)
			} else {
				waits = append(waits, one)
			}
		})
	}

	group.Wait()

	if len(runs) != fit || len(waits) != machines-fit {
		t.Fatalf("%d machines run and %d wait, want %d and %d", len(runs), len(waits), fit, machines-fit)
	}

	remove(t, p, runs[0])
	create(t, p, waits[0])
}

// startUntilSettled calls Start until the machine runs, or until the error is NoCapacity.
func startUntilSettled(t *testing.T, p hypervisor.Provider, s hypervisor.MachineSpec) (runs bool) {
	t.Helper()
	timing.WaitUntil(t, s.Owner.Name+" runs or waits", func() bool {
		m, err := p.Start(t.Context(), s, seed)
		runs = err == nil && m.State == hypervisor.StateRunning

		if hypervisor.Is(err, hypervisor.NoCapacity) {
			requireError(t, err, hypervisor.NoCapacity, "waits to be started, because node pve1 has")

			return true
		}

		return runs || err != nil && !conformance.IsTransient(err)
	})

	return runs
}

// With a limit in percent, machines get this share of a node's memory, and errors name the share.
func TestMemoryPercent(t *testing.T) {
	t.Parallel()

	m := fastModel()
	memory := m.Nodes[0].Memory
	s := pvetest.New(t, m)
	onFirstNode := func(percent int) hypervisor.Connection {
		return connect(t, s, func(c *hypervisor.Config, _ *hypervisor.Options) {
			c.Nodes, c.MemoryPercent = []string{"pve1"}, percent
		})
	}
	whole, half := onFirstNode(0), onFirstNode(50)

	for p, want := range map[hypervisor.Connection]int64{whole: memory, half: memory / 2} {
		if got, err := p.Capacity(t.Context()); err != nil || got.Total.Memory != want || got.Nodes[0].Total.Memory != want {
			t.Errorf("the capacity is %+v (%v), want %d bytes of memory", got, err, want)
		}
	}

	large := newSpec(1)
	large.Shape.Memory = memory/2 + 1<<20

	if _, err := whole.Resolve(t.Context(), large.Template, large.Shape); err != nil {
		t.Error(err)
	}

	_, err := half.Resolve(t.Context(), large.Template, large.Shape)
	requireError(t, err, hypervisor.Rejected, "the biggest node pve1 has 32 cores and 64 GiB")

	capacity, err := half.Capacity(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	large.Shape.Memory = capacity.Free.Memory
	create(t, half, large)

	_, err = half.Reserve(t.Context(), newSpec(2))
	requireError(t, err, hypervisor.NoCapacity, "pve1 has 0 B free")
}

// Every process observes a standby machine that another user has started.
func TestStandbyStartedByHandIsDetected(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, fastModel())
	p := connect(t, s)
	one := newSpec(1)
	one.Standby = true
	_, one = create(t, p, one)

	var upid string
	if err := newRootClient(t, s).Post(t.Context(), fmt.Sprintf("/nodes/%s/qemu/%d/status/start", one.Node, one.ID), nil, &upid); err != nil {
		t.Fatal(err)
	}

	waitForTask(t, s, upid)

	for _, provider := range []hypervisor.Provider{p, connect(t, s)} {
		timing.WaitUntil(t, "it is seen to run", func() bool {
			m, err := provider.Get(t.Context(), newRef(one))

			return err == nil && m.State == hypervisor.StateRunning
		})
	}
}
