// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/vm/vmtest"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// qemuCluster is a cluster of one node whose VMs run under QEMU.
type qemuCluster struct {
	*rawClient

	dir string // the work directory
}

func newQEMUCluster(t *testing.T, end vmtest.Behavior, change func(*pve.Model)) *qemuCluster {
	t.Helper()
	vmtest.Tools(t)
	dir := t.TempDir()
	a := startCluster(t, func(m *pve.Model) {
		*m = m.WithNodes(1)
		m.Templates[0].Config = map[string]string{"memory": "16", "cores": "1"}
		m.Guest = pve.Guest{Kind: pve.GuestQEMU, WorkDir: dir, QEMU: pve.QEMU{Image: vmtest.Disk(t, end)}}
		if change != nil {
			change(m)
		}
	})
	return &qemuCluster{rawClient: a, dir: dir}
}

func vmPath(id int) string { return fmt.Sprintf("/nodes/pve1/qemu/%d", id) }

// getStatus returns one field of a VM's status.
func (l *qemuCluster) getStatus(id int, field string) any {
	l.t.Helper()
	m, _ := l.mustDo("GET", vmPath(id)+"/status/current", nil).(map[string]any)
	return m[field]
}

func (l *qemuCluster) startVM(id int) {
	l.t.Helper()
	l.mustRunTask("POST", vmPath(id)+"/status/start", nil)
}

func (l *qemuCluster) waitForStatus(id int, want string) {
	l.t.Helper()
	timing.WaitUntil(l.t, want, func() bool { return l.getStatus(id, "status") == want })
}

// waitForConsole waits until the text is in a VM's console.
func (l *qemuCluster) waitForConsole(id int, text string) {
	l.t.Helper()
	timing.WaitUntil(l.t, "console: "+text, func() bool { return strings.Contains(l.s.Console(id), text) })
}

// findPID returns the QEMU process of a running VM.
func (l *qemuCluster) findPID(id int) int {
	l.t.Helper()
	pid, _ := l.getStatus(id, "pid").(float64)
	if pid == 0 {
		l.t.Fatalf("VM %d has no process", id)
	}
	return int(pid)
}

// listFiles returns the files below the work directory.
func (l *qemuCluster) listFiles(pattern string) []string {
	l.t.Helper()
	found, err := filepath.Glob(filepath.Join(l.dir, "pvesim-*", pattern))
	if err != nil {
		l.t.Fatal(err)
	}
	return found
}

// findBackingFile returns the base of the only image of a VM.
func (l *qemuCluster) findBackingFile(id int) string {
	l.t.Helper()
	found := l.listFiles(fmt.Sprintf("disks/vm-%d-disk-0.*", id))
	if len(found) != 1 {
		l.t.Fatalf("images of VM %d: %v", id, found)
	}
	info, err := vmtest.Tools(l.t).Info(l.t.Context(), found[0])
	if err != nil {
		l.t.Fatal(err)
	}
	return filepath.Base(info.Backing)
}

