// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kdomanski/iso9660"

	"github.com/hyperfleet/hyperfleet/sim/pve/vm"
	"github.com/hyperfleet/hyperfleet/sim/pve/vm/vmtest"
)

// console records the output of a guest and wakes waiting readers.
type console struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{}
}

func newConsole() *console { return &console{more: make(chan struct{}, 1)} }

func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case c.more <- struct{}{}:
	default:
	}
	return c.text.Write(p)
}

func (c *console) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

// waitFor waits for a text after the output that has been read before.
func (c *console) waitFor(t *testing.T, text string, after int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for !strings.Contains(c.String()[after:], text) {
		select {
		case <-c.more:
		case <-ctx.Done():
			t.Fatalf("the guest did not print %q:\n%s", text, c)
		}
	}
}

// testTimeout is the timeout on a busy machine.
const testTimeout = time.Minute

// newSpec returns a small machine with a guest on its disk.
func newSpec(t *testing.T, end vmtest.Behavior) *vm.Spec {
	t.Helper()
	return &vm.Spec{
		Name: "guest, of a test", MemoryMiB: 16, SCSI: "virtio-scsi-single",
		Drives: []vm.Drive{{Slot: "scsi0", File: vmtest.Disk(t, end), Format: "raw", BootIndex: 1}},
	}
}

func startVM(t *testing.T, s *vm.Spec) (*vm.VM, *console) {
	t.Helper()
	out := newConsole()
	v, err := vm.Start(t.Context(), vmtest.Tools(t), s, out)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Stop)
	return v, out
}

// waitForExit waits until a machine has ended.
func waitForExit(t *testing.T, v *vm.VM) vm.Exit {
	t.Helper()
	select {
	case <-v.Done():
		return v.Exit()
	case <-time.After(testTimeout):
		t.Fatal("the machine did not end")
		return vm.Exit{}
	}
}

// createISO writes an image with a label.
func createISO(t *testing.T, label string) string {
	t.Helper()
	w, err := iso9660.NewWriter()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Cleanup() }()
	if err := w.AddFile(strings.NewReader("x"), "meta-data"); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "cd.iso")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.WriteTo(f, label), f.Close()); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestDrives checks what a guest reports about each bus.
func TestDrives(t *testing.T) {
	for _, tc := range []struct {
		name, disk, cd, scsi string
		q35                  bool
	}{
		{name: "the default of Proxmox VE", disk: "scsi0", cd: "ide2", scsi: "virtio-scsi-single"},
		{name: "one controller for all", disk: "scsi1", cd: "scsi3", scsi: "virtio-scsi-pci"},
		{name: "virtio and sata", disk: "virtio0", cd: "sata5"},
		{name: "ide alone", disk: "ide0", cd: "ide1"},
		{name: "a newer chipset", disk: "virtio2", cd: "ide2", q35: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSpec(t, vmtest.PowersOff)
			s.SCSI, s.Q35 = tc.scsi, tc.q35
			s.Drives[0].Slot = tc.disk
			s.Drives = append(s.Drives, vm.Drive{Slot: tc.cd, File: createISO(t, "cidata"), Format: "raw", CDROM: true})
			s.NICs = []vm.NIC{{Model: "virtio", MAC: "BC:24:11:00:00:01"}, {Model: "e1000", MAC: "BC:24:11:00:00:02", Down: true}}
			v, out := startVM(t, s)
			if got := waitForExit(t, v); got != (vm.Exit{Reason: "guest-shutdown"}) {
				t.Errorf("exit %+v", got)
			}
			for _, want := range []string{"BOOT", "disk=00000800", "runs=00000001", "cd=cidata"} {
				if !strings.Contains(out.String(), want) {
					t.Errorf("console has no %s: %q", want, out)
				}
			}
		})
	}
}

// TestPower presses the power button of guests that react to it and of one that ignores it.
func TestPower(t *testing.T) {
	v, out := startVM(t, newSpec(t, vmtest.AwaitsButton))
	out.waitFor(t, "READY", 0)
	if err := v.PowerButton(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := waitForExit(t, v); got.Reason != "guest-shutdown" || !strings.Contains(out.String(), "BUTTON") {
		t.Errorf("exit %+v, console %q", got, out)
	}
	if err := v.PowerButton(t.Context()); err == nil {
		t.Error("the power button of a machine that has ended returned no error")
	}

	v, out = startVM(t, newSpec(t, vmtest.Hangs))
	out.waitFor(t, "runs", 0)
	if err := v.PowerButton(t.Context()); err != nil {
		t.Fatal(err)
	}
	v.Stop()
	if got := waitForExit(t, v); got.Reason != "host-qmp-quit" {
		t.Errorf("exit %+v", got)
	}

	v, _ = startVM(t, newSpec(t, vmtest.Hangs))
	v.Kill()
	if got := waitForExit(t, v); got.Code != -1 || got.Reason != "" {
		t.Errorf("exit %+v", got)
	}
	if err := syscall.Kill(v.PID(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d: %v", v.PID(), err)
	}
	v.Stop() // a second stop, when the machine has ended

	s := newSpec(t, vmtest.Reboots)
	s.NoReboot = true
	v, _ = startVM(t, s)
	if got := waitForExit(t, v); got.Reason != "guest-reset" {
		t.Errorf("exit %+v", got)
	}
}

func TestStartErrors(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*vm.Spec)
		want   string
		code   int
	}{
		{"no such image", func(s *vm.Spec) { s.Drives[0].File = "/does/not/exist" }, "Could not open", 1},
		{"no such card", func(s *vm.Spec) { s.NICs = []vm.NIC{{Model: "nope", MAC: "BC:24:11:00:00:01"}} }, "not a valid device", 1},
		{"no such kernel", func(s *vm.Spec) { s.Kernel = "/does/not/exist" }, "could not open kernel", 1},
		{"no such accelerator", func(s *vm.Spec) { s.Accel = "warp" }, "use tcg or kvm", 0},
		{"no such controller", func(s *vm.Spec) { s.SCSI = "nope" }, "use one of virtio-scsi-pci", 0},
		{"no such slot", func(s *vm.Spec) { s.Drives[0].Slot = "floppy0" }, "unknown slot: use scsi, virtio", 0},
	} {
		s := newSpec(t, vmtest.PowersOff)
		tc.change(s)
		v, err := vm.Start(t.Context(), vmtest.Tools(t), s, newConsole())
		if err == nil {
			v.Stop()
		}
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %s", tc.name, err, tc.want)
		}
		var exit *vm.StartError
		if errors.As(err, &exit) != (tc.code != 0) || exit != nil && exit.Code != tc.code {
			t.Errorf("%s: %#v, want code %d", tc.name, err, tc.code)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := vm.Start(ctx, vmtest.Tools(t), newSpec(t, vmtest.Hangs), newConsole()); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := vm.Start(t.Context(), vm.Tools{QEMU: "/does/not/exist"}, newSpec(t, vmtest.Hangs), newConsole()); err == nil {
		t.Error("a program that is not there was started")
	}
}

func TestFindTools(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := vm.FindTools()
	for _, want := range []string{"apt-get install qemu-system-x86", "apt-get install qemu-utils"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
