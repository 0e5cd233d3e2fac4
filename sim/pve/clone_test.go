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
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

const clonePath = "/nodes/pve1/qemu/9001/clone"

func TestCloneRules(t *testing.T) {
	t.Parallel()
	local := func(*pve.Model) {}
	shared := func(m *pve.Model) { *m = m.WithSharedStorage() }
	for _, tc := range []struct {
		reason string
		model  func(*pve.Model)
		source string
		params formData
		status int
		want   string // reason of the response, or exit of the task
	}{
		{"a template is cloned linked", local, "9001", formData{"newid": "1000"}, 200, "OK"},
		{"full clone to a storage", local, "9001", formData{"newid": "1000", "full": "1", "storage": "local-lvm"}, 200, "OK"},
		{"storage with a linked clone", local, "9001", formData{"newid": "1000", "storage": "local-lvm"}, 500,
			"parameter 'storage' not allowed for linked clones"},
		{"format with a linked clone", local, "9001", formData{"newid": "1000", "format": "raw"}, 500,
			"parameter 'format' not allowed for linked clones"},
		{"target with local disks", local, "9001", formData{"newid": "1000", "target": "pve2"}, 500,
			"can't clone VM to node 'pve2' (VM uses local storage)"},
		{"target with shared disks", shared, "9001", formData{"newid": "1000", "target": "pve2"}, 200, "OK"},
		{"target is the same node", local, "9001", formData{"newid": "1000", "target": "pve1"}, 200, "OK"},
		{"unknown target", shared, "9001", formData{"newid": "1000", "target": "nope"}, 500, "no such cluster node 'nope'"},
		{"linked clone of a plain vm", local, "100", formData{"newid": "1000", "full": "0"}, 500,
			"Linked clone feature is not supported for 'local-lvm:vm-100-disk-0' (scsi0)"},
		{"plain vm is cloned full", local, "100", formData{"newid": "1000"}, 200, "OK"},
		{"unknown pool", local, "9001", formData{"newid": "1000", "pool": "nope"}, 403, "Permission check failed (pool 'nope' does not exist)"},
		{"unknown storage", local, "9001", formData{"newid": "1000", "full": "1", "storage": "nope"}, 500, "storage 'nope' does not exist"},
		{"storage without images", local, "9001", formData{"newid": "1000", "full": "1", "storage": "local"}, 400,
			"Parameter verification failed."},
		{"bad name", local, "9001", formData{"newid": "1000", "name": "a_b"}, 400, "Parameter verification failed."},
		{"snapshot", local, "9001", formData{"newid": "1000", "snapname": "s1"}, 500, "snapshot 's1' does not exist"},
		{"id in use on this node", local, "9001", formData{"newid": "100"}, 500, "unable to create VM 100: config file already exists"},
		{"id in use on another node", local, "9001", formData{"newid": "101"}, 200,
			"close (rename) atomic file '/etc/pve/nodes/pve1/qemu-server/101.conf' failed: File exists"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			t.Parallel()
			a := startCluster(t, tc.model).asRoot()
			got := a.do("POST", "/nodes/pve1/qemu/"+tc.source+"/clone", tc.params)
			text := got.reason
			if got.status == 200 {
				text = a.waitForTask(got.data)
			}
			if got.status != tc.status || text != tc.want {
				t.Errorf("got %d %q (%v), want %d %q", got.status, text, got.body, tc.status, tc.want)
			}
			if tc.want != "OK" && len(a.s.Snapshot().CreatedVMs()) != 0 {
				t.Error("left something behind")
			}
		})
	}
}

// TestCloneCopies checks which options come from the call, which from the template, and which are
// new.
func TestCloneCopies(t *testing.T) {
	t.Parallel()
	a := startCluster(t, func(m *pve.Model) {
		m.Templates[0].Config = map[string]string{"tags": "golden;os", "onboot": "1", "description": "the template\n"}
	})
	a.clone("1000", formData{"description": `{"managedBy":"x"}`})
	a.clone("1001", formData{"name": ""})
	src, one, two := a.getConfig("9001"), a.getConfig("1000"), a.getConfig("1001")
	if one["description"] != `{"managedBy":"x"}` || two["description"] != "the template" {
		t.Errorf("descriptions %q %q", one["description"], two["description"])
	}
	if one["name"] != "vm-1000" || two["name"] != "Copy-of-VM-"+pve.DefaultTemplate {
		t.Errorf("names %v %v", one["name"], two["name"])
	}
	if one["tags"] != "golden;os" || one["onboot"] != 1.0 || one["template"] != nil || one["lock"] != nil {
		t.Errorf("inherited: %v", one)
	}
	for _, k := range []string{"net0", "smbios1", "vmgenid", "scsi0", "ide2", "digest"} {
		if one[k] == nil || one[k] == src[k] || one[k] == two[k] {
			t.Errorf("%s is not its own: %v %v %v", k, src[k], one[k], two[k])
		}
	}
	if one["scsi0"] != "local-lvm:vm-1000-disk-0,size=20G" || one["ide2"] != "local-lvm:vm-1000-cloudinit,media=cdrom,size=4M" {
		t.Errorf("drives %v %v", one["scsi0"], one["ide2"])
	}
}

