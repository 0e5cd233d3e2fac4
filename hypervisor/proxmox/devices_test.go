// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// deviceName is the resource mapping of the GPUs of addGPUs.
const deviceName = "gpu"

// addGPUs gives the nodes GPUs, by their number, and a mapping that the operator may use.
func addGPUs(m *pve.Model, perNode ...int) {
	mapping := pve.PCIMapping{ID: deviceName}
	m.Nodes = slices.Clone(m.Nodes)

	for i, count := range perNode {
		m.Nodes[i].PCI = nil

		for n := range count {
			address := fmt.Sprintf("0000:%02x:00.0", n+1)
			m.Nodes[i].PCI = append(m.Nodes[i].PCI, pve.PCIDevice{Address: address, ID: "10de:2235", IOMMUGroup: n})
			mapping.Map = append(mapping.Map, fmt.Sprintf("node=%s,path=%s,id=10de:2235,iommugroup=%d", m.Nodes[i].Name, address, n))
		}
	}

	m.PCIMappings = append(m.PCIMappings, mapping)
	grantMapping(m, deviceName)
}

func grantMapping(m *pve.Model, id string) {
	m.Roles = append(m.Roles, pve.Role{Name: "HyperFleetDevice", Privileges: []string{"Mapping.Use"}})
	for _, who := range []string{pve.DefaultUser, pve.DefaultTokenID} {
		m.ACL = append(m.ACL, pve.ACL{Path: "/mapping/pci/" + id, Principal: who, Role: "HyperFleetDevice"})
	}
}

func newDeviceSpec(n, count int) hypervisor.MachineSpec {
	spec := newSpec(n)
	spec.Shape.Devices = []hypervisor.Device{{Name: deviceName, Count: count, GPU: true}}

	return spec
}

// Machines are placed where devices are free, and the devices of machines that another process created count.
func TestMachinesArePlacedByDevice(t *testing.T) {
	t.Parallel()

	m := fastModel()
	addGPUs(&m, 0, 1, 2)
	s := pvetest.New(t, m)
	p := connect(t, s)

	_, first := create(t, p, newDeviceSpec(1, 2))
	_, second := create(t, p, newDeviceSpec(2, 1))

	if first.Node != "pve3" || second.Node != "pve2" {
		t.Errorf("the machines are on %s and %s, want pve3, which has two GPUs, and pve2", first.Node, second.Node)
	}

	for _, provider := range []hypervisor.Provider{p, connect(t, s)} {
		_, err := provider.Reserve(t.Context(), newDeviceSpec(3, 1))
		requireError(t, err, hypervisor.NoCapacity, "pve1 has 0 of 0 devices gpu free, pve2 has 0 of 1 devices gpu free, pve3 has 0 of 2")
	}

	remove(t, p, first)
	create(t, p, newDeviceSpec(3, 1))
}

// Of machines that are placed at the same time, each gets a device of its own.
func TestReservedDevicesCount(t *testing.T) {
	t.Parallel()

	m := fastModel()
	addGPUs(&m, 1)
	p := connect(t, pvetest.New(t, m))
	reserve(t, p, newDeviceSpec(1, 1))
	requireError(t, errorOf(p.Reserve(t.Context(), newDeviceSpec(2, 1))), hypervisor.NoCapacity, "pve1 has 0 of 1 devices gpu free")
}

// A standby machine has no device until it starts, and waits for one.
func TestStandbyMachinesWaitForDevices(t *testing.T) {
	t.Parallel()

	m := fastModel()
	addGPUs(&m, 1)
	s := pvetest.New(t, m)
	p := connect(t, s, func(c *hypervisor.Config, _ *hypervisor.Options) { c.Nodes = []string{"pve1"} })

	specs := []hypervisor.MachineSpec{newDeviceSpec(1, 1), newDeviceSpec(2, 1)}
	for i := range specs {
		specs[i].Standby = true
		_, specs[i] = create(t, p, specs[i])
		specs[i].Standby = false
	}

	create(t, p, specs[0])

	if startUntilSettled(t, p, specs[1]) {
		t.Error("two machines run with the same device")
	}

	remove(t, p, specs[0])
	made, _ := create(t, p, specs[1])

	if vm, _ := s.Snapshot().VM(made.ID); vm.Config["hostpci0"] != "mapping=gpu" || vm.Config["hostpci1"] != "" {
		t.Errorf("devices of the machine: %v", vm.Config)
	}
}

