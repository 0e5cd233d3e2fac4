// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// A node has disk for more machines than it has memory for. Those that are released
// together are not given the same memory, and who finds none waits for it.
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
		specs[i] = spec(i + 1)
		specs[i].Shape.Memory = capacity.Free.Memory / (fit + 1) * 5 / 4 &^ (1<<20 - 1)
		specs[i].Standby = true
		specs[i] = hold(t, p, specs[i])
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
			ran := released(t, p, one)

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

	remove(t, p, hypervisor.MachineRef{ID: runs[0].ID, Owner: runs[0].Owner})
	create(t, p, waits[0])
}

// hold calls Create until the machine is prepared.
func hold(t *testing.T, p hypervisor.Provider, s hypervisor.MachineSpec) hypervisor.MachineSpec {
	t.Helper()

	deadline := time.Now().Add(patience)

	for {
		m, err := further(t.Context(), p, &s)
		if err != nil && !transient(err) || time.Now().After(deadline) {
			t.Fatalf("hold %s: %s (%v)", s.Owner.Name, m.State, err)
		}

		if m.State == hypervisor.StatePrepared && err == nil {
			return s
		}

		time.Sleep(pause)
	}
}

// released calls Start until the machine runs, or is told that there is no room.
func released(t *testing.T, p hypervisor.Provider, s hypervisor.MachineSpec) bool {
	t.Helper()

	deadline := time.Now().Add(patience)

	for time.Now().Before(deadline) {
		m, err := p.Start(t.Context(), s, seed)

		switch {
		case hypervisor.Is(err, hypervisor.NoCapacity):
			if !strings.Contains(err.Error(), "waits to be started: its node pve1 has") {
				t.Errorf("says %q", err)
			}

			return false
		case err != nil && !transient(err):
			t.Errorf("release %s: %v", s.Owner.Name, err)

			return false
		case err == nil && m.State == hypervisor.StateRunning:
			return true
		}

		time.Sleep(pause)
	}

	t.Errorf("release %s: it took too long", s.Owner.Name)

	return false
}

// A machine that somebody else starts is no longer prepared, for whoever looks.
func TestAHeldMachineStartedByHandIsSeen(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, fastModel())
	p := connect(t, s)
	one := spec(1)
	one.Standby = true
	one = hold(t, p, one)

	var upid string
	if err := root(t, s).Post(t.Context(), fmt.Sprintf("/nodes/%s/qemu/%d/status/start", one.Node, one.ID), nil, &upid); err != nil {
		t.Fatal(err)
	}

	await(t, s, upid)

	for _, provider := range []hypervisor.Provider{p, connect(t, s)} {
		deadline := time.Now().Add(patience)

		for {
			m, err := provider.Get(t.Context(), hypervisor.MachineRef{ID: one.ID, Owner: one.Owner})
			if err == nil && m.State == hypervisor.StateRunning {
				break
			}

			if time.Now().After(deadline) {
				t.Fatalf("get: %s (%v)", m.State, err)
			}

			time.Sleep(pause)
		}
	}
}
