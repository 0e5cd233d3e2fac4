// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

const powerPath = "/nodes/pve1/qemu/1000/status/"

func TestPowerRules(t *testing.T) {
	t.Parallel()
	a := startCluster(t, func(m *pve.Model) { m.Nodes[0].Memory = 4 << 30 })
	a.clone("1000", nil)
	a.clone("1001", nil)
	run := func(path, want string) {
		t.Helper()
		if exit := a.asRoot().runTask("POST", path, nil); exit != want {
			t.Errorf("%s: %q, want %q", path, exit, want)
		}
	}
	run("/nodes/pve1/qemu/9001/status/start", "you can't start a vm if it's a template")
	run("/nodes/pve1/qemu/777/status/start", "Configuration file 'nodes/pve1/qemu-server/777.conf' does not exist")
	run(powerPath+"stop", "OK")     // of a stopped VM
	run(powerPath+"shutdown", "OK") // too
	run(powerPath+"start", "OK")
	run(powerPath+"start", "VM 1000 already running")
	run("/nodes/pve1/qemu/1001/status/start", "start failed: QEMU exited with code 1") // 1 + 2 + 2 GiB of 4
	a.s.SetLock(1000, "backup")
	run(powerPath+"stop", "VM is locked (backup)")
	a.s.SetLock(1000, "")
	run(powerPath+"stop", "OK")
	run("/nodes/pve1/qemu/1001/status/start", "OK")
	a.s.SetLock(1000, "clone")
	if exit := a.runTask("DELETE", "/nodes/pve1/qemu/1000", nil); exit != "VM is locked (clone)" {
		t.Errorf("destroy of a locked VM: %q", exit)
	}
}

// TestISOInUse checks that an ISO in the drive of a VM can be deleted, as in Proxmox VE. The VM
// continues to run, but it does not start again.
func TestISOInUse(t *testing.T) {
	t.Parallel()
	a := startCluster(t, nil)
	a.clone("1000", nil)
	a.waitForTask(a.upload("pve1", "local", "iso", "a b.iso", []byte("x")).data)
	a.mustDo("PUT", confPath, formData{"ide2": "local:iso/a_b.iso,media=cdrom"})
	a.mustRunTask("POST", powerPath+"start", nil)
	a.mustRunTask("DELETE", "/nodes/pve1/storage/local/content/local:iso%2Fa_b.iso", nil)
	if v, _ := a.s.Snapshot().VM(1000); v.Status != "running" {
		t.Error("the VM was stopped")
	}
	a.mustRunTask("POST", powerPath+"stop", nil)
	if exit := a.runTask("POST", powerPath+"start", nil); exit != "volume 'local:iso/a_b.iso' does not exist" {
		t.Errorf("start: %q", exit)
	}
	// Deleting a missing volume succeeds.
	if got := a.mustDo("DELETE", "/nodes/pve1/storage/local/content/local:iso/a_b.iso", formData{"delay": "5"}); got != nil {
		t.Errorf("second deletion: %v", got)
	}
	if got := a.do("DELETE", "/nodes/pve1/storage/local/content/ceph:iso/a_b.iso", nil); got.status != 400 {
		t.Errorf("volume of another storage: %d %s", got.status, got.reason)
	}
}

func TestUploadRules(t *testing.T) {
	t.Parallel()
	a := startCluster(t, func(m *pve.Model) { m.Storages[0].Size = 100 })
	for _, tc := range []struct {
		reason, storage, content, name, data string
		status                               int
		want                                 string
	}{
		{"an image", "local", "iso", "a.iso", "x", 200, "OK"},
		{"again, overwriting", "local", "iso", "a.iso", "y", 200, "OK"},
		{"a wrong extension", "local", "iso", "a.txt", "x", 400, "Parameter verification failed."},
		{"a snippet", "local", "snippets", "a.yaml", "x", 400, "Parameter verification failed."},
		{"content that the storage does not support", "local", "import", "a.qcow2", "x", 500,
			"storage 'local' does not support 'import' content"},
		{"too big", "local", "iso", "b.iso", strings.Repeat("x", 200), 200,
			"import failed: cp: error writing '/var/lib/vz/template/iso/b.iso': No space left on device"},
		{"no permission", "local-lvm", "iso", "a.iso", "x", 403,
			"Permission check failed (/storage/local-lvm, Datastore.AllocateTemplate)"},
	} {
		got := a.upload("pve2", tc.storage, tc.content, tc.name, []byte(tc.data))
		text := got.reason
		if got.status == 200 {
			text = a.waitForTask(got.data)
			if !strings.HasPrefix(fmt.Sprint(got.data), "UPID:pve1:") {
				t.Errorf("%s: the task runs on the node that received the call, not in %v", tc.reason, got.data)
			}
		}
		if got.status != tc.status || text != tc.want {
			t.Errorf("%s: %d %s, want %d %s", tc.reason, got.status, text, tc.status, tc.want)
		}
	}
	if got := string(a.s.VolumeData("pve2", "local:iso/a.iso")); got != "y" {
		t.Errorf("content %q", got)
	}
	if a.s.VolumeData("pve1", "local:iso/a.iso") != nil {
		t.Error("a local storage shows up on another node")
	}
	if got := a.asRoot().upload("pve2", "local-lvm", "iso", "a.iso", nil); got.reason != "can't upload to storage type 'lvmthin'" {
		t.Errorf("upload to thin pool: %s", got.reason)
	}
}

