// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// findListedRow returns the row with the id from the listing of the whole cluster.
func findListedRow(a *rawClient, id string, keys ...string) map[string]any {
	a.t.Helper()
	rows, _ := a.mustDo("GET", "/cluster/resources", nil).([]any)
	for _, r := range rows {
		row, _ := r.(map[string]any)
		if row["id"] != id {
			continue
		}
		out := map[string]any{}
		for _, k := range keys {
			if v, ok := row[k]; ok {
				out[k] = v
			}
		}
		return out
	}
	a.t.Fatalf("no row %s", id)
	return nil
}

// TestUnhealthyNode checks over time what the listing shows for a hung or disconnected node, and how
// calls for the node fail.
func TestUnhealthyNode(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		kind          pve.FaultKind
		status        int
		reason, later string
		laterWait     time.Duration
	}{
		{kind: pve.FaultNodeHung, status: 596, reason: "Connection timed out", later: "Connection timed out",
			laterWait: 30 * time.Second},
		{kind: pve.FaultNodeCut, status: 595, reason: "Connection timed out", later: "No route to host",
			laterWait: 8 * time.Second},
	} {
		t.Run(string(tc.kind), func(t *testing.T) {
			t.Parallel()
			clk := clocktesting.NewFakeClock(time.Now())
			a := startCluster(t, nil, pve.WithClock(clk))
			root := a.asRoot()
			clk.Step(time.Second)
			remove := a.s.AddFault(pve.Fault{Kind: tc.kind, Node: "pve1"})
			node := func() map[string]any { return findListedRow(root, "node/pve1", "status", "cpu", "maxcpu", "level") }
			vm := func() map[string]any { return findListedRow(root, "qemu/100", "name", "status", "template", "maxcpu") }
			store := func() map[string]any { return findListedRow(root, "storage/pve1/local", "status", "disk") }
			last := map[string]any{"name": "accounting", "status": "running", "template": 0.0, "maxcpu": 1.0}
			check := func(when string, wantNode, wantVM, wantStore map[string]any) {
				t.Helper()
				if d := cmp.Diff([]any{wantNode, wantVM, wantStore}, []any{node(), vm(), store()}); d != "" {
					t.Errorf("%s: %s", when, d)
				}
			}
			fails := func(reason string, wait time.Duration) {
				t.Helper()
				got := make(chan response)
				go func() { got <- root.do("POST", "/nodes/pve1/qemu/100/status/stop", nil) }()
				timing.WaitUntil(t, "call", clk.HasWaiters)
				clk.Step(wait - time.Millisecond)
				select {
				case g := <-got:
					t.Errorf("response came too early: %d %s", g.status, g.reason)
				default:
				}
				clk.Step(time.Millisecond)
				if g := <-got; g.status != tc.status || g.reason != reason {
					t.Errorf("call: %d %s, want %d %s", g.status, g.reason, tc.status, reason)
				}
			}
			available := map[string]any{"status": "available", "disk": 0.0}
			check("at first", map[string]any{"status": "online", "cpu": 0.01, "maxcpu": 32.0, "level": ""}, last, available)
			clk.Step(20 * time.Second)
			check("after 20 s", map[string]any{"status": "offline", "maxcpu": 32.0, "level": ""}, last, available)
			fails(tc.reason, 30*time.Second)
			clk.Step(5 * time.Minute)
			check("after five minutes", map[string]any{"status": "offline"}, map[string]any{"status": "unknown"},
				map[string]any{"status": "unknown"})
			fails(tc.later, tc.laterWait)
			a.mustDo("GET", "/nodes/pve2/qemu", nil) // another node handles the calls
			remove()
			check("back", map[string]any{"status": "online", "cpu": 0.01, "maxcpu": 32.0, "level": ""}, last, available)
			a.mustDo("GET", "/nodes/pve1/qemu", nil)
		})
	}
}

