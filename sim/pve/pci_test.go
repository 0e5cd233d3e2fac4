// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/sim/pve"
)

// addDevices gives node pve1 two GPUs and pve2 one, and maps them as gpu.
func addDevices(m *pve.Model) {
	gpu := func(node, address string) string {
		return "node=" + node + ",path=" + address + ",id=10de:2235,iommugroup=14"
	}
	for i, addresses := range [][]string{{"0000:01:00.0", "0000:02:00.0"}, {"0000:01:00.0"}} {
		for _, address := range addresses {
			m.Nodes[i].PCI = append(m.Nodes[i].PCI, pve.PCIDevice{Address: address, ID: "10de:2235", IOMMUGroup: 14})
		}
	}
	m.PCIMappings = []pve.PCIMapping{
		{ID: "gpu", Map: []string{gpu("pve1", "0000:01:00.0"), gpu("pve1", "0000:02:00.0"), gpu("pve2", "0000:01:00.0")}},
		{ID: "first", Map: []string{gpu("pve1", "0000:01:00.0")}},
		{ID: "changed", Map: []string{"node=pve1,path=0000:01:00.0,id=10de:9999,iommugroup=14"}},
		{ID: "pulled", Map: []string{"node=pve1,path=0000:07:00.0,id=10de:2235,iommugroup=14"}},
		{ID: "elsewhere", Map: []string{gpu("pve2", "0000:01:00.0")}},
	}
	for _, who := range []string{pve.DefaultUser, pve.DefaultTokenID} {
		m.ACL = append(m.ACL, pve.ACL{Path: "/mapping/pci/gpu", Principal: who, Role: "PVEMappingUser"})
	}
}

func TestDevicesOfMachines(t *testing.T) {
	t.Parallel()
	a := startCluster(t, addDevices)
	root := a.asRoot()
	for id, option := range map[int]string{
		1000: "mapping=gpu", 1001: "mapping=gpu", 1002: "mapping=gpu", 1003: "mapping=first", 1004: "mapping=changed",
		1005: "mapping=pulled", 1006: "mapping=elsewhere", 1007: "mapping=gpu,pcie=1", 1008: "mapping=first,mdev=nvidia-47",
	} {
		root.clone(strconv.Itoa(id), nil)
		root.mustDo("PUT", fmt.Sprintf("/nodes/pve1/qemu/%d/config", id), formData{"hostpci0": option})
	}
	for _, tc := range []struct {
		reason string
		id     int
		want   string
	}{
		{"the first of two", 1000, "OK"},
		{"the second of two", 1001, "OK"},
		{"none is left", 1002, "could not find a free device for 'hostpci0'"},
		{"the only one is used", 1003, "PCI device '0000:01:00.0' already in use by VMID '1000'"},
		{"another card", 1004, "PCI device mapping invalid (hardware probably changed): 'id' does not match for 'changed' (10de:2235 != 10de:9999)"},
		{"no card", 1005, "PCI device mapping invalid (hardware probably changed): pci device '0000:07:00.0' not found"},
		{"not on this node", 1006, "PCI device mapping not found for 'elsewhere'"},
		{"PCI Express without q35", 1007, "q35 machine model is not enabled"},
		{"a mediated device is shared", 1008, "OK"},
	} {
		exit := root.runTask("POST", fmt.Sprintf("/nodes/pve1/qemu/%d/status/start", tc.id), nil)
		if !strings.HasPrefix(exit, tc.want) {
			t.Errorf("%s: start ends with %q, want %q", tc.reason, exit, tc.want)
		}
	}
	root.runTask("POST", "/nodes/pve1/qemu/1000/status/stop", nil)
	if exit := root.runTask("POST", "/nodes/pve1/qemu/1002/status/start", nil); exit != "OK" {
		t.Errorf("a device that a stopped VM had: %s", exit)
	}
	for _, vm := range a.s.Snapshot().VMs {
		if vm.VMID == 1002 && !cmp.Equal(vm.Devices, []string{"0000:01:00.0"}) {
			t.Errorf("devices of VM 1002: %v", vm.Devices)
		}
	}
}

func TestMappingPrivileges(t *testing.T) {
	t.Parallel()
	a := startCluster(t, addDevices)
	a.clone("1000", nil)
	const config = "/nodes/pve1/qemu/1000/config"
	a.mustDo("PUT", config, formData{"hostpci0": "mapping=gpu"})
	if got := a.do("PUT", config, formData{"hostpci1": "mapping=first"}); got.status != 403 ||
		got.reason != "Permission check failed (/mapping/pci/first, Mapping.Use)" {
		t.Errorf("a mapping without privilege: %d %s", got.status, got.reason)
	}
	a.asRoot().mustDo("PUT", "/nodes/pve1/qemu/9001/config", formData{"hostpci0": "mapping=first"})
	if got := a.do("POST", clonePath, formData{"newid": "1001"}); got.status != 403 ||
		got.reason != "Permission check failed (/mapping/pci/first, Mapping.Use)" {
		t.Errorf("a clone with a device without privilege: %d %s", got.status, got.reason)
	}
	list, _ := a.mustDo("GET", "/cluster/mapping/pci", nil).([]any)
	if len(list) != 1 {
		t.Errorf("mappings that the token may use: %v", list)
	}
	if got := a.do("POST", "/cluster/mapping/pci", formData{"id": "mine", "map": "node=pve1,path=0000:01:00.0,id=10de:2235"}); got.status != 403 {
		t.Errorf("a new mapping without privilege: %d %s", got.status, got.reason)
	}
}

func TestMappingsAreChanged(t *testing.T) {
	t.Parallel()
	root := startCluster(t, addDevices).asRoot()
	const base = "/cluster/mapping/pci"
	entry := "node=pve1,path=0000:01:00.0,id=10de:2235,iommugroup=14"
	root.mustDo("POST", base, formData{"id": "card", "map": entry, "description": "a card"})
	if got := root.do("POST", base, formData{"id": "card", "map": entry}); !strings.Contains(got.reason, "pci ID 'card' already defined") {
		t.Errorf("a second mapping: %d %s", got.status, got.reason)
	}
	if got := root.do("POST", base, formData{"id": "bad", "map": "node=pve1,path=01:00.0,id=10de:2235"}); got.status != 400 {
		t.Errorf("a path without domain: %d %s", got.status, got.reason)
	}
	root.mustDo("PUT", base+"/card", formData{"map": strings.Replace(entry, "2235", "2236", 1), "mdev": "1", "delete": "description"})
	got, _ := root.mustDo("GET", base+"/card", nil).(map[string]any)
	delete(got, "digest")
	want := map[string]any{"type": "pci", "mdev": 1.0, "map": []any{strings.Replace(entry, "2235", "2236", 1)}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	checks := map[string]string{}
	list, _ := root.mustDo("GET", base, formData{"check-node": "pve1"}).([]any)
	for _, row := range list {
		m, _ := row.(map[string]any)
		checks[fmt.Sprint(m["id"])] = fmt.Sprint(m["checks"])
	}
	if !strings.Contains(checks["card"], "'id' does not match") || !strings.Contains(checks["elsewhere"], "No mapping for node pve1.") ||
		checks["gpu"] != "[]" {
		t.Errorf("checks on pve1: %v", checks)
	}
	root.mustDo("DELETE", base+"/card", nil)
	if got := root.do("GET", base+"/card", nil); got.status != 500 || got.reason != "mapping 'card' not found" {
		t.Errorf("a deleted mapping: %d %s", got.status, got.reason)
	}
}