// TestCloneStages checks the stages of a clone: a locked stub, then name and description, and the
// pool last.
func TestCloneStages(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Now())
	a := startCluster(t, func(m *pve.Model) {
		m.Delays.Clone = time.Minute
		m.Templates[0].NoCloudInit = true // otherwise the configuration is written with that drive, which comes first
	}, pve.WithClock(clk))
	upid := a.mustDo("POST", clonePath, formData{"newid": "1000", "name": "runner", "pool": "ci", "description": "d"})
	timing.WaitUntil(t, "copying", func() bool { return clk.HasWaiters() })
	want := map[string]any{"lock": "clone", "description": " qmclone temporary file", "digest": a.getConfig("1000")["digest"]}
	if d := cmp.Diff(want, a.getConfig("1000")); d != "" {
		t.Errorf("half-way: %s", d)
	}
	row := a.findRow(1000)
	if row["lock"] != "clone" || row["pool"] != nil || row["name"] != "VM 1000" {
		t.Errorf("row half-way: %v", row)
	}
	for _, c := range []struct{ method, path string }{
		{"PUT", "/nodes/pve1/qemu/1000/config"}, {"POST", "/nodes/pve1/qemu/1000/config"},
	} {
		if got := a.do(c.method, c.path, formData{"cores": "1"}); got.reason != "VM is locked (clone)" {
			t.Errorf("%s half-way: %d %s", c.method, got.status, got.reason)
		}
	}
	if got := a.do("DELETE", "/nodes/pve1/tasks/"+fmt.Sprint(upid), nil); got.status != 200 {
		t.Errorf("stop task: %v", got)
	}
	if exit := a.waitForTask(upid); exit != "clone failed: interrupted by signal" {
		t.Errorf("exit %q", exit)
	}
	if left := a.s.Snapshot().CreatedVMs(); len(left) != 0 {
		t.Errorf("left over: %v", left)
	}
}

// TestCloneIntoPool checks that a caller whose privileges come from the pool does not see a clone
// until the clone is complete. A caller that sees the clone does not see its name before the next
// broadcast.
func TestCloneIntoPool(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Now())
	a := startCluster(t, func(m *pve.Model) {
		m.Delays.Clone, m.StatusLag = time.Minute, 10*time.Minute
		m.Users = append(m.Users, pve.User{ID: "u@pve"})
		m.Tokens = append(m.Tokens, pve.Token{ID: "u@pve!t", Secret: "s", NoPrivSep: true})
		m.ACL = append(m.ACL, pve.ACL{Path: "/pool/ci", Principal: "u@pve", Role: "PVEVMAdmin"},
			pve.ACL{Path: "/vms/9001", Principal: "u@pve", Role: "PVETemplateUser"},
			pve.ACL{Path: "/storage", Principal: "u@pve", Role: "PVEDatastoreUser"},
			pve.ACL{Path: "/sdn", Principal: "u@pve", Role: "PVESDNUser"})
	}, pve.WithClock(clk))
	u := a.withToken("u@pve!t", "s")
	upid := u.mustDo("POST", clonePath, formData{"newid": "1000", "name": "runner", "pool": "ci"})
	timing.WaitUntil(t, "copying", clk.HasWaiters)
	if got := u.do("GET", "/nodes/pve1/qemu/1000/config", nil); got.reason != "Permission check failed (/vms/1000, VM.Audit)" {
		t.Errorf("config half-way: %d %s", got.status, got.reason)
	}
	if row := u.findRow(1000); row != nil {
		t.Errorf("row half-way: %v", row)
	}
	want := map[string]any{
		"id": "qemu/1000", "type": "qemu", "vmid": 1000.0, "node": "pve1", "status": "unknown", "lock": "clone",
	}
	if d := cmp.Diff(want, a.findRow(1000)); d != "" {
		t.Errorf("row before the broadcast: %s", d)
	}
	if got := u.do("POST", clonePath, formData{"newid": "1000", "pool": "ci"}); got.status != 500 ||
		got.reason != "unable to create VM 1000: config file already exists" {
		t.Errorf("a second time: %d %s", got.status, got.reason)
	}
	clk.Step(time.Minute)
	if exit := a.waitForTask(upid); exit != "OK" {
		t.Fatal(exit)
	}
	if c, _ := u.mustDo("GET", "/nodes/pve1/qemu/1000/config", nil).(map[string]any); c["name"] != "runner" {
		t.Errorf("config: %v", c)
	}
	if row := a.findRow(1000); row["pool"] != "ci" {
		t.Errorf("row in the pool: %v", row)
	}
	if row := u.findRow(1000); row["pool"] != nil { // without Pool.Audit
		t.Errorf("row in the pool, for its user: %v", row)
	}
	a.mustRunTask("DELETE", "/nodes/pve1/qemu/1000", nil)
	if pool, _ := a.mustDo("GET", "/pools/ci", nil).(map[string]any); fmt.Sprint(pool["members"]) != "[]" {
		t.Errorf("members after the deletion: %v", pool)
	}
}