// TestNoReports checks that a node without its status daemon works, but that the names of its VMs
// are unknown.
func TestNoReports(t *testing.T) {
	t.Parallel()
	a := startCluster(t, nil)
	root := a.asRoot()
	a.s.AddFault(pve.Fault{Kind: pve.FaultNoReports, Node: "pve1"})
	for id, want := range map[string]map[string]any{
		"qemu/100":           {"status": "unknown"},
		"qemu/9001":          {"status": "unknown"},
		"qemu/9002":          {"status": "stopped", "name": pve.DefaultTemplate, "template": 1.0},
		"node/pve1":          {"status": "unknown"},
		"storage/pve1/local": {"status": "unknown"},
	} {
		if d := cmp.Diff(want, findListedRow(root, id, "status", "name", "template", "disk", "maxcpu")); d != "" && id != "qemu/9002" {
			t.Errorf("%s: %s", id, d)
		}
	}
	a.clone("1000", nil)
	a.s.ClearFaults()
	if row := findListedRow(root, "qemu/1000", "name"); row["name"] != "vm-1000" {
		t.Errorf("after: %v", row)
	}
}

// TestNoQuorum checks that calls that write to the cluster file system fail while most nodes are
// isolated, and that other calls work.
func TestNoQuorum(t *testing.T) {
	t.Parallel()
	a := startCluster(t, func(m *pve.Model) { m.Outage = pve.Outage{} })
	root := a.asRoot()
	a.clone("1000", nil)
	a.s.SetNodeDown("pve2", true)
	a.clone("1001", nil) // two of three
	if row := findListedRow(root, "qemu/101", "status"); row["status"] != "unknown" {
		t.Errorf("a VM of a node that is down: %v", row)
	}
	a.s.SetNodeDown("pve3", true)
	for _, tc := range []struct{ method, path, reason string }{
		{"POST", clonePath, "cluster not ready - no quorum?"},
		{"POST", "/nodes/pve1/qemu/1000/status/start", "cluster not ready - no quorum?"},
		{"GET", "/nodes/pve2/qemu", "No route to host"},
	} {
		params := formData{}
		if tc.path == clonePath {
			params["newid"] = "1002"
		}
		if got := root.do(tc.method, tc.path, params); got.reason != tc.reason {
			t.Errorf("%s %s: %d %s", tc.method, tc.path, got.status, got.reason)
		}
	}
	root.mustDo("GET", "/nodes/pve1/qemu/1000/config", nil)
	a.s.SetNodeDown("pve2", false)
	a.clone("1003", nil)
}

// TestNodeLost checks that the listing omits a removed node and its VMs, and that calls for the node
// return "No route to host".
func TestNodeLost(t *testing.T) {
	t.Parallel()
	a := startCluster(t, func(m *pve.Model) { m.Outage = pve.Outage{} })
	root := a.asRoot()
	a.clone("1000", nil)
	a.s.AddFault(pve.Fault{Kind: pve.FaultNodeLost, Node: "pve1"})
	a.s.ClearFaults() // the node stays lost
	for _, path := range []string{"/nodes", "/cluster/resources", "/cluster/status"} {
		for _, row := range root.mustDo("GET", path, nil).([]any) {
			if r := row.(map[string]any); r["node"] == "pve1" || r["name"] == "pve1" {
				t.Errorf("%s has %v", path, r)
			}
		}
	}
	for _, tc := range []struct{ method, path, reason string }{
		{"GET", "/nodes/pve1/qemu/1000/config", "No route to host"},
		{"POST", "/nodes/pve2/qemu/9002/clone", "no such cluster node 'pve1'"},
	} {
		params := formData{}
		if tc.method == "POST" {
			params = formData{"newid": "1001", "target": "pve1"}
		}
		if got := root.do(tc.method, tc.path, params); got.reason != tc.reason {
			t.Errorf("%s %s: %d %s", tc.method, tc.path, got.status, got.reason)
		}
	}
	if made := a.s.Snapshot().CreatedVMs(); len(made) > 0 {
		t.Errorf("there are %v", made)
	}
}
