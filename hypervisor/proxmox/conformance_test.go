// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// quickTasks is a hypervisor whose tasks end at once.
func quickTasks(t *testing.T) conformance.Harness {
	t.Helper()

	m := fastModel()
	m.Delays.Clone = time.Millisecond

	return harness(t, m)
}

// slowTasks is one whose tasks take their time: they leave half-made machines for a new
// process to find.
func slowTasks(t *testing.T) conformance.Harness {
	t.Helper()

	const short = 15 * time.Millisecond

	m := fastModel()
	m.Delays = pve.Delays{Clone: short, Start: short, Destroy: short, Upload: short, Boot: short}

	return harness(t, m)
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, slowTasks)
}

func TestCrashes(t *testing.T) {
	t.Parallel()
	conformance.Crashes(t, slowTasks)
}

// With the operator's own intervals a machine is made before the listing is asked for again,
// as on a real Proxmox VE.
func TestSoakConformanceOwnIntervals(t *testing.T) {
	property.Soak(t)

	conformance.Run(t, func(t *testing.T) conformance.Harness {
		t.Helper()

		h := harness(t, fastModel())
		h.RealTime = true

		return h
	})
}

// A process dies at every call, not only at those that change something.
func TestSoakCrashes(t *testing.T) { //nolint:tparallel // soak tests have the machine to themselves
	property.Soak(t)

	for name, fresh := range map[string]conformance.New{"quick tasks": quickTasks, "slow tasks": slowTasks} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conformance.CrashesAtEveryCall(t, fresh)
		})
	}
}

// Feature: hyperfleet-operator, Property 24: Provider Interface Implementation
func TestProperty24ProviderInterface(t *testing.T) {
	t.Parallel()
	conformance.Property(t, quickTasks)
}

// tpmTemplate is a template whose machines have its TPM, and are protected.
const tpmTemplate = "with-tpm"

// harness is the simulator behind the conformance cases.
func harness(t *testing.T, model pve.Model) conformance.Harness {
	t.Helper()

	withTPM := model.Templates[0]
	withTPM.Name, withTPM.VMID, withTPM.TPM = tpmTemplate, 9501, true
	withTPM.Config = map[string]string{"protection": "1"}
	model.Templates = append(slices.Clone(model.Templates), withTPM)

	for i := range model.Nodes {
		for _, who := range []string{pve.DefaultUser, pve.DefaultTokenID} {
			model.ACL = append(model.ACL, pve.ACL{
				Path: fmt.Sprintf("/vms/%d", withTPM.VMID+i), Principal: who, Role: "HyperFleetTemplate",
			})
		}
	}

	s := pvetest.New(t, model)
	occupied := map[int]bool{}

	return conformance.Harness{
		Connect: func(tb testing.TB, o hypervisor.Options) hypervisor.Connection {
			tb.Helper()

			p, err := proxmox.New(config(s), o)
			if err != nil {
				tb.Fatal(err)
			}

			return p
		},
		Template: hypervisor.TemplateRef{Name: pve.DefaultTemplate},
		Shape:    spec(1).Shape,
		IDMin:    config(s).IDMin,

		TPMTemplate: hypervisor.TemplateRef{Name: tpmTemplate},
		Inspect:     func() conformance.State { return inspect(s, occupied) },
		OnCall: func(f func(conformance.Boundary)) func() {
			return s.OnCall(func(c pve.Call) {
				f(conformance.Boundary{
					Before: c.Phase == pve.Before, Write: c.Method != http.MethodGet, What: c.Method + " " + c.Path,
				})
			})
		},
		PowerOff: s.PowerOff,
		Occupy: func(tb testing.TB, id int) {
			tb.Helper()
			occupy(tb, s, id)

			occupied[id] = true
		},
		Vanish: func(tb testing.TB, id int) {
			tb.Helper()
			s.Vanish(id)
		},
	}
}

// inspect tells what is in the simulator.
func inspect(s *pve.Server, occupied map[int]bool) conformance.State {
	var (
		state   conformance.State
		foreign []pve.VMState
	)

	snap := s.Snapshot()
	for _, vm := range snap.VMs {
		if vm.Foreign || occupied[vm.VMID] {
			foreign = append(foreign, vm)

			if vm.TPM != "" {
				state.TPMs = append(state.TPMs, vm.TPM)
			}

			continue
		}

		var record proxmox.Record

		if raw, ok := description(vm); ok {
			record, _ = proxmox.ParseRecord(raw)
		}

		state.Machines = append(state.Machines, conformance.Seen{
			ID: vm.VMID, ClaimUID: record.MachineClaim.UID, OperatorUID: record.OperatorUID,
			Running: vm.Status == "running", Starts: vm.Starts, TPM: vm.TPM,
		})
	}

	for _, iso := range snap.ISOs() {
		state.Seeds = append(state.Seeds, iso.Node+"/"+iso.VolID)
	}

	raw, err := json.Marshal(foreign)
	if err != nil {
		panic(err)
	}

	state.Foreign = string(raw)

	return state
}
