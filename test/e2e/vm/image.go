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
	"github.com/hyperfleet/hyperfleet/test/libvirt"
)

// The size of the machine, which is the same for both images.
const (
	processors = 2
	memoryMiB  = 1024
	gib        = int64(1) << 30
	diskSize   = 4 * gib
)

// Images is the directory with the images that hack/vm-image/build.sh builds.
type Images struct{ Dir string }

// FindImages returns the images. It fails the test if the images have not been built.
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

// CreateLogDir returns the directory for the test's console output. It deletes the logs of earlier runs.
func (i Images) CreateLogDir(t testing.TB) string {
	t.Helper()

	logs := i.path(filepath.Join("logs", t.Name()))
	if err := os.RemoveAll(logs); err != nil {
		t.Fatal(err)
	}

	if err := os.MkdirAll(logs, 0o755); err != nil {
		t.Fatal(err)
	}

	return logs
}

// append returns the kernel command line of the runner image, which is Debian with changes for a short boot.
func (i Images) append(t testing.TB) string {
	t.Helper()

	arguments, err := os.ReadFile(i.path("runner.cmdline"))
	if err != nil {
		t.Fatal(err)
	}

	return strings.TrimSpace(string(arguments))
}

// NewLibvirt returns the runner image for libvirt hosts.
func (i Images) NewLibvirt(t testing.TB) libvirt.Image {
	t.Helper()

	return libvirt.Image{
		Disk: i.path("runner.qcow2"), Kernel: i.path("vmlinuz"), Initrd: i.path("runner.initrd"), Append: i.append(t),
	}
}

// NewQEMU returns the QEMU configuration with which the simulated hypervisor boots the runner image.
func (i Images) NewQEMU(t testing.TB) pve.QEMU {
	t.Helper()

	return pve.QEMU{
		Image: i.path("runner.qcow2"), Kernel: i.path("vmlinuz"), Initrd: i.path("runner.initrd"), Append: i.append(t),
	}
}

var reRunCmd = regexp.MustCompile(`RUNCMD-REACHED`)

// untunedTimeout limits the boot of Debian without our changes. It allows for a busy host.
const untunedTimeout = 10 * time.Minute

// BootUntuned boots Debian without our changes, and returns the time from power-on until the first runcmd of the user
// data ran. That is the point at which a machine's service starts by default. name is part of the log's file
// name.
func (i Images) BootUntuned(t testing.TB, logs, name string) time.Duration {
	t.Helper()

	tools, err := vm.FindTools()
	if err != nil {
		t.Fatal(err)
	}

	dir := t.TempDir()
	disk, medium := filepath.Join(dir, "disk.qcow2"), filepath.Join(dir, "medium.iso")

	iso, err := cloudinit.BuildISO(map[string][]byte{
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
	startTime := time.Now()

	machine, err := vm.Start(t.Context(), tools, i.newUntunedSpec(disk, medium), &tee{console, log})
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Stop()

	ctx, cancel := context.WithTimeout(t.Context(), untunedTimeout)
	defer cancel()

	for {
		if line, ok := console.FindFirst(reRunCmd); ok {
			return line.Time.Sub(startTime)
		}

		select {
		case <-machine.Done():
			t.Fatalf("the untuned machine ended: %+v: see %s", machine.Exit(), log.Name())
		case <-ctx.Done():
			t.Fatalf("the untuned machine did not boot within %s: see %s", untunedTimeout, log.Name())
		case <-time.After(pollInterval):
		}
	}
}

func (i Images) newUntunedSpec(disk, medium string) *vm.Spec {
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

// tee writes to the console and to a log file. It ignores errors of the log file.
type tee struct {
	console *Console
	log     *os.File
}

func (t *tee) Write(p []byte) (int, error) {
	_, _ = t.log.Write(p)

	return t.console.Write(p)
}
