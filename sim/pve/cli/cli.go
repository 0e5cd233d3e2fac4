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
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/control"
)

// options holds the values of the flags.
type options struct {
	listen, control, model, faults, env, backend string

	qemu pve.QEMU

	nodes, clones int
	clone, lag    time.Duration
}

// New returns the command. The command serves until its context ends.
func New() *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "pvesim",
		Short: "Simulate the API of a Proxmox VE cluster",
		Long: "pvesim simulates a Proxmox VE cluster in memory: VMs, templates, storages, tasks, locks,\n" +
			"permissions and failures. It prints the address of its API for any client of Proxmox VE.\n\n" +
			"With --backend qemu, each VM is a QEMU process with linked clones of an image as disks.\n" +
			"In such a VM, the loopback address of this machine is 10.0.2.2.",
		Example: "  pvesim -E                          # print export lines and serve\n" +
			"  pvesim --faults clone-lock=0.2,vm-crash=0.1@5s\n" +
			"  pvesim --backend qemu --image debian.qcow2",
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := o.buildModel(cmd)
			if err != nil {
				return err
			}
			return o.serve(cmd.Context(), m, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.addFlags(cmd)
	return cmd
}

func (o *options) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.listen, "listen", "127.0.0.1:0", "address of the API")
	f.StringVar(&o.control, "control", "127.0.0.1:0", "address of the control API (loopback only)")
	f.StringVar(&o.model, "model", "", "YAML `file` describing the cluster (default: three nodes)")
	f.IntVar(&o.nodes, "nodes", 0, "number of nodes, named pve1, pve2 and so on (default: the model's)")
	f.DurationVar(&o.clone, "clone-delay", 0, "time to clone a VM")
	f.IntVar(&o.clones, "parallel-clones", 0, "maximum number of parallel clones per storage")
	f.DurationVar(&o.lag, "status-lag", 0, "age of the status in the cluster listing")
	f.StringVar(&o.backend, "backend", backendSim, "how VMs run: sim (simulated) or qemu (QEMU processes)")
	f.StringVar(&o.qemu.Image, "image", "", "qemu: disk of the templates, a qcow2 or raw `file`")
	f.StringVar(&o.qemu.Kernel, "kernel", "", "qemu: kernel `file` that replaces the image's boot loader")
	f.StringVar(&o.qemu.Initrd, "initrd", "", "qemu: initial ramdisk `file` for the kernel")
	f.StringVar(&o.qemu.Append, "append", "", "qemu: `arguments` of the kernel, such as 'root=/dev/sda console=ttyS0'")
	f.StringVar(&o.qemu.Accel, "accel", "tcg", "qemu: tcg (software emulation) or kvm")
	f.StringVar(&o.faults, "faults", "",
		"faults by name and probability, such as vm-crash=0.1: "+strings.Join(pve.FaultNames(), ", "))
	f.StringVarP(&o.env, "env", "E", "", "print export lines when the API listens, or with -E=FILE write them to the file")
	f.Lookup("env").NoOptDefVal = "-"
}

// buildModel returns the model with the values of the flags.
func (o *options) buildModel(cmd *cobra.Command) (pve.Model, error) {
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
	set("parallel-clones", func() { m.Limits.ClonesPerStorage = o.clones })
	set("status-lag", func() { m.StatusLag = o.lag })
	if err := o.applyBackend(cmd, &m); err != nil {
		return m, err
	}
	faults, err := pve.ParseFaults(o.faults)
	if err != nil {
		return m, err
	}
	m.Faults = append(m.Faults, faults...)
	return m, m.Validate()
}

// The backends, which define how VMs run.
const (
	backendSim  = "sim"
	backendQEMU = "qemu"
)

