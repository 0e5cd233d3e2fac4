// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/vm"
)

// What machines can be.
const (
	vmSim  = "sim"
	vmQEMU = "qemu"
)

// Real machines are few and slow where their instructions are emulated, and need more
// memory than a program that stands for one.
const (
	realJobs    = 2
	realNodes   = 1
	realTimeout = 30 * time.Minute
	realCleanup = 5 * time.Minute
	realMemory  = "1Gi"
	realCPUs    = 2
)

// vmOptions are the flags of real machines.
type vmOptions struct {
	// VM is vmSim or vmQEMU. Image is the machines' disk, Kernel and Initrd are booted with
	// the arguments in Append; Accel is tcg or kvm.
	VM, Image, Kernel, Initrd, Append, Accel string
}

func (o *vmOptions) bind(flags *pflag.FlagSet) {
	flags.StringVar(&o.VM, "vm", vmSim, "what machines are: sim, or qemu for real ones (two jobs by default, "+
		"on --platform github)")
	flags.StringVar(&o.Image, "image", "",
		"qemu: `file` of the machines' disk (default: what hack/vm-image/build.sh makes, beside this program in vm/)")
	flags.StringVar(&o.Kernel, "kernel", "", "qemu: kernel `file` to boot in place of the boot loader of --image")
	flags.StringVar(&o.Initrd, "initrd", "", "qemu: initial ramdisk `file` of --kernel")
	flags.StringVar(&o.Append, "append", "", "qemu: `arguments` of --kernel")
	flags.StringVar(&o.Accel, "accel", "", "qemu: tcg for software emulation (default), or kvm")
}

// real tells whether machines are real ones, of the simulator or of a real hypervisor.
func (o *Options) real() bool { return o.VM == vmQEMU || o.onReal() }

// Files of hack/vm-image/build.sh, and how its kernel is booted.
const (
	builtImage  = "runner.qcow2"
	builtKernel = "vmlinuz"
	builtInitrd = "runner.initrd"
	builtAppend = "root=/dev/sda rw console=ttyS0 quiet ds=nocloud"
)

// settle gives flags that were not set the defaults for what is asked for. beside is the
// folder of this program.
func (o *Options) settle(set func(flag string) bool, beside string) {
	if !o.real() {
		o.patience(set)

		return
	}

	for flag, apply := range map[string]func(){
		"jobs": func() { o.Jobs = realJobs }, "max": func() { o.Max = realJobs }, "nodes": func() { o.Nodes = realNodes },
		"timeout": func() { o.Timeout = realTimeout }, "cleanup-timeout": func() { o.Cleanup = realCleanup },
	} {
		if !set(flag) {
			apply()
		}
	}

	// A real hypervisor has its template.
	if o.Image != "" || o.onReal() {
		return
	}

	dir := filepath.Join(beside, "vm")
	o.Image = filepath.Join(dir, builtImage)
	o.Kernel = cmp.Or(o.Kernel, filepath.Join(dir, builtKernel))
	o.Initrd = cmp.Or(o.Initrd, filepath.Join(dir, builtInitrd))
	o.Append = cmp.Or(o.Append, builtAppend)
}

// validateVM says what is in the way of the simulator's real machines.
func (o *Options) validateVM() error {
	if o.VM != vmSim && o.VM != vmQEMU {
		return fmt.Errorf("--vm must be sim or qemu, not %q", o.VM)
	}

	if o.VM != vmQEMU || o.onReal() {
		if o.Image+o.Kernel+o.Initrd+o.Append+o.Accel != "" {
			return errors.New("--image, --kernel, --initrd, --append and --accel need --vm qemu, without --hypervisor real")
		}

		return nil
	}

	var errs []error

	if o.Platform != "github" || o.CompareWarm {
		errs = append(errs, errors.New("--vm qemu is for --platform github, without --compare-warm"))
	}

	if _, err := vm.FindTools(); err != nil {
		errs = append(errs, fmt.Errorf("--vm qemu: %w", err))
	}

	for _, file := range []string{o.Image, o.Kernel, o.Initrd} {
		if file == "" {
			continue
		}

		if _, err := os.Stat(file); err != nil {
			errs = append(errs, fmt.Errorf("--vm qemu: %w: make a machine image with hack/vm-image/build.sh", err))
		}
	}

	return errors.Join(errs...)
}

// guests are what the simulated hypervisor boots: the real bootstrap service on this
// machine, or in a real one.
func (s *stack) guests(image, dir string) (pve.Guest, error) {
	if !s.options.real() {
		return pve.Guest{Kind: pve.GuestExec, Program: s.programs.bootstrapd, ImageDir: image, WorkDir: dir}, nil
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
