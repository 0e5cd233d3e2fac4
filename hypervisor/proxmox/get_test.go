// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// If the status of one machine cannot be read, the state of another one is found nevertheless.
func TestErrorOfOneMachineHidesNoOther(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, fastModel())
	p := connect(t, s)
	broken, brokenSpec := create(t, p, newSpec(1))
	stopped, stoppedSpec := create(t, p, newSpec(2))

	s.AddFault(pve.Fault{
		Kind: pve.FaultError, Path: "/nodes/*/qemu/*/status/current", VMID: broken.ID, Status: http.StatusInternalServerError, Reason: "no status",
	})
	s.PowerOff(broken.ID)
	s.PowerOff(stopped.ID)

	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		_, err := p.Get(t.Context(), newRef(brokenSpec))
		got, otherErr := p.Get(t.Context(), newRef(stoppedSpec))

		if err != nil && otherErr == nil && got.State == hypervisor.StateStopped {
			return
		}

		if time.Now().After(deadline) {
			t.Fatalf("the broken machine: %v; the other one is %s, %v; want %s", err, got.State, otherErr, hypervisor.StateStopped)
		}
	}
}

// If a node does not respond, a new process lists the machines of the other nodes.
func TestSilentNodeHidesNoOther(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, fastModel())
	p := connect(t, s)
	silent, _ := create(t, p, newSpec(1))
	other, _ := create(t, p, newSpec(2))
	s.AddFault(pve.Fault{Kind: pve.FaultNodeDown, Path: "/nodes/" + silent.Node + "/*", Reason: "Connection timed out"})

	all, err := connect(t, s).List(t.Context())
	if err != nil || silent.Node == other.Node ||
		!slices.ContainsFunc(all, func(m hypervisor.Machine) bool { return m.ID == other.ID }) {
		t.Errorf("node %s is silent; the machines of other nodes are %+v, %v; want machine %d of node %s",
			silent.Node, all, err, other.ID, other.Node)
	}
}
