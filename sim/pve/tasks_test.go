// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"fmt"
	"net/url"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// TestTaskLife checks the status of a task: running, and then stopped with an exit status and a log.
func TestTaskLife(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0))
	a := startCluster(t, func(m *pve.Model) { m.Delays.Clone = time.Minute }, pve.WithClock(clk))
	upid := fmt.Sprint(a.mustDo("POST", clonePath, formData{"newid": "1000"}))
	form := regexp.MustCompile(`^UPID:pve1:[0-9A-F]{8}:[0-9A-F]{8}:6553F100:qmclone:9001:hyperfleet@pve!operator:$`)
	if !form.MatchString(upid) {
		t.Errorf("UPID %s", upid)
	}
	path := "/nodes/pve1/tasks/" + url.PathEscape(upid)
	status := func() map[string]any { m, _ := a.mustDo("GET", path+"/status", nil).(map[string]any); return m }
	if st := status(); st["status"] != "running" || st["exitstatus"] != nil || st["user"] != "hyperfleet@pve" ||
		st["tokenid"] != "operator" || st["id"] != "9001" {
		t.Errorf("running: %v", st)
	}
	active, _ := a.mustDo("GET", "/nodes/pve1/tasks", formData{"source": "active"}).([]any)
	if len(active) != 1 {
		t.Errorf("active: %v", active)
	}
	timing.WaitUntil(t, "copying", func() bool { return clk.HasWaiters() })
	clk.Step(time.Minute)
	a.waitForTask(upid)
	if st := status(); st["status"] != "stopped" || st["exitstatus"] != "OK" {
		t.Errorf("stopped: %v", st)
	}
	log, _ := a.mustDo("GET", path+"/log", formData{"start": "0", "limit": "50"}).([]any)
	last, _ := log[len(log)-1].(map[string]any)
	if last["t"] != "TASK OK" || last["n"] != float64(len(log)) {
		t.Errorf("log: %v", log)
	}
	if got := a.do("GET", "/nodes/pve2/tasks/"+upid+"/status", nil); got.status != 400 {
		t.Errorf("request to another node: %d", got.status)
	}
}

// TestCloneLog checks the log of a clone.
func TestCloneLog(t *testing.T) {
	t.Parallel()
	a := startCluster(t, nil)
	for full, want := range map[string][]string{
		"0": {
			"creating a clone of VM 9001 with ID 1000",
			"create full clone of drive ide2 (local-lvm:vm-9001-cloudinit)",
			"allocated target volume 'local-lvm:vm-1000-cloudinit'",
			"create linked clone of drive scsi0 (local-lvm:base-9001-disk-0)",
			"TASK OK",
		},
		"1": {
			"creating a clone of VM 9001 with ID 1001",
			"create full clone of drive ide2 (local-lvm:vm-9001-cloudinit)",
			"allocated target volume 'local-lvm:vm-1001-cloudinit'",
			"create full clone of drive scsi0 (local-lvm:base-9001-disk-0)",
			"allocated target volume 'local-lvm:vm-1001-disk-0'",
			"transferred 0.0 B of 20.0 GiB (0.00%)",
			"transferred 20.0 GiB of 20.0 GiB (100.00%)",
			"TASK OK",
		},
	} {
		upid := fmt.Sprint(a.mustDo("POST", clonePath, formData{"newid": "100" + full, "full": full}))
		a.waitForTask(upid)
		var got []string
		rows, _ := a.mustDo("GET", "/nodes/pve1/tasks/"+upid+"/log", nil).([]any)
		for _, r := range rows {
			row, _ := r.(map[string]any)
			got = append(got, fmt.Sprint(row["t"]))
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("full=%s: %s", full, d)
		}
	}
}