// The operator learns that a VM of others has a device when a machine cannot start. It then places machines elsewhere.
func TestDeviceOfAnotherVMIsAvoided(t *testing.T) {
	t.Parallel()

	m := fastModel()
	addGPUs(&m, 1, 1)
	m.VMs = append(slices.Clone(m.VMs), pve.VM{
		VMID: 150, Name: "workstation", Node: "pve1", Running: true, Config: map[string]string{"hostpci0": "mapping=gpu"},
	})
	s := pvetest.New(t, m)
	// The fast clock would end the exclusion of a minute before the last call.
	p := connect(t, s, func(_ *hypervisor.Config, o *hypervisor.Options) {
		o.Clock, o.TaskInterval, o.ListInterval = clock.RealClock{}, attemptInterval/2, attemptInterval/2
	})

	packed := newDeviceSpec(1, 1)
	packed.Strategy = hypervisor.Pack

	first := reserve(t, p, packed)
	if first.Node != "pve1" {
		t.Fatalf("the first machine is placed on %s, want pve1", first.Node)
	}

	var err error

	timing.WaitUntil(t, "the start fails", func() bool {
		_, err = p.Start(t.Context(), first, seed)

		return err != nil
	})
	requireError(t, err, hypervisor.NoCapacity, "PCI device '0000:01:00.0' already in use by VMID '150'")

	if _, second := create(t, p, newDeviceSpec(2, 1)); second.Node != "pve2" {
		t.Errorf("the second machine is on %s, want pve2", second.Node)
	}

	remove(t, p, first)
	requireError(t, errorOf(p.Reserve(t.Context(), newDeviceSpec(3, 1))), hypervisor.NoCapacity,
		"device gpu on node pve1 failed once and is excluded")
}

// A prepared machine that waits for an excluded device says so in a sentence about its node.
func TestStandbyMachineWithExcludedDevice(t *testing.T) {
	t.Parallel()

	m := fastModel()
	addGPUs(&m, 1)
	m.VMs = append(slices.Clone(m.VMs), pve.VM{
		VMID: 150, Name: "workstation", Node: "pve1", Running: true, Config: map[string]string{"hostpci0": "mapping=gpu"},
	})
	// The fast clock would end the exclusion of a minute before the last call.
	p := connect(t, pvetest.New(t, m), func(c *hypervisor.Config, o *hypervisor.Options) {
		c.Nodes = []string{"pve1"}
		o.Clock, o.TaskInterval, o.ListInterval = clock.RealClock{}, attemptInterval/2, attemptInterval/2
	})

	standby, first := newDeviceSpec(1, 1), newDeviceSpec(2, 1)
	standby.Standby = true
	_, standby = create(t, p, standby)
	standby.Standby = false

	var err error

	first = reserve(t, p, first)

	timing.WaitUntil(t, "the start of the first machine fails", func() bool {
		_, err = p.Start(t.Context(), first, seed)

		return err != nil
	})
	requireError(t, err, hypervisor.NoCapacity, "already in use by VMID '150'")
	remove(t, p, first)

	timing.WaitUntil(t, "the prepared machine waits", func() bool {
		_, err = p.Start(t.Context(), standby, seed)

		return err != nil
	})
	requireError(t, err, hypervisor.NoCapacity,
		"because node pve1 has an excluded device: device gpu on node pve1 failed once and is excluded until")
}

func TestDevicesOfTemplatesAreChecked(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		change func(*pve.Model)
		want   string
	}{
		"no mapping":   {func(m *pve.Model) { grantMapping(m, deviceName) }, "has no resource mapping gpu for PCI devices"},
		"no privilege": {func(m *pve.Model) { addGPUs(m, 1); m.ACL = m.ACL[:len(m.ACL)-2] }, "Mapping.Use on /mapping/pci/gpu"},
		"too few":      {func(m *pve.Model) { addGPUs(m, 1, 1) }, "no node with the template has 2 of device gpu"},
		"mediated":     {func(m *pve.Model) { addGPUs(m, 2); m.PCIMappings[0].MDev = true }, "is for mediated devices"},
		"enough":       {func(m *pve.Model) { addGPUs(m, 1, 2) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			spec := newDeviceSpec(1, 2)
			_, err := connectChanged(t, tc.change, nil).Resolve(t.Context(), spec.Template, spec.Shape)

			if tc.want != "" {
				requireError(t, err, hypervisor.Rejected, tc.want)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

// Devices take the options that the template leaves free. Devices of the template count.
func TestDeviceOptions(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		template, want map[string]string
	}{
		"plain":           {nil, map[string]string{"hostpci0": "mapping=gpu", "hostpci1": "mapping=gpu"}},
		"PCI Express":     {map[string]string{"machine": "q35"}, map[string]string{"hostpci0": "mapping=gpu,pcie=1", "hostpci1": "mapping=gpu,pcie=1"}},
		"one in template": {map[string]string{"hostpci1": "mapping=gpu,rombar=0"}, map[string]string{"hostpci0": "mapping=gpu", "hostpci1": "mapping=gpu,rombar=0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			m := fastModel()
			addGPUs(&m, 2)
			m.Templates = slices.Clone(m.Templates)
			m.Templates[0].Config = tc.template
			s := pvetest.New(t, m)
			made, _ := create(t, connect(t, s), newDeviceSpec(1, 2))
			vm, _ := s.Snapshot().VM(made.ID)
			got := map[string]string{}

			for _, slot := range []string{"hostpci0", "hostpci1", "hostpci2"} {
				if vm.Config[slot] != "" {
					got[slot] = vm.Config[slot]
				}
			}

			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
