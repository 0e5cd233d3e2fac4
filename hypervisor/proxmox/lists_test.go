// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"slices"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// ownIntervals has the process list machines as seldom as the operator does: one is made
// before the next listing.
func ownIntervals(_ *hypervisor.Config, o *hypervisor.Options) { o.TaskInterval, o.ListInterval = 0, 0 }

// A listing that is older than a machine does not hide it for good.
func TestListYoungMachine(t *testing.T) {
	t.Parallel()

	p := connect(t, pvetest.New(t, fastModel()), ownIntervals)
	m := create(t, p, spec(1))

	for deadline := time.Now().Add(patience); ; time.Sleep(pause) {
		all, err := p.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}

		if slices.ContainsFunc(all, func(x hypervisor.Machine) bool { return x.ID == m.ID }) {
			return
		}

		if time.Now().After(deadline) {
			t.Fatalf("want machine %d listed, got %+v", m.ID, all)
		}
	}
}

// Nor does it make a machine that this process made for one claim nobody's, when another claim
// says that it is its own.
func TestDeleteYoungMachineOfAnother(t *testing.T) {
	t.Parallel()

	p := connect(t, pvetest.New(t, fastModel()), ownIntervals)
	m := create(t, p, spec(1))

	err := p.Delete(t.Context(), hypervisor.MachineRef{ID: m.ID, Owner: spec(2).Owner})
	if !hypervisor.Is(err, hypervisor.NotOwned) {
		t.Errorf("want NotOwned, got %v", err)
	}
}
