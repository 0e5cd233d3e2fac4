// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"slices"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// A listing that is older than a machine does not hide it for good.
func TestListYoungMachine(t *testing.T) {
	t.Parallel()

	p := connect(t, pvetest.New(t, fastModel()), realTime)
	m, _ := create(t, p, spec(1))

	eventually(t, "the machine is listed", func() bool {
		all, err := p.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}

		return slices.ContainsFunc(all, func(x hypervisor.Machine) bool { return x.ID == m.ID })
	})
}

// Nor does it make a machine that this process made for one claim nobody's, when another claim
// says that it is its own.
func TestDeleteYoungMachineOfAnother(t *testing.T) {
	t.Parallel()

	p := connect(t, pvetest.New(t, fastModel()), realTime)
	m, _ := create(t, p, spec(1))

	err := p.Delete(t.Context(), hypervisor.MachineRef{ID: m.ID, Owner: spec(2).Owner})
	if !hypervisor.Is(err, hypervisor.NotOwned) {
		t.Errorf("want NotOwned, got %v", err)
	}
}

// Where each node has to be asked by itself, many nodes are asked less often: the calls of an
// hour do not grow with the cluster.
func TestListingsDoNotGrowWithNodes(t *testing.T) {
	t.Parallel()

	hour := func(nodes int) int {
		s := pvetest.New(t, fastModel().WithNodes(nodes))
		clk := clocktesting.NewFakeClock(time.Now())
		p := connect(t, s, func(_ *hypervisor.Config, o *hypervisor.Options) { o.Clock = clk })

		// As the operator does: what is free each half minute, all machines each minute.
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

		return asked(s, "", "/storage")
	}

	const little = 1.1

	if few, many := hour(10), hour(30); few == 0 || float64(many) > little*float64(few) {
		t.Errorf("storages and ISOs of 10 nodes take %d calls in an hour, those of 30 nodes %d", few, many)
	}
}

// A cloud-init ISO that was removed since all nodes were asked for theirs is not listed.
func TestListRemovedISO(t *testing.T) {
	t.Parallel()

	p := connect(t, pvetest.New(t, fastModel().WithNodes(12)), realTime)
	_, sp := create(t, p, spec(1))

	if all, err := p.List(t.Context()); err != nil || len(all) > 1 {
		t.Fatalf("want one machine alone, got %+v (%v)", all, err)
	}

	remove(t, p, sp)
	eventually(t, "nothing is listed", func() bool {
		all, err := p.List(t.Context())
		if err != nil || slices.ContainsFunc(all, func(x hypervisor.Machine) bool { return x.State == hypervisor.StateRemains }) {
			t.Fatalf("want no remains, got %+v (%v)", all, err)
		}

		return len(all) == 0
	})
}
