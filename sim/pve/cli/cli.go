// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/control"
)

// options are the flags.
type options struct {
	listen, control, model, guest, program, image, faults, env string

	backend, workDir, diskSlot, ciSlot string

	qemu pve.QEMU

	nodes, clones                   int
	clone, boot, stayUp, lag, login time.Duration
}

// New is the command. It serves until its context ends.
func New() *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "pvesim",
		Short: "Simulate the API of a Proxmox VE cluster",
		Long: "pvesim answers like a Proxmox VE cluster: VMs, templates, storages, tasks, locks, permissions\n" +
			"and failures, all in memory. Point any Proxmox client at the address it prints.\n\n" +
			"With --backend qemu, VMs are real: processes of QEMU with linked clones of an image as disks.\n" +
			"In them, the loopback address of this machine is 10.0.2.2.",
		Example: "  pvesim -E                          # print export lines and serve\n" +
			"  pvesim --faults clone-lock=0.2,vm-crash=0.1@5s\n" +
			"  pvesim --backend qemu --image debian.qcow2",
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := o.build(cmd)
			if err != nil {
				return err
			}
			return o.serve(cmd.Context(), m, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.flags(cmd)
	return cmd
}

func (o *options) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.listen, "listen", "127.0.0.1:0", "address of the API")
	f.StringVar(&o.control, "control", "127.0.0.1:0", "address of the control API (loopback only)")
	f.StringVar(&o.model, "model", "", "YAML `file` describing the cluster (default: three nodes)")
	f.IntVar(&o.nodes, "nodes", 0, "number of nodes, pve1 and so on (default: as the model)")
	f.DurationVar(&o.clone, "clone-delay", 0, "time a clone takes")
	f.DurationVar(&o.boot, "boot-delay", 0, "time a VM takes to boot")
	f.DurationVar(&o.login, "login-delay", 0, "delay of answers to a bad login; real clusters use 3s")
	f.IntVar(&o.clones, "parallel-clones", 0, "clones one storage makes at a time")
	f.DurationVar(&o.lag, "status-lag", 0, "age of status in the cluster listing")
	f.StringVar(&o.guest, "guest", "", "what a booted VM does: nothing, script or exec")
	f.DurationVar(&o.stayUp, "guest-stays", 0, "how long a script guest stays up")
	f.StringVar(&o.program, "bootstrap-service", "", "`program` an exec guest runs")
	f.StringVar(&o.image, "image", "",
		"the template's disk: a `directory` with its files, or with --backend qemu an image, qcow2 or raw")
	f.StringVar(&o.backend, "backend", backendSim, "what VMs are: sim, or qemu for real ones")
	f.StringVar(&o.qemu.Kernel, "kernel", "", "qemu: kernel `file` to boot in place of the image's boot loader")
	f.StringVar(&o.qemu.Initrd, "initrd", "", "qemu: initial ramdisk `file` for the kernel")
	f.StringVar(&o.qemu.Append, "append", "", "qemu: `arguments` of the kernel, such as 'root=/dev/sda console=ttyS0'")
	f.StringVar(&o.qemu.Accel, "accel", "tcg", "qemu: tcg (software emulation) or kvm")
	f.StringVar(&o.diskSlot, "disk-slot", "", "where the template's disk is attached, such as virtio0 (default: scsi0)")
	f.StringVar(&o.ciSlot, "cloud-init-slot", "",
		"where the template's cloud-init drive is attached, such as scsi1 (default: ide2)")
	f.StringVar(&o.workDir, "work-dir", "",
		"existing `directory` for the VMs' files; consoles stay in its folder serial (default: a temporary one)")
	f.StringVar(&o.faults, "faults", "", "faults by name and probability: "+strings.Join(pve.FaultNames(), ", "))
	f.StringVarP(&o.env, "env", "E", "", "print export lines once listening, or with -E=FILE write them there")
	f.Lookup("env").NoOptDefVal = "-"
}

// build is the model with what the flags say.
func (o *options) build(cmd *cobra.Command) (pve.Model, error) {
	m := pve.DefaultModel()
	if o.model != "" {
		var err error
		if m, err = pve.LoadModel(o.model); err != nil {
			return m, err
		}
	}
	set := func(name string, apply func()) {
		if cmd.Flags().Changed(name) {
			apply()
		}
	}
	set("nodes", func() { m = m.WithNodes(o.nodes) })
	set("clone-delay", func() { m.Delays.Clone = o.clone })
	set("boot-delay", func() { m.Delays.Boot = o.boot })
	set("login-delay", func() { m.Delays.LoginFailure = o.login })
	set("parallel-clones", func() { m.Limits.ClonesPerStorage = o.clones })
	set("status-lag", func() { m.StatusLag = o.lag })
	set("guest", func() { m.Guest.Kind = pve.GuestKind(o.guest) })
	set("guest-stays", func() { m.Guest.StayUp = o.stayUp })
	set("work-dir", func() { m.Guest.WorkDir = o.workDir })
	for i := range m.Templates { // LoadModel and DefaultModel make them anew
		set("disk-slot", func() { m.Templates[i].DiskSlot = o.diskSlot })
		set("cloud-init-slot", func() { m.Templates[i].CloudInitSlot = o.ciSlot })
	}
	if err := o.applyBackend(cmd, &m); err != nil {
		return m, err
	}
	if o.program != "" {
		abs, err := filepath.Abs(o.program)
		if err != nil {
			return m, fmt.Errorf("find program: %w", err)
		}
		m.Guest.Program = abs
	}
	faults, err := pve.ParseFaults(o.faults)
	if err != nil {
		return m, err
	}
	m.Faults = append(m.Faults, faults...)
	return m, m.Validate()
}