func TestShutdown(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		reason string
		deaf   bool
		params formData
		step   time.Duration
		exit   string
		status string
	}{
		{"the guest follows", false, nil, 20 * time.Second, "OK", "stopped"},
		{"the guest is too slow", false, formData{"timeout": "5"}, 5 * time.Second, "VM quit/powerdown failed - got timeout", "running"},
		{"the guest is deaf", true, nil, time.Minute, "VM quit/powerdown failed - got timeout", "running"},
		{"the guest is deaf, force", true, formData{"forceStop": "1", "timeout": "30"}, 30 * time.Second, "OK", "stopped"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			t.Parallel()
			clk := clocktesting.NewFakeClock(time.Now())
			a := startCluster(t, func(m *pve.Model) {
				m.Delays.Shutdown = 20 * time.Second
				m.Guest.IgnoreShutdown = tc.deaf
			}, pve.WithClock(clk))
			a.clone("1000", nil)
			a.mustRunTask("POST", powerPath+"start", nil)
			upid := a.mustDo("POST", powerPath+"shutdown", tc.params)
			timing.WaitUntil(t, "waiting", func() bool { return clk.HasWaiters() })
			clk.Step(tc.step)
			if exit := a.waitForTask(upid); exit != tc.exit {
				t.Errorf("exit %q", exit)
			}
			if v, _ := a.s.Snapshot().VM(1000); v.Status != tc.status {
				t.Errorf("status %s", v.Status)
			}
		})
	}
}

// TestOverruleShutdown checks that a stop can end the shutdown that holds the lock.
func TestOverruleShutdown(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Now())
	a := startCluster(t, func(m *pve.Model) { m.Guest.IgnoreShutdown = true }, pve.WithClock(clk))
	a.clone("1000", nil)
	a.mustRunTask("POST", powerPath+"start", nil)
	first := a.mustDo("POST", powerPath+"shutdown", nil)
	timing.WaitUntil(t, "waiting", func() bool { return clk.HasWaiters() })
	a.mustRunTask("POST", powerPath+"stop", formData{"overrule-shutdown": "1"})
	if exit := a.waitForTask(first); exit == "OK" {
		t.Errorf("shutdown: %q", exit)
	}
}

// TestScriptGuest checks a guest that boots, runs for a time and powers off. Its agent responds
// after a delay.
func TestScriptGuest(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Now())
	a := startCluster(t, func(m *pve.Model) {
		m.Delays.Boot, m.Delays.Agent = 5*time.Second, 10*time.Second
		m.Guest = pve.Guest{Kind: pve.GuestScript, StayUp: time.Minute}
	}, pve.WithClock(clk))
	a.clone("1000", nil)
	a.mustRunTask("POST", powerPath+"start", nil)
	timing.WaitUntil(t, "boot", func() bool { return clk.HasWaiters() })
	got := make(chan response)
	go func() { got <- a.do("GET", "/nodes/pve1/qemu/1000/agent/network-get-interfaces", nil) }()
	timing.WaitUntil(t, "agent call", func() bool { return clk.Waiters() == 2 })
	clk.Step(3 * time.Second) // the call blocks that long
	if g := <-got; g.status != 500 || g.reason != "QEMU guest agent is not running" {
		t.Errorf("agent early: %d %s", g.status, g.reason)
	}
	clk.Step(2 * time.Second)
	timing.WaitUntil(t, "booted", func() bool { return strings.Contains(a.s.Console(1000), "booted") && clk.HasWaiters() })
	clk.Step(10 * time.Second)
	data := fmt.Sprint(a.mustDo("GET", "/nodes/pve1/qemu/1000/agent/network-get-interfaces", nil))
	if !strings.Contains(data, "10.0.3.232") { // 1000 is 3*256+232
		t.Errorf("interfaces %s", data)
	}
	clk.Step(50 * time.Second)
	a.waitForPowerOff()
}

// TestGuestFunction checks a guest that is a function of the test.
func TestGuestFunction(t *testing.T) {
	t.Parallel()
	done := make(chan struct{})
	a := startCluster(t, func(m *pve.Model) {
		m.Guest.Script = func(g pve.GuestVM) {
			g.Log("user data: %s", g.Drive["user-data"])
			<-done
		}
	})
	a.clone("1000", nil)
	iso := buildISO(t, "cidata", map[string]string{"user-data": "hello"})
	if _, err := a.s.AddISO("pve1", "local", "a.iso", iso); err != nil {
		t.Fatal(err)
	}
	a.mustDo("PUT", confPath, formData{"ide2": "local:iso/a.iso,media=cdrom"})
	a.mustRunTask("POST", powerPath+"start", nil)
	timing.WaitUntil(t, "guest", func() bool { return strings.Contains(a.s.Console(1000), "user data: hello") })
	close(done)
	a.waitForPowerOff()
}

// TestMigrated checks that a migrated VM is found only on its new node.
func TestMigrated(t *testing.T) {
	t.Parallel()
	a := startCluster(t, nil)
	a.clone("1000", nil)
	a.s.Migrate(1000, "pve3")
	if got := a.do("GET", confPath, nil); got.status != 500 {
		t.Errorf("old node: %d", got.status)
	}
	a.mustRunTask("POST", "/nodes/pve3/qemu/1000/status/start", nil)
	if r := a.findRow(1000); r["node"] != "pve3" {
		t.Errorf("row %v", r)
	}
}
