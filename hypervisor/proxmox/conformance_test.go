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
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance/random"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// newQuickHarness returns a hypervisor whose tasks end immediately.
func newQuickHarness(t *testing.T) conformance.Harness {
	t.Helper()

	m := fastModel()
	m.Delays.Clone = time.Millisecond

	return newHarness(t, m)
}

// newSlowHarness returns a hypervisor with slow tasks. A new process finds incomplete machines there.
func newSlowHarness(t *testing.T) conformance.Harness {
	t.Helper()

	const short = 15 * time.Millisecond

	m := fastModel()
	m.Delays = pve.Delays{Clone: short, Start: short, Destroy: short, Upload: short, Boot: short}

	return newHarness(t, m)
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, newSlowHarness)
}

func TestCrashes(t *testing.T) {
	t.Parallel()
	conformance.RunCrashes(t, newSlowHarness)
}

// With the operator's default intervals, a machine is created before the VM list is requested again, as on
// a real Proxmox VE.
func TestSoakConformanceOwnIntervals(t *testing.T) {
	property.Soak(t)

	conformance.Run(t, func(t *testing.T) conformance.Harness {
		t.Helper()

		h := newHarness(t, fastModel())
		h.RealTime = true

		return h
	})
}

// A process stops at each call, and not only at the calls that change something.
func TestSoakCrashes(t *testing.T) { //nolint:tparallel // soak tests have the machine to themselves
	property.Soak(t)

	for name, fresh := range map[string]conformance.HarnessFunc[*testing.T]{"quick tasks": newQuickHarness, "slow tasks": newSlowHarness} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conformance.RunCrashesAtEveryCall(t, fresh)
		})
	}
}

// Feature: hyperfleet-operator, Property 24: Provider Interface Implementation
func TestProperty24ProviderInterface(t *testing.T) {
	t.Parallel()
	random.Property(t, newQuickHarness)
}

// tpmTemplate is the name of a protected template with a TPM. Its clones have the same TPM.
const tpmTemplate = "with-tpm"

// newHarness returns the simulator for the conformance cases.
func newHarness(t *testing.T, model pve.Model) conformance.Harness {
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

	addGPUs(&model, 0, 1, 1)

	s := pvetest.New(t, model)
	occupied := map[int]bool{}

	return conformance.Harness{
		Connect: func(tb conformance.TB, o hypervisor.Options) hypervisor.Connection {
			tb.Helper()

			p, err := proxmox.New(newConfig(s), o)
			if err != nil {
				tb.Fatal(err)
			}

			return p
		},
		Template: hypervisor.TemplateRef{Name: pve.DefaultTemplate},
		Shape:    newSpec(1).Shape,
		IDMin:    newConfig(s).IDMin,

		Device: deviceName, Devices: 2,
		TPMTemplate: hypervisor.TemplateRef{Name: tpmTemplate},
		Inspect:     func() conformance.State { return readState(s, occupied) },
		OnCall: func(f func(conformance.Boundary)) func() {
			return s.OnCall(func(c pve.Call) {
				f(conformance.Boundary{
					Before: c.Phase == pve.PhaseBefore, Write: c.Method != http.MethodGet, Call: c.Method + " " + c.Path,
				})
			})
		},
		PowerOff: s.PowerOff,
		OccupyID: func(_ conformance.TB, id int) {
			occupyID(t, s, id)

			occupied[id] = true
		},
		DeleteExternally: func(_ conformance.TB, id int) {
			s.DeleteVM(id)
		},
	}
}

// readState returns the contents of the simulator.
func readState(s *pve.Server, occupied map[int]bool) conformance.State {
	var (
		state   conformance.State
		foreign []pve.VMState
	)

	snap := s.Snapshot()
	for _, vm := range snap.VMs {
		if vm.Foreign || occupied[vm.VMID] {
			foreign = append(foreign, vm)

			if vm.TPM != "" {
				state.TemplateTPMs = append(state.TemplateTPMs, vm.TPM)
			}

			continue
		}

		var record proxmox.Record

		if raw, ok := getDescription(vm); ok {
			record, _ = proxmox.ParseRecord(raw)
		}

		var devices []string
		for _, address := range vm.Devices {
			devices = append(devices, vm.Node+"/"+address)
		}

		state.Machines = append(state.Machines, conformance.ObservedMachine{
			ID: vm.VMID, ClaimUID: record.MachineClaim.UID, OperatorUID: record.OperatorUID,
			Running: vm.Status == "running", Starts: vm.Starts, TPM: vm.TPM, Devices: devices,
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