// TestCloneStagesCloudInit checks that the configuration is complete, except for the other drives,
// when the first drive exists. The VM is still locked.
func TestCloneStagesCloudInit(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Now())
	a := startCluster(t, func(m *pve.Model) { m.Delays.Clone = time.Minute }, pve.WithClock(clk))
	upid := a.mustDo("POST", clonePath, formData{"newid": "1000", "name": "runner", "description": "d"})
	timing.WaitUntil(t, "copying", func() bool { return clk.HasWaiters() })
	c := a.getConfig("1000")
	if c["lock"] != "clone" || c["name"] != "runner" || c["description"] != "d" || c["scsi0"] != nil || c["ide2"] == nil {
		t.Errorf("half-way: %v", c)
	}
	clk.Step(time.Minute)
	if exit := a.waitForTask(upid); exit != "OK" {
		t.Error(exit)
	}
	if c := a.getConfig("1000"); c["lock"] != nil || c["scsi0"] == nil {
		t.Errorf("done: %v", c)
	}
}

// findRow returns the row of a VM in the listing that the caller sees, or nil.
func (a *rawClient) findRow(vmid float64) map[string]any {
	a.t.Helper()
	rows, _ := a.mustDo("GET", "/cluster/resources", formData{"type": "vm"}).([]any)
	for _, r := range rows {
		if m, ok := r.(map[string]any); ok && m["vmid"] == vmid {
			return m
		}
	}
	return nil
}

// TestParallelClones checks that a storage creates two clones at a time. Further clones wait for the
// storage's lock and fail after ten seconds.
func TestParallelClones(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		reason string
		change func(*pve.Model)
		text   string
	}{
		{"local storage", func(*pve.Model) {},
			"clone failed: can't lock file '/var/lock/pve-manager/pve-storage-local-lvm' - got timeout"},
		{"shared storage", func(m *pve.Model) { *m = m.WithSharedStorage() },
			"clone failed: cfs-lock 'storage-ceph' error: got lock request timeout"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			t.Parallel()
			clk := clocktesting.NewFakeClock(time.Now())
			a := startCluster(t, func(m *pve.Model) { tc.change(m); m.Delays.Clone = 25 * time.Second }, pve.WithClock(clk))
			var tasks []any
			for i := range 3 {
				tasks = append(tasks, a.mustDo("POST", clonePath, formData{"newid": strconv.Itoa(1000 + i)}))
				timing.WaitUntil(t, "wait of clone", func() bool { return clk.Waiters() == i+1 })
			}
			clk.Step(10 * time.Second)
			if exit := a.waitForTask(tasks[2]); exit != tc.text {
				t.Errorf("third: %q", exit)
			}
			fourth := a.mustDo("POST", clonePath, formData{"newid": "1003"})
			timing.WaitUntil(t, "wait of fourth", func() bool { return clk.Waiters() == 3 })
			clk.Step(9 * time.Second)
			clk.Step(6 * time.Second)
			for _, u := range tasks[:2] {
				if exit := a.waitForTask(u); exit != "OK" {
					t.Errorf("within the limit: %q", exit)
				}
			}
			if exit := a.waitForTask(fourth); exit != tc.text {
				t.Errorf("fourth: %q", exit)
			}
			fifth := a.mustDo("POST", clonePath, formData{"newid": "1004"})
			timing.WaitUntil(t, "wait of fifth", func() bool { return clk.HasWaiters() })
			clk.Step(25 * time.Second)
			if exit := a.waitForTask(fifth); exit != "OK" {
				t.Errorf("fifth: %q", exit)
			}
		})
	}
}