// What VMs can be.
const (
	backendSim  = "sim"
	backendQEMU = "qemu"
)

// applyBackend sets what VMs are, and their image.
func (o *options) applyBackend(cmd *cobra.Command, m *pve.Model) error {
	given := cmd.Flags().Changed
	switch o.backend {
	case backendSim:
		for _, name := range []string{"kernel", "initrd", "append", "accel"} {
			if given(name) {
				return fmt.Errorf("--%s needs --backend qemu", name)
			}
		}
		if given("image") {
			m.Guest.ImageDir = o.image
		}
		return nil
	case backendQEMU:
	default:
		return fmt.Errorf("--backend must be sim or qemu, not %q", o.backend)
	}
	for _, name := range []string{"guest", "guest-stays", "bootstrap-service", "boot-delay"} {
		if given(name) {
			return fmt.Errorf("--%s is not for --backend qemu: real VMs do what their image does", name)
		}
	}
	m.Guest.Kind = pve.GuestQEMU
	q := &m.Guest.QEMU
	for name, set := range map[string]func(){
		"image": func() { q.Image = o.image }, "kernel": func() { q.Kernel = o.qemu.Kernel },
		"initrd": func() { q.Initrd = o.qemu.Initrd }, "append": func() { q.Append = o.qemu.Append },
		"accel": func() { q.Accel = o.qemu.Accel },
	} {
		if given(name) {
			set()
		}
	}
	for i := range m.Templates {
		if m.Templates[i].Image == "" && q.Image == "" {
			return errors.New("--backend qemu needs --image: a disk image that boots")
		}
	}
	return nil
}

// serve runs the simulator and its control API until the context ends.
func (o *options) serve(ctx context.Context, m pve.Model, out, errOut io.Writer) error {
	host, _, err := net.SplitHostPort(o.control)
	if err != nil {
		return fmt.Errorf("--control %q: %w", o.control, err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("--control %q: it has no login, so use a loopback address such as 127.0.0.1:0", o.control)
	}
	s, err := pve.New(m)
	if err != nil {
		return err
	}
	if err := s.Start(pve.Listen{Address: o.listen}); err != nil {
		return errors.Join(err, s.Close())
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.control)
	if err != nil {
		return errors.Join(fmt.Errorf("listen for control: %w", err), s.Close())
	}
	ctl := &http.Server{Handler: control.Handler(s), ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- ctl.Serve(ln) }()
	if err = o.announce(s, m, "http://"+ln.Addr().String(), out); err == nil {
		select {
		case <-ctx.Done():
		case err = <-served:
		}
	}
	err = errors.Join(err, ctl.Close(), s.Close())
	for _, v := range s.Violations() {
		_, _ = fmt.Fprintf(errOut, "violation: %s: %s %s\n", v.What, v.Call.Method, v.Call.Path)
	}
	return err
}

// announce says how to reach the simulator.
func (o *options) announce(s *pve.Server, m pve.Model, ctl string, out io.Writer) error {
	token := pve.Token{}
	if len(m.Tokens) > 0 {
		token = m.Tokens[0]
	}
	var b strings.Builder
	for _, kv := range [][2]string{
		{"PVE_URL", s.URL() + "/api2/json"}, {"PVE_TOKEN_ID", token.ID}, {"PVE_TOKEN_SECRET", token.Secret},
		{"PVE_FINGERPRINT", s.Fingerprint()}, {"PVESIM_CONTROL", ctl},
	} {
		fmt.Fprintf(&b, "export %s='%s'\n", kv[0], kv[1])
	}
	switch o.env {
	case "":
		_, err := fmt.Fprintf(out, "listening on %s\nfingerprint %s\ncontrol %s\n", s.URL()+"/api2/json", s.Fingerprint(), ctl)
		return err
	case "-":
		_, err := io.WriteString(out, b.String())
		return err
	default:
		return writeWhole(o.env, b.String())
	}
}

// writeWhole lets a waiting reader see all of the file or nothing.
func writeWhole(name, text string) error {
	const private = 0o600
	if err := os.WriteFile(name+".tmp", []byte(text), private); err != nil {
		return fmt.Errorf("write environment: %w", err)
	}
	if err := os.Rename(name+".tmp", name); err != nil {
		return fmt.Errorf("write environment: %w", err)
	}
	return nil
}
