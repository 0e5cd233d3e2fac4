// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// TestLoadModel checks that a file replaces the fields that it sets, and that the others keep their
// defaults.
func TestLoadModel(t *testing.T) {
	t.Parallel()
	m, err := pve.LoadModel("testdata/model.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if m.Delays.Clone != 90*time.Second || len(m.Nodes) != 1 || len(m.VMs) != 0 || len(m.Tokens) != 1 || m.Seed != 1 {
		t.Errorf("model %+v", m)
	}
	m.Delays = pve.Delays{}
	a := newRawClient(t, pvetest.New(t, m)).asRoot()
	a.mustRunTask("POST", "/nodes/lab/qemu/9000/clone", formData{"newid": "100"})
	c, _ := a.mustDo("GET", "/nodes/lab/qemu/100/config", nil).(map[string]any)
	if c["scsi0"] != "tank:9000/base-9000-disk-0.qcow2/100/vm-100-disk-0.qcow2,size=8G" || c["memory"] != "4096" {
		t.Errorf("config %v", c)
	}
	if v := fmt.Sprint(a.mustDo("GET", "/version", nil)); !strings.Contains(v, "release:8.4 ") {
		t.Errorf("version %s", v)
	}
}

func TestBadModels(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ yaml, want string }{
		{"nodes: []", "at least one"},
		{"nodes: [{name: a}, {name: a}]", "used twice"},
		{"colour: red", "colour"},
		{"delays: {clone: soon}", "invalid duration"},
		{"templates: [{name: t, vmid: 900, storage: nope}]", "unknown storage"},
		{"vms: [{vmid: 100, name: x, node: nope}]", "unknown node"},
		{"guest: {kind: exec}", "requires a program"},
		{"guest: {kind: x}", "unknown kind"},
		{"faults: [{kind: nope}]", "unknown kind"},
		{"faults: [{kind: slow, path: '['}]", "syntax error"},
		{"faults: [{kind: slow, probability: 2}]", "between 0 and 1"},
		{"a: b: c", "yaml"},
	} {
		if _, err := pve.ParseModel([]byte(tc.yaml)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %s", tc.yaml, err, tc.want)
		}
	}
	m := pve.DefaultModel()
	m.VMs = append(m.VMs, pve.VM{VMID: 9001, Name: "clash", Node: "pve1"})
	if _, err := pve.New(m); err == nil {
		t.Error("two machines with one id")
	}
}

// TestManyNodes checks that each node has its template, and that the token can clone all of them.
func TestManyNodes(t *testing.T) {
	t.Parallel()
	a := startCluster(t, func(m *pve.Model) { *m = m.WithNodes(5) })
	for i := 1; i <= 5; i++ {
		a.mustRunTask("POST", fmt.Sprintf("/nodes/pve%d/qemu/%d/clone", i, 9000+i), formData{"newid": strconv.Itoa(1000 + i)})
	}
	var nodes []string
	for _, v := range a.s.Snapshot().CreatedVMs() {
		nodes = append(nodes, v.Node)
	}
	if d := cmp.Diff([]string{"pve1", "pve2", "pve3", "pve4", "pve5"}, nodes); d != "" {
		t.Error(d)
	}
}

// TestLeastPrivileges checks that the default token has no more privileges than it needs.
func TestLeastPrivileges(t *testing.T) {
	t.Parallel()
	a := startCluster(t, nil)
	for _, tc := range []struct {
		method, path string
		params       formData
	}{
		{"PUT", "/nodes/pve1/qemu/9001/config", formData{"cores": "1"}},
		{"DELETE", "/nodes/pve1/qemu/9001", nil},
		{"POST", "/nodes/pve1/qemu/9001/status/start", nil},
		{"POST", "/nodes/pve1/qemu/100/clone", formData{"newid": "1000"}},
		{"GET", "/cluster/status", nil},
	} {
		if got := a.do(tc.method, tc.path, tc.params); got.status != 403 {
			t.Errorf("%s %s: %d %s", tc.method, tc.path, got.status, got.reason)
		}
	}
}

// TestVersion8 checks the older privilege for the guest agent.
func TestVersion8(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{"8.4.1": "VM.Monitor", "9.0.3": "VM.GuestAgent.Audit"} {
		a := startCluster(t, func(m *pve.Model) { m.Version = version })
		a.clone("1000", nil)
		perms := fmt.Sprint(a.mustDo("GET", "/access/permissions", formData{"path": "/vms/1000"}))
		if !strings.Contains(perms, want) || strings.Contains(perms, "VM.Monitor") && strings.Contains(perms, "GuestAgent") {
			t.Errorf("%s: %s", version, perms)
		}
		if got := a.do("POST", "/nodes/pve1/qemu/1000/agent/ping", nil); got.reason != "VM 1000 is not running" {
			t.Errorf("%s: %d %s", version, got.status, got.reason)
		}
	}
}