// TestBaseInUse checks that most storages keep a base while it has linked clones. LVM-thin does not
// track linked clones.
func TestBaseInUse(t *testing.T) {
	t.Parallel()
	shared := startCluster(t, func(m *pve.Model) { *m = m.WithSharedStorage() }).asRoot()
	shared.clone("1000", nil)
	if v := shared.getConfig("1000")["scsi0"]; v != "ceph:base-9001-disk-0/vm-1000-disk-0,size=20G" {
		t.Errorf("linked clone %v", v)
	}
	exit := shared.runTask("DELETE", "/nodes/pve1/qemu/9001", nil)
	if exit != "base volume 'ceph:base-9001-disk-0' is still in use by linked cloned" {
		t.Errorf("shared: %q", exit)
	}
	shared.mustRunTask("DELETE", "/nodes/pve1/qemu/1000", nil)
	shared.mustRunTask("DELETE", "/nodes/pve1/qemu/9001", nil)
	thin := startCluster(t, nil).asRoot()
	thin.clone("1000", nil)
	thin.mustRunTask("DELETE", "/nodes/pve1/qemu/9001", nil)
}

// TestListingLag checks that the data of the cluster file system is current, and that the data of
// the broadcasts is up to ten seconds old. A reused id can still have the name of the previous VM.
func TestListingLag(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Now())
	a := startCluster(t, func(m *pve.Model) { m.StatusLag = 10 * time.Second }, pve.WithClock(clk))
	row := func() map[string]any { return a.findRow(1000) }
	clk.Step(3 * time.Second)
	a.clone("1000", nil)
	a.mustDo("PUT", "/nodes/pve1/qemu/1000/config", formData{"tags": "mine"})
	if r := row(); r["status"] != "unknown" || r["name"] != nil || r["tags"] != "mine" || r["node"] != "pve1" {
		t.Errorf("before the broadcast: %v", r)
	}
	clk.Step(7 * time.Second)
	if r := row(); r["status"] != "stopped" || r["name"] != "vm-1000" {
		t.Errorf("after the broadcast: %v", r)
	}
	a.mustRunTask("POST", "/nodes/pve1/qemu/1000/status/start", nil)
	if r := row(); r["status"] != "stopped" {
		t.Errorf("started, not broadcast: %v", r)
	}
	now, _ := a.mustDo("GET", "/nodes/pve1/qemu/1000/status/current", nil).(map[string]any)
	if now["status"] != "running" {
		t.Errorf("status/current lags: %v", now)
	}
	clk.Step(10 * time.Second)
	if r := row(); r["status"] != "running" {
		t.Errorf("started and broadcast: %v", r)
	}
	remove := a.s.AddFault(pve.Fault{Kind: pve.FaultStale})
	if r := row(); r["status"] != "stopped" {
		t.Errorf("stale listing: %v", r)
	}
	remove()
	a.mustRunTask("POST", "/nodes/pve1/qemu/1000/status/stop", nil)
	a.mustRunTask("DELETE", "/nodes/pve1/qemu/1000", nil)
	if r := row(); r != nil {
		t.Errorf("destroyed VM is listed: %v", r)
	}
	a.clone("1000", formData{"name": "second"})
	if r := row(); r["name"] != "vm-1000" || r["tags"] != nil {
		t.Errorf("reused id: %v", r)
	}
}

// TestTwoConfigLocks checks that a call that waits longer than ten seconds for a VM's lock fails
// with the text of Proxmox VE.
func TestTwoConfigLocks(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Now())
	a := startCluster(t, func(m *pve.Model) { m.Delays.Config = time.Minute }, pve.WithClock(clk))
	a.clone("1000", nil)
	slow := a.mustDo("POST", "/nodes/pve1/qemu/1000/config", formData{"cores": "1"})
	timing.WaitUntil(t, "holder", func() bool { return clk.HasWaiters() })
	start := a.mustDo("POST", "/nodes/pve1/qemu/1000/status/start", nil)
	got := make(chan response)
	go func() { got <- a.do("PUT", "/nodes/pve1/qemu/1000/config", formData{"cores": "3"}) }()
	timing.WaitUntil(t, "waiters", func() bool { return clk.Waiters() == 3 })
	clk.Step(10 * time.Second)
	const text = "can't lock file '/var/lock/qemu-server/lock-1000.conf' - got timeout"
	if g := <-got; g.status != 500 || g.reason != text {
		t.Errorf("call: %d %s", g.status, g.reason)
	}
	if exit := a.waitForTask(start); exit != text {
		t.Errorf("task: %s", exit)
	}
	clk.Step(time.Minute)
	if exit := a.waitForTask(slow); exit != "OK" {
		t.Errorf("holder: %s", exit)
	}
}

// TestStorageRunsFull fills a storage without a fault.
func TestStorageRunsFull(t *testing.T) {
	t.Parallel()
	a := startCluster(t, func(m *pve.Model) { m.Storages[1].Size = 40 << 30 })
	exit := a.runTask("POST", clonePath, formData{"newid": "1000", "full": "1"})
	if !strings.HasPrefix(exit, "clone failed: lvcreate") {
		t.Errorf("exit %q", exit)
	}
	if left := a.s.Snapshot().CreatedVMs(); len(left) != 0 {
		t.Errorf("left over: %v", left)
	}
}
