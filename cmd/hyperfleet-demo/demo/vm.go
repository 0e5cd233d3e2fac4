// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/vm"
	testlibvirt "github.com/hyperfleet/hyperfleet/test/libvirt"
)

// Values of --vm.
const (
	vmSim  = "sim"
	vmQEMU = "qemu"
)

// Defaults for real machines. The numbers are low and the timeouts long, because software emulation is
// slow. A real machine needs more memory than a simulated machine.
const (
	realJobs    = 2
	realNodes   = 1
	realTimeout = 30 * time.Minute
	realCleanup = 5 * time.Minute
	realMemory  = "1Gi"
	realCPUs    = 2
)

// vmOptions are the flags for real machines.
type vmOptions struct {
	// VM is vmSim or vmQEMU. Image is the disk image of the machines. If Kernel is set, the machines boot
	// Kernel and Initrd with the arguments in Append. Accel is tcg or kvm.
	VM, Image, Kernel, Initrd, Append, Accel string
}

func (o *vmOptions) bind(flags *pflag.FlagSet) {
	flags.StringVar(&o.VM, "vm", vmSim, "type of machine: sim for simulated machines, or qemu for real VMs "+
		"(two jobs by default, with --platform github only)")
	flags.StringVar(&o.Image, "image", "",
		"qemu, libvirt: disk image `file` of the machines (default: the image of hack/vm-image/build.sh, in vm/ beside this program)")
	flags.StringVar(&o.Kernel, "kernel", "", "qemu, libvirt: kernel `file` to boot instead of the boot loader in --image")
	flags.StringVar(&o.Initrd, "initrd", "", "qemu, libvirt: initial ramdisk `file` for --kernel")
	flags.StringVar(&o.Append, "append", "", "qemu, libvirt: command-line `arguments` for --kernel")
	flags.StringVar(&o.Accel, "accel", "", "tcg for software emulation, or kvm (default: tcg with --vm qemu, "+
		"and with --hypervisor libvirt kvm if libvirt offers it)")
}

// hasRealMachines reports whether machines are real VMs, on the simulator or on a real hypervisor.
func (o *Options) hasRealMachines() bool {
	return o.VM == vmQEMU || o.isRealHypervisor() || o.isLibvirt()
}

// bootsImage reports whether this computer boots the machines from an image.
func (o *Options) bootsImage() bool {
	return o.isLibvirt() || (o.VM == vmQEMU && !o.isRealHypervisor())
}

// Files that hack/vm-image/build.sh creates, and the arguments of its kernel.
const (
	builtImage  = "runner.qcow2"
	builtKernel = "vmlinuz"
	builtInitrd = "runner.initrd"
	builtAppend = "root=/dev/sda rw console=ttyS0 quiet ds=nocloud"
)

// setDefaults sets the flags that the user did not set to defaults that depend on the other flags.
// programDir is the folder of this program.
func (o *Options) setDefaults(isSet func(flag string) bool, programDir string) {
	if !o.hasRealMachines() {
		o.setTimeouts(isSet)

		return
	}

	o.cleanupTimeout = realCleanup

	for flag, apply := range map[string]func(){
		"jobs": func() { o.Jobs = realJobs }, "max": func() { o.Max = realJobs }, "nodes": func() { o.Nodes = realNodes },
		"timeout": func() { o.Timeout = realTimeout },
	} {
		if !isSet(flag) {
			apply()
		}
	}

	// A real Proxmox VE already has its own template.
	if o.Image != "" || !o.bootsImage() {
		return
	}

	dir := filepath.Join(programDir, "vm")
	o.Image = filepath.Join(dir, builtImage)
	o.Kernel = cmp.Or(o.Kernel, filepath.Join(dir, builtKernel))
	o.Initrd = cmp.Or(o.Initrd, filepath.Join(dir, builtInitrd))
	o.Append = cmp.Or(o.Append, builtAppend)
}

// validateVM validates the flags for real machines on the simulator, and checks that QEMU and the image
// files exist.
func (o *Options) validateVM() error {
	if o.VM != vmSim && o.VM != vmQEMU {
		return fmt.Errorf("--vm must be sim or qemu, not %q", o.VM)
	}

	if !o.bootsImage() {
		if o.Image+o.Kernel+o.Initrd+o.Append+o.Accel != "" {
			return errors.New("--image, --kernel, --initrd, --append and --accel need --vm qemu or --hypervisor libvirt, " +
				"without --hypervisor real")
		}

		return nil
	}

	flag, errs := "--vm qemu", []error(nil)
	if o.isLibvirt() {
		flag = "--hypervisor libvirt"

		if err := testlibvirt.CheckInstalled(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", flag, err))
		}
	}

	if o.Platform != "github" || o.CompareWarm {
		errs = append(errs, errors.New(flag+" needs --platform github, without --compare-warm"))
	}

	if !slices.Contains([]string{"", accelTCG, accelKVM}, o.Accel) {
		errs = append(errs, fmt.Errorf("--accel must be tcg or kvm, not %q", o.Accel))
	}

	if _, err := vm.FindTools(); err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", flag, err))
	}

	for _, file := range []string{o.Image, o.Kernel, o.Initrd} {
		if file == "" {
			continue
		}

		if _, err := os.Stat(file); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w: create a machine image with hack/vm-image/build.sh", flag, err))
		}
	}

	return errors.Join(errs...)
}

// newGuest returns the guest that the simulated hypervisor boots: the bootstrap service as a process on
// this computer, or a QEMU VM.
func (s *stack) newGuest(image, dir string) (pve.Guest, error) {
	if !s.options.hasRealMachines() {
		return pve.Guest{Kind: pve.GuestExec, Program: s.programs.bootstrapService, ImageDir: image, WorkDir: dir}, nil
	}

	o := s.options
	q := pve.QEMU{Append: o.Append, Accel: o.Accel}

	for _, file := range []struct {
		from string
		to   *string
	}{{o.Image, &q.Image}, {o.Kernel, &q.Kernel}, {o.Initrd, &q.Initrd}} {
		if file.from == "" {
			continue
		}

		path, err := filepath.Abs(file.from)
		if err != nil {
			return pve.Guest{}, fmt.Errorf("find machine image: %w", err)
		}

		*file.to = path
	}

	return pve.Guest{Kind: pve.GuestQEMU, WorkDir: dir, QEMU: q}, nil
}
