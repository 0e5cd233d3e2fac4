// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt_test

import (
	"context"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
)

// A machine that an earlier process has placed, and that does not run yet, keeps its memory in a new process: since the
// machine is created there, or from the beginning if the process knows what claims hold.
func TestPlacedMachinesKeepTheirMemory(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	options := hypervisor.Options{OperatorUID: "operator"}
	first := s.connect(t, options)

	capacity, err := first.Capacity(t.Context())
	s.must(err)

	newSpec := func(name string) hypervisor.MachineSpec {
		return hypervisor.MachineSpec{
			Owner:    hypervisor.Owner{Namespace: "ci", Name: name, UID: "uid-" + name},
			Template: hypervisor.TemplateRef{Name: template, Kind: hypervisor.TemplateStorageVolume},
			// The host has room for one of them. A full clone takes longer than one call.
			Shape: hypervisor.Shape{CPU: 1, Memory: capacity.Total.Memory / 10 * 6},
		}
	}

	placed := newSpec("placed")
	reserved, err := first.Reserve(t.Context(), placed)
	s.must(err)
	first.Close()

	placed.ID, placed.Node = reserved.ID, reserved.Node
	requireFull := func(when string, p hypervisor.Provider) {
		t.Helper()

		got, err := p.Reserve(t.Context(), newSpec("late"))
		if !hypervisor.Is(err, hypervisor.NoCapacity) || !strings.Contains(err.Error(), "host-1: ") {
			t.Errorf("%s: reserved %+v (%v), want NoCapacity", when, got, err)
		}
	}

	second := s.connect(t, options)
	defer second.Close()

	if m, err := second.Start(t.Context(), placed, newSeed); err != nil || m.State != hypervisor.StateCreating {
		t.Fatalf("want a machine whose disk is being cloned, got %+v (%v)", m, err)
	}

	requireFull("the machine is being created", second)

	options.ListClaimed = func(_ context.Context, cluster string) ([]hypervisor.ClaimedMachine, error) {
		if cluster != s.name {
			t.Errorf("asked for the machines of cluster %s, want %s", cluster, s.name)
		}

		return []hypervisor.ClaimedMachine{{
			ID: placed.ID, Node: placed.Node, OwnerUID: placed.Owner.UID, CPU: placed.Shape.CPU, Memory: placed.Shape.Memory,
		}}, nil
	}

	third := s.connect(t, options)
	defer third.Close()

	requireFull("the claim has a node", third)

	s.must(conformance.Delete(t.Context(), third, hypervisor.MachineRef{ID: placed.ID, Owner: placed.Owner}))

	if _, err := third.Reserve(t.Context(), newSpec("late")); err != nil {
		t.Errorf("the memory of the deleted machine is not free: %v", err)
	}
}