// applyBackend sets the backend and its image in the model.
func (o *options) applyBackend(cmd *cobra.Command, m *pve.Model) error {
	isSet := cmd.Flags().Changed
	switch o.backend {
	case backendSim:
		for _, name := range []string{"image", "kernel", "initrd", "append", "accel"} {
			if isSet(name) {
				return fmt.Errorf("--%s requires --backend qemu", name)
			}
		}
		return nil
	case backendQEMU:
	default:
		return fmt.Errorf("--backend must be sim or qemu, not %q", o.backend)
	}
	m.Guest.Kind = pve.GuestQEMU
	q := &m.Guest.QEMU
	for name, set := range map[string]func(){
		"image": func() { q.Image = o.qemu.Image }, "kernel": func() { q.Kernel = o.qemu.Kernel },
		"initrd": func() { q.Initrd = o.qemu.Initrd }, "append": func() { q.Append = o.qemu.Append },
		"accel": func() { q.Accel = o.qemu.Accel },
	} {
		if isSet(name) {
			set()
		}
	}
	for i := range m.Templates {
		if m.Templates[i].Image == "" && q.Image == "" {
			return errors.New("--backend qemu requires --image with a bootable disk image")
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
		return fmt.Errorf("--control %q: the control API has no login: use a loopback address such as 127.0.0.1:0", o.control)
	}
	s, err := pve.New(m)
	if err != nil {
		return err
	}
	if err := s.Start(pve.ListenOptions{Address: o.listen}); err != nil {
		return errors.Join(err, s.Close())
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.control)
	if err != nil {
		return errors.Join(fmt.Errorf("listen for control API: %w", err), s.Close())
	}
	ctl := &http.Server{Handler: control.Handler(s), ReadHeaderTimeout: time.Minute}
	serveErr := make(chan error, 1)
	go func() { serveErr <- ctl.Serve(ln) }()
	if err = o.printAddresses(s, m, "http://"+ln.Addr().String(), out); err == nil {
		select {
		case <-ctx.Done():
		case err = <-serveErr:
		}
	}
	err = errors.Join(err, ctl.Close(), s.Close())
	for _, v := range s.Violations() {
		_, _ = fmt.Fprintf(errOut, "violation: %s: %s %s\n", v.Message, v.Call.Method, v.Call.Path)
	}
	return err
}

// printAddresses prints the addresses and the credentials of the simulator or writes them to a file,
// depending on the flag --env.
func (o *options) printAddresses(s *pve.Server, m pve.Model, ctl string, out io.Writer) error {
	token := pve.Token{}
	if len(m.Tokens) > 0 {
		token = m.Tokens[0]
	}
	var b strings.Builder
	api, root := s.URL()+"/api2/json", findRoot(m)
	for _, kv := range [][2]string{
		{"PVE_URL", api}, {"PVE_TOKEN_ID", token.ID}, {"PVE_TOKEN_SECRET", token.Secret},
		{"PVE_FINGERPRINT", s.Fingerprint()}, {"PVESIM_CONTROL", ctl}, {"PVESIM_PID", strconv.Itoa(os.Getpid())},
		// OpenTofu and Terraform with the provider of bpg
		{"PROXMOX_VE_ENDPOINT", s.URL() + "/"}, {"PROXMOX_VE_USERNAME", root.ID}, {"PROXMOX_VE_PASSWORD", root.Password},
		{"PROXMOX_VE_INSECURE", "true"},
		// Telmate's provider and its program
		{"PM_API_URL", api}, {"PM_USER", root.ID}, {"PM_PASS", root.Password}, {"PM_TLS_INSECURE", "true"},
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
		return writeFileAtomically(o.env, b.String())
	}
}

// findRoot returns the user root@pam of a model, or one without a password.
func findRoot(m pve.Model) pve.User {
	for _, u := range m.Users {
		if u.ID == pve.RootUser {
			return u
		}
	}
	return pve.User{ID: pve.RootUser}
}

// writeFileAtomically writes a file so that a reader sees either the complete file or none.
func writeFileAtomically(name, text string) error {
	const private = 0o600
	if err := os.WriteFile(name+".tmp", []byte(text), private); err != nil {
		return fmt.Errorf("write environment: %w", err)
	}
	if err := os.Rename(name+".tmp", name); err != nil {
		return fmt.Errorf("write environment: %w", err)
	}
	return nil
}