// TestQEMUClones boots linked and full clones, which share no data that they write. Then it deletes
// the template and the clones.
func TestQEMUClones(t *testing.T) {
	l := newQEMUCluster(t, vmtest.PowersOff, nil)
	l.clone("200", nil)
	l.clone("201", nil)
	l.clone("202", formData{"full": "1"})
	for id, want := range map[int]string{200: "base-9001-disk-0.1.qcow2", 202: "."} {
		if got := l.findBackingFile(id); got != want {
			t.Errorf("VM %d is on %q, want %q", id, got, want)
		}
	}
	for _, boot := range []struct {
		id   int
		runs string
	}{{200, "runs=00000001"}, {200, "runs=00000002"}, {201, "runs=00000001"}, {202, "runs=00000001"}} {
		l.startVM(boot.id)
		l.waitForConsole(boot.id, boot.runs)
		l.waitForStatus(boot.id, "stopped")
		l.waitForConsole(boot.id, "QEMU ended: guest-shutdown")
	}
	if text := l.s.Console(200); !strings.Contains(text, "cd=cidata") || !strings.Contains(text, "disk=00000800") {
		t.Errorf("console %q", text)
	}
	if raw, err := os.ReadFile(filepath.Join(l.dir, "serial", "vm-200.log")); err != nil || string(raw) != l.s.Console(200) {
		t.Errorf("serial log %q %v", raw, err)
	}

	l.asRoot().mustRunTask("DELETE", vmPath(9001), nil) // thin snapshots survive the deletion of their base
	l.startVM(201)
	l.waitForConsole(201, "runs=00000002")
	l.waitForStatus(201, "stopped")
	for _, id := range []int{200, 201, 202} {
		l.mustRunTask("DELETE", vmPath(id), nil)
	}
	if left := append(l.listFiles("disks/*"), l.listFiles("media/*")...); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestQEMUPower shuts VMs down, forces their end, stops them and kills them.
func TestQEMUPower(t *testing.T) {
	l := newQEMUCluster(t, vmtest.AwaitsButton, nil)
	l.clone("200", nil)
	l.startVM(200)
	l.waitForConsole(200, "READY")
	if exit := l.runTask("POST", vmPath(200)+"/status/start", nil); exit != "VM 200 already running" {
		t.Errorf("second start: %s", exit)
	}
	l.mustRunTask("POST", vmPath(200)+"/status/shutdown", nil)
	l.waitForConsole(200, "BUTTON")
	if got := l.getStatus(200, "status"); got != "stopped" {
		t.Errorf("after shutdown: %v", got)
	}

	l.startVM(200)
	pid := l.findPID(200)
	l.mustRunTask("POST", vmPath(200)+"/status/stop", nil)
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d after stop: %v", pid, err)
	}

	l.startVM(200)
	if err := syscall.Kill(l.findPID(200), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	l.waitForStatus(200, "stopped")
	l.waitForConsole(200, "QEMU ended unexpectedly")

	l.startVM(200) // the image is intact
	pid = l.findPID(200)
	if err := l.s.Close(); err != nil {
		t.Error(err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d after close: %v", pid, err)
	}
	if left := l.listFiles("*"); len(left) > 0 {
		t.Errorf("left after close: %v", left)
	}
}

// TestQEMUIgnoresShutdown checks a guest that ignores the request to power off.
func TestQEMUIgnoresShutdown(t *testing.T) {
	l := newQEMUCluster(t, vmtest.Hangs, nil)
	l.clone("200", nil)
	l.startVM(200)
	l.waitForConsole(200, "runs")
	if exit := l.runTask("POST", vmPath(200)+"/status/shutdown", formData{"timeout": "1"}); exit != "VM quit/powerdown failed - got timeout" {
		t.Errorf("shutdown: %s", exit)
	}
	if got := l.do("POST", vmPath(200)+"/agent/ping", nil); got.status != 500 || !strings.Contains(fmt.Sprint(got.body), "QEMU guest agent is not running") {
		t.Errorf("ping: %+v", got)
	}
	l.mustRunTask("POST", vmPath(200)+"/status/shutdown", formData{"timeout": "0", "forceStop": "1"})
	if got := l.getStatus(200, "status"); got != "stopped" {
		t.Errorf("after forced shutdown: %v", got)
	}
}

// TestQEMUChanges grows the disk of a stopped and of a running VM, and ejects and inserts a medium.
// The guest reports at each reboot.
func TestQEMUChanges(t *testing.T) {
	l := newQEMUCluster(t, vmtest.Reboots, func(m *pve.Model) { m.Templates[0].DiskSlot, m.Templates[0].CloudInitSlot = "virtio0", "scsi1" })
	l.clone("200", nil)
	l.mustRunTask("PUT", vmPath(200)+"/resize", formData{"disk": "virtio0", "size": "2M"})
	volid, err := l.s.AddISO("pve1", "local", "other.iso", newPlainISO(t, map[string]string{"meta-data": "x"}))
	if err != nil {
		t.Fatal(err)
	}
	l.startVM(200)
	l.waitForConsole(200, "disk=00001000")
	l.waitForConsole(200, "cd=cidata")
	if files := l.listFiles("media/*"); len(files) > 0 {
		t.Errorf("the medium is in a file: %v", files)
	}
	l.mustRunTask("PUT", vmPath(200)+"/resize", formData{"disk": "virtio0", "size": "+2M"})
	l.waitForConsole(200, "disk=00002000")

	blank := func() bool {
		text := l.s.Console(200)
		boots := strings.Split(text, "BOOT")
		return len(boots) > 2 && !strings.Contains(boots[len(boots)-2], "cd=")
	}
	l.mustDo("PUT", vmPath(200)+"/config", formData{"scsi1": "none,media=cdrom"})
	timing.WaitUntil(t, "an empty drive", blank)
	l.mustDo("PUT", vmPath(200)+"/config", formData{"scsi1": volid + ",media=cdrom"})
	timing.WaitUntil(t, "a full drive", func() bool { return !blank() })
	if files := l.listFiles("media/*"); len(files) > 0 {
		t.Errorf("the medium is in a file: %v", files)
	}
	l.mustRunTask("POST", vmPath(200)+"/status/stop", nil)
	l.mustRunTask("DELETE", vmPath(200), nil)
	if left := l.listFiles("disks/vm-*"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestQEMUFails makes the start of QEMU fail, and then starts it.
func TestQEMUFails(t *testing.T) {
	l := newQEMUCluster(t, vmtest.PowersOff, nil)
	l.clone("200", nil)
	image := l.listFiles("disks/vm-200-*")[0]
	if err := os.Rename(image, image+".away"); err != nil {
		t.Fatal(err)
	}
	upid, _ := l.mustDo("POST", vmPath(200)+"/status/start", nil).(string)
	if exit := l.waitForTask(upid); exit != "start failed: QEMU exited with code 1" {
		t.Errorf("start: %s", exit)
	}
	log := fmt.Sprint(l.mustDo("GET", "/nodes/pve1/tasks/"+upid+"/log", nil))
	if !strings.Contains(log, "kvm: -drive") || !strings.Contains(log, "Could not open") {
		t.Errorf("task log %s", log)
	}
	if got := l.getStatus(200, "status"); got != "stopped" {
		t.Errorf("after a failed start: %v", got)
	}
	if err := os.Rename(image+".away", image); err != nil {
		t.Fatal(err)
	}
	l.startVM(200)
	l.waitForConsole(200, "BOOT")
	l.waitForStatus(200, "stopped")

	l.mustDo("PUT", vmPath(200)+"/config", formData{"bios": "ovmf"})
	if exit := l.runTask("POST", vmPath(200)+"/status/start", nil); !strings.Contains(exit, "bios 'ovmf'") {
		t.Errorf("ovmf: %s", exit)
	}
}

// TestQEMUCrashFault ends a VM with a fault of the model.
func TestQEMUCrashFault(t *testing.T) {
	l := newQEMUCluster(t, vmtest.Hangs, func(m *pve.Model) { m.Faults = []pve.Fault{{Kind: pve.FaultVMCrash}} })
	l.clone("200", nil)
	l.startVM(200)
	l.waitForStatus(200, "stopped")
	if got := l.s.Snapshot().Crashes; got != 1 {
		t.Errorf("%d crashes", got)
	}
}

// TestQEMUForeign starts a VM of the model, whose disk is empty, and types on its terminal.
func TestQEMUForeign(t *testing.T) {
	l := newQEMUCluster(t, vmtest.PowersOff, nil)
	r := &qemuCluster{rawClient: l.asRoot(), dir: l.dir}
	if _, ok := l.s.Terminal(101); ok {
		t.Error("a stopped VM has a terminal")
	}
	r.mustRunTask("PUT", vmPath(101)+"/resize", formData{"disk": "scsi0", "size": "+1G"})
	r.startVM(101)
	if files := r.listFiles("disks/vm-101-*"); len(files) != 1 {
		t.Errorf("images %v", files)
	}
	term, ok := l.s.Terminal(101)
	if !ok {
		t.Fatal("no terminal")
	}
	if _, err := term.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	r.mustRunTask("POST", vmPath(101)+"/status/stop", nil)
}

// TestQEMUModels checks the errors of invalid models, which are found before a VM starts.
func TestQEMUModels(t *testing.T) {
	for _, tc := range []struct {
		name string
		qemu pve.QEMU
		want string
	}{
		{"no such image", pve.QEMU{Image: "/does/not/exist"}, "/does/not/exist"},
		{"no such kernel", pve.QEMU{Kernel: "/does/not/exist"}, "/does/not/exist"},
		{"no such accelerator", pve.QEMU{Accel: "warp"}, "use tcg or kvm"},
		{"initrd alone", pve.QEMU{Initrd: os.DevNull}, "require a kernel"},
		{"not an image", pve.QEMU{Image: t.TempDir()}, "read image"},
	} {
		m := pve.DefaultModel()
		m.Guest = pve.Guest{Kind: pve.GuestQEMU, QEMU: tc.qemu}
		if _, err := pve.New(m); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %s", tc.name, err, tc.want)
		}
	}
	t.Setenv("PATH", "")
	m := pve.DefaultModel()
	m.Guest.Kind = pve.GuestQEMU
	if _, err := pve.New(m); err == nil || !strings.Contains(err.Error(), "apt-get install qemu-system-x86") {
		t.Errorf("without QEMU: %v", err)
	}
}
