// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/cloudinit"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/vm"
)

// The machine's shape, the same for both images.
const (
	processors = 2
	memoryMiB  = 1024
	gib        = int64(1) << 30
	diskSize   = 4 * gib
)

// Images is where hack/vm-image/build.sh puts what it makes.
type Images struct{ Dir string }

// FindImages fails the test where the images are not made.
func FindImages(t testing.TB) Images {
	t.Helper()

	dir, err := filepath.Abs(filepath.Join(root, "bin", "vm"))
	if err != nil {
		t.Fatal(err)
	}

	images := Images{Dir: dir}

	for _, name := range []string{"vmlinuz", "untuned.initrd", "untuned.qcow2", "runner.initrd", "runner.cmdline", "runner.qcow2"} {
		if _, err := os.Stat(images.path(name)); err != nil {
			t.Fatalf("find machine images: %v: run make build and hack/vm-image/build.sh", err)
		}
	}

	return images
}

func (i Images) path(name string) string { return filepath.Join(i.Dir, name) }

// Logs is the folder of what machines wrote, emptied.
func (i Images) Logs(t testing.TB) string {
	t.Helper()

	logs := i.path("logs")
	if err := os.RemoveAll(logs); err != nil {
		t.Fatal(err)
	}

	if err := os.MkdirAll(logs, 0o755); err != nil {
		t.Fatal(err)
	}

	return logs
}

// Runner is how the simulated hypervisor boots the tuned image.
func (i Images) Runner(t testing.TB) pve.QEMU {
	t.Helper()

	arguments, err := os.ReadFile(i.path("runner.cmdline"))
	if err != nil {
		t.Fatal(err)
	}

	return pve.QEMU{
		Image: i.path("runner.qcow2"), Kernel: i.path("vmlinuz"), Initrd: i.path("runner.initrd"),
		Append: strings.TrimSpace(string(arguments)),
	}
}

var reRunCmd = regexp.MustCompile(`RUNCMD-REACHED`)

// untunedPatience is how long the untuned image may take, on a machine that is busy.
const untunedPatience = 10 * time.Minute

// BootUntuned boots the untuned image and says how long it took from power on until the
// user's first command ran, which is where a machine's service is started by default. Name
// is that of the log.
func (i Images) BootUntuned(t testing.TB, logs, name string) time.Duration {
	t.Helper()

	tools, err := vm.FindTools()
	if err != nil {
		t.Fatal(err)
	}

	dir := t.TempDir()
	disk, medium := filepath.Join(dir, "disk.qcow2"), filepath.Join(dir, "medium.iso")

	iso, err := cloudinit.ISO(map[string][]byte{
		cloudinit.FileMetaData: []byte("instance-id: untuned\nlocal-hostname: untuned\n"),
		cloudinit.FileUserData: []byte("#cloud-config\nruncmd:\n- [sh, -c, 'echo RUNCMD-REACHED >/dev/ttyS0']\n"),
	})
	if err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(medium, iso, 0o600); err != nil {
		t.Fatal(err)
	}

	if err := tools.Overlay(t.Context(), disk, i.path("untuned.qcow2"), "qcow2", diskSize); err != nil {
		t.Fatal(err)
	}

	log, err := os.Create(filepath.Join(logs, "untuned-"+name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close() //nolint:errcheck // a log

	console := &Console{}
	begun := time.Now()

	machine, err := vm.Start(t.Context(), tools, i.untuned(disk, medium), &tee{console, log})
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Stop()

	ctx, cancel := context.WithTimeout(t.Context(), untunedPatience)
	defer cancel()

	for {
		if line, ok := console.First(reRunCmd); ok {
			return line.At.Sub(begun)
		}

		select {
		case <-machine.Done():
			t.Fatalf("the untuned machine ended: %+v: see %s", machine.Exit(), log.Name())
		case <-ctx.Done():
			t.Fatalf("the untuned machine did not boot within %s: see %s", untunedPatience, log.Name())
		case <-time.After(lookEvery):
		}
	}
}

func (i Images) untuned(disk, medium string) *vm.Spec {
	return &vm.Spec{
		Name: "untuned", MemoryMiB: memoryMiB, Cores: processors, SCSI: "virtio-scsi-pci",
		Drives: []vm.Drive{
			{Slot: "scsi0", File: disk, Format: "qcow2"},
			{Slot: "ide2", File: medium, Format: "raw", CDROM: true},
		},
		NICs:   []vm.NIC{{Model: "virtio", MAC: "52:54:00:00:00:01"}},
		Kernel: i.path("vmlinuz"), Initrd: i.path("untuned.initrd"), Append: "root=/dev/sda console=ttyS0",
		Agent: true,
	}
}

// tee writes to both; the log's trouble is nobody's.
type tee struct {
	console *Console
	log     *os.File
}

func (t *tee) Write(p []byte) (int, error) {
	_, _ = t.log.Write(p)

	return t.console.Write(p)
}
