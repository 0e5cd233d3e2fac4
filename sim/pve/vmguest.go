// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/pve/vm"
)

// agentCommandTimeout is the timeout of a guest agent's command (PVE::QemuServer::Agent).
const agentCommandTimeout = 5 * time.Second

// qemuGuest is a guest that is a QEMU process.
type qemuGuest struct {
	s  *Server
	m  *machine
	vm *vm.VM
	// media holds the volume ids in the CD drives by slot; guarded by Server.mu.
	media map[string]string
}

// medium is the content of a CD drive.
type medium struct {
	volid string
	data  []byte
}

// startQEMU starts the machine that a VM's configuration describes. The caller holds the VM's lock.
func (s *Server) startQEMU(ctx context.Context, m *machine, t *task) (guest, error) {
	m.lastRun.waitForExit() // the last run can still have the disks open
	s.mu.Lock()
	spec, err := newVMSpec(m, s.host.cfg)
	media, disks, console := s.findMedia(m), s.findDisks(m), s.ensureConsole(m.id)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	files, err := s.prepareDrives(ctx, m.id, spec, media, disks)
	// When startQEMU returns, QEMU has opened the files. They are removed so that a medium with a
	// secret, or a medium that is deleted from its storage, does not remain in a file.
	defer removeFiles(files)
	if err != nil {
		return nil, err
	}
	console.printf("pvesim: start VM %d", m.id)
	machine, err := vm.Start(ctx, s.host.tools, spec, console)
	if err != nil {
		return nil, s.reportStartError(t, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groups = append(s.groups, machine.PID())
	g := &qemuGuest{s: s, m: m, vm: machine, media: map[string]string{}}
	for slot, in := range media {
		g.media[slot] = in.volid
	}
	return g, nil
}

// reportStartError adds QEMU's output to the task's log and returns the error of the task.
func (s *Server) reportStartError(t *task, err error) error {
	var exit *vm.StartError
	if !errors.As(err, &exit) {
		return dief("start failed: %s", err)
	}
	for _, line := range formatKVMErrors(exit.Stderr) {
		s.printf(t, "%s", line)
	}
	return dief("%s", formatExit(exit.Code))
}

// prepareDrives creates the files of the drives. It returns the files that must be removed after
// QEMU has opened them.
func (s *Server) prepareDrives(ctx context.Context, vmid int, spec *vm.Spec, media map[string]medium,
	disks map[string]*volume,
) ([]string, error) {
	var created []string
	for i := range spec.Drives {
		d := &spec.Drives[i]
		if in, ok := media[d.Slot]; ok {
			file, err := s.host.writeMediumFile(vmid, d.Slot, in.data)
			if err != nil {
				return created, dief("%s", err)
			}
			created = append(created, file)
			d.File, d.Format = file, "raw"
		}
		if v := disks[d.Slot]; v != nil {
			if err := s.ensureImage(ctx, v); err != nil {
				return created, err
			}
			d.File, d.Format = v.image.path, "qcow2"
		}
	}
	return created, nil
}

func removeFiles(files []string) {
	for _, f := range files {
		_ = os.Remove(f) // Close deletes the work directory with all remaining files
	}
}

// findMedia returns the content of a VM's CD drives by slot. The caller holds s.mu.
func (s *Server) findMedia(m *machine) map[string]medium {
	out := map[string]medium{}
	for slot, value := range selectDrives(m.conf) {
		d, err := parseDrive(value)
		if err != nil || !d.isCDROM() {
			continue
		}
		if _, v := s.findVolume(m.node, d.file); v != nil {
			out[slot] = medium{volid: v.id, data: v.data}
		}
	}
	return out
}

// findDisks returns the volumes of a VM's disks by slot. The caller holds s.mu.
func (s *Server) findDisks(m *machine) map[string]*volume {
	out := map[string]*volume{}
	for slot, value := range selectDrives(m.conf) {
		d, err := parseDrive(value)
		if err != nil || d.isCDROM() {
			continue
		}
		if _, v := s.findVolume(m.node, d.file); v != nil {
			out[slot] = v
		}
	}
	return out
}

// updateVM changes a configuration and the media in the CD drives of a running VM.
func (s *Server) updateVM(ctx context.Context, c *call, u *update) error {
	if err := s.applyUpdate(c, u); err != nil {
		return err
	}
	s.mu.Lock()
	var g *qemuGuest
	if m := s.vms[c.vmid]; m != nil && m.guest != nil {
		g, _ = m.guest.guest.(*qemuGuest)
	}
	s.mu.Unlock()
	if g == nil {
		return nil
	}
	return g.changeMedia(ctx)
}

// changeMedia changes the media in the CD drives to those of the configuration.
func (g *qemuGuest) changeMedia(ctx context.Context) error {
	g.s.mu.Lock()
	desired, current, drives := g.s.findMedia(g.m), maps.Clone(g.media), selectDrives(g.m.conf)
	g.s.mu.Unlock()
	for slot := range drives {
		target, hasMedium := desired[slot]
		if target.volid == current[slot] {
			continue
		}
		if err := g.changeMedium(ctx, slot, target, hasMedium); err != nil {
			return dief("%s", err)
		}
		g.s.mu.Lock()
		g.media[slot] = target.volid
		g.s.mu.Unlock()
	}
	return nil
}

func (g *qemuGuest) changeMedium(ctx context.Context, slot string, target medium, hasMedium bool) error {
	if !hasMedium {
		return g.vm.ChangeMedium(ctx, slot, "")
	}
	file, err := g.s.host.writeMediumFile(g.m.id, slot, target.data)
	if err != nil {
		return err
	}
	defer removeFiles([]string{file})
	return g.vm.ChangeMedium(ctx, slot, file)
}

// execute waits for the end of the process. If run's context ends first, execute stops the process and returns false.
func (g *qemuGuest) execute(run *guestRun) bool {
	select {
	case <-g.vm.Done():
	case <-run.ctx.Done():
		g.vm.Stop()
	}
	exit := g.vm.Exit()
	switch {
	case exit.Reason != "":
		run.log.printf("pvesim: QEMU ended: %s", exit.Reason)
	default:
		run.log.printf("pvesim: QEMU ended unexpectedly (exit code %d)", exit.Code)
	}
	if exit.Stderr != "" {
		run.log.printf("%s", exit.Stderr)
	}
	return run.ctx.Err() == nil
}

func (g *qemuGuest) pressPowerButton(run *guestRun) time.Duration {
	if err := g.vm.PowerButton(run.ctx); err != nil {
		run.log.printf("pvesim: %s", err)
	}
	return unlimited
}

func (g *qemuGuest) runAgentCommand(ctx context.Context, command string) (any, error) {
	wait := agentCommandTimeout
	if command == "guest-ping" {
		wait = agentPingTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	result, err := g.vm.RunAgentCommand(ctx, command)
	switch {
	case errors.Is(err, vm.ErrNoAgent):
		return nil, newNoAgentError()
	case err != nil:
		return nil, dief("%s", err)
	}
	return result, nil
}

func (g *qemuGuest) pid() int { return g.vm.PID() }

func (g *qemuGuest) typeKeys(_ *guestRun, keys []byte) error {
	_, err := g.vm.Type(keys)
	return err
}

// Terminal returns a writer to the first serial port of a VM that runs under QEMU, and false if
// there is no such VM. The output of the guest is in [Server.Console].
func (s *Server) Terminal(vmid int) (io.Writer, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.vms[vmid]; m != nil && m.guest != nil {
		if g, ok := m.guest.guest.(*qemuGuest); ok {
			return terminalWriter{g.vm}, true
		}
	}
	return nil, false
}

type terminalWriter struct{ vm *vm.VM }

func (t terminalWriter) Write(p []byte) (int, error) { return t.vm.Type(p) }