// TestTasksOfTokens checks that /cluster/tasks shows a token none of its own tasks. A node's own list
// shows them, newest first, and running tasks as RUNNING with the token's full name.
func TestTasksOfTokens(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0))
	a := startCluster(t, func(m *pve.Model) {
		m.Users = append(m.Users, pve.User{ID: "u@pve", Password: "pw"})
		m.Tokens = append(m.Tokens, pve.Token{ID: "u@pve!t", Secret: "s", NoPrivSep: true},
			pve.Token{ID: "u@pve!other", Secret: "s", NoPrivSep: true})
		m.ACL = append(m.ACL, pve.ACL{Path: "/", Principal: "u@pve", Role: "PVEVMAdmin"},
			pve.ACL{Path: "/storage", Principal: "u@pve", Role: "PVEDatastoreAdmin"},
			pve.ACL{Path: "/sdn", Principal: "u@pve", Role: "PVESDNUser"})
	}, pve.WithClock(clk))
	u, other, user := a.withToken("u@pve!t", "s"), a.withToken("u@pve!other", "s"), a.logIn("u@pve", "pw")
	a.s.AddFault(pve.Fault{Kind: pve.FaultTaskError, Delay: time.Minute, VMID: 1001})
	first := fmt.Sprint(u.mustDo("POST", clonePath, formData{"newid": "1000"}))
	a.waitForTask(first)
	clk.Step(time.Second)
	second := fmt.Sprint(u.mustDo("POST", clonePath, formData{"newid": "1001"}))
	timing.WaitUntil(t, "second clone", clk.HasWaiters)
	list := func(caller *rawClient, path string, params formData) []any {
		t.Helper()
		got := caller.do("GET", path, params)
		rows, _ := got.data.([]any)
		if total, has := got.body["total"]; has != (path != "/cluster/tasks" && len(rows) > 0) || has && int(total.(float64)) < len(rows) {
			t.Errorf("%s: total %v of %d", path, total, len(rows))
		}
		return rows
	}
	for _, tc := range []struct {
		who    *rawClient
		path   string
		params formData
		want   []string
	}{
		{who: u, path: "/cluster/tasks"},
		{who: other, path: "/cluster/tasks"},
		{who: user, path: "/cluster/tasks", want: []string{second, first}},
		{who: u, path: "/nodes/pve1/tasks", want: []string{first}},
		{who: u, path: "/nodes/pve1/tasks", params: formData{"source": "active"}, want: []string{second}},
		{who: u, path: "/nodes/pve1/tasks", params: formData{"source": "all"}, want: []string{second, first}},
		{who: u, path: "/nodes/pve1/tasks", params: formData{"source": "all", "limit": "1"}, want: []string{second}},
		{who: u, path: "/nodes/pve1/tasks", params: formData{"source": "all", "start": "1"}, want: []string{first}},
		{who: u, path: "/nodes/pve1/tasks", params: formData{"source": "all", "since": "1700000001"}, want: []string{second}},
		{who: u, path: "/nodes/pve1/tasks", params: formData{"source": "all", "until": "1700000000"}, want: []string{first}},
		{who: u, path: "/nodes/pve1/tasks", params: formData{"source": "all", "typefilter": "qmstart"}},
		{who: u, path: "/nodes/pve1/tasks", params: formData{"source": "all", "vmid": "9001", "errors": "1"}, want: []string{second}},
		{who: u, path: "/nodes/pve1/tasks", params: formData{"statusfilter": "ok,warning"}, want: []string{first}},
		{who: u, path: "/nodes/pve2/tasks", params: formData{"source": "all"}},
		{who: other, path: "/nodes/pve1/tasks", params: formData{"source": "all"}},
		{who: user, path: "/nodes/pve1/tasks", params: formData{"source": "all"}, want: []string{first}},
	} {
		var got []string
		for _, r := range list(tc.who, tc.path, tc.params) {
			row, _ := r.(map[string]any)
			got = append(got, fmt.Sprint(row["upid"]))
			if row["upid"] == second && tc.who == u && (row["status"] != "RUNNING" || row["user"] != "u@pve!t") {
				t.Errorf("%s %v: running: %v", tc.path, tc.params, row)
			}
		}
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%s %v: %s", tc.path, tc.params, d)
		}
	}
	clk.Step(time.Minute)
	a.waitForTask(second)
}

// TestTasksOfOthers checks that the tasks of other users are visible only with Sys.Audit.
func TestTasksOfOthers(t *testing.T) {
	t.Parallel()
	a := startCluster(t, func(m *pve.Model) {
		m.Users = append(m.Users, pve.User{ID: "u@pve"})
		m.Tokens = append(m.Tokens, pve.Token{ID: "u@pve!t", Secret: "s", NoPrivSep: true})
	})
	root, u := a.asRoot(), a.withToken("u@pve!t", "s")
	upid := fmt.Sprint(root.mustDo("POST", clonePath, formData{"newid": "1000"}))
	a.waitForTask(upid)
	a.mustDo("GET", "/nodes/pve1/tasks/"+upid+"/status", nil) // has Sys.Audit on /nodes
	if got := u.do("GET", "/nodes/pve1/tasks/"+upid+"/status", nil); got.reason != "Permission check failed (/nodes/pve1, Sys.Audit)" {
		t.Errorf("status: %d %s", got.status, got.reason)
	}
	if got := a.do("DELETE", "/nodes/pve1/tasks/"+upid, nil); got.status != 403 {
		t.Errorf("stopped another user's task: %d", got.status)
	}
	for caller, want := range map[*rawClient]int{root: 1, a: 0, u: 0} {
		if l, _ := caller.mustDo("GET", "/cluster/tasks", nil).([]any); len(l) != want {
			t.Errorf("list: %v, want %d", l, want)
		}
	}
}

// TestWorkers checks that a node handles a limited number of calls at a time, and that further calls
// wait.
func TestWorkers(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Now())
	a := startCluster(t, func(m *pve.Model) { m.Limits.WorkersPerNode = 1; m.Delays.Agent = time.Hour }, pve.WithClock(clk))
	a.clone("1000", nil)
	a.mustRunTask("POST", powerPath+"start", nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { a.do("POST", "/nodes/pve1/qemu/1000/agent/ping", nil) })
	timing.WaitUntil(t, "first call", func() bool { return clk.Waiters() == 1 })
	got := make(chan response)
	go func() { got <- a.do("GET", "/nodes/pve1/qemu", nil) }()
	timing.WaitUntil(t, "second call", func() bool { return clk.Waiters() == 2 })
	a.mustDo("GET", "/nodes/pve2/qemu", nil) // other nodes have workers of their own
	clk.Step(3 * time.Second)
	if g := <-got; g.status != 200 {
		t.Errorf("after waiting: %d", g.status)
	}
}
