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

// agentTimeout is how long a guest agent's command may take
// (PVE::QemuServer::Agent).
const agentTimeout = 5 * time.Second

// qemuGuest is a guest that is a machine of QEMU's.
type qemuGuest struct {
	s  *Server
	m  *machine
	vm *vm.VM
	// media are the volumes in the CD drives by slot; guarded by Server.mu.
	media map[string]string
}

// medium is what is in a CD drive.
type medium struct {
	volid string
	data  []byte
}

// startQEMU starts the machine that a VM's configuration describes. The VM's
// lock is held.
func (s *Server) startQEMU(ctx context.Context, m *machine, t *task) (guest, error) {
	m.last.awaitGone() // it may still have the disks open
	s.mu.Lock()
	spec, err := vmSpec(m, s.host.cfg)
	media, disks, console := s.mediaOf(m), s.disksOf(m), s.console(m.id)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	files, err := s.openDrives(ctx, m.id, spec, media, disks)
	// QEMU has them open by then: a medium that is taken from its storage, or
	// that holds a secret, is in no file any more.
	defer removeAll(files)
	if err != nil {
		return nil, err
	}
	console.printf("pvesim: start VM %d", m.id)
	machine, err := vm.Start(ctx, s.host.tools, spec, console)
	if err != nil {
		return nil, s.notStarted(t, err)
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

// notStarted puts what QEMU said into the task's log.
func (s *Server) notStarted(t *task, err error) error {
	var exit *vm.StartError
	if !errors.As(err, &exit) {
		return dief("start failed: %s", err)
	}
	for _, line := range kvmSays(exit.Stderr) {
		s.printf(t, "%s", line)
	}
	return dief("%s", exited(exit.Code))
}

// openDrives makes the files of the drives, and gives those to be removed once
// they are open.
func (s *Server) openDrives(ctx context.Context, vmid int, spec *vm.Spec, media map[string]medium,
	disks map[string]*volume,
) ([]string, error) {
	var made []string
	for i := range spec.Drives {
		d := &spec.Drives[i]
		if in, ok := media[d.Slot]; ok {
			file, err := s.host.mediumFile(vmid, d.Slot, in.data)
			if err != nil {
				return made, dief("%s", err)
			}
			made = append(made, file)
			d.File, d.Format = file, "raw"
		}
		if v := disks[d.Slot]; v != nil {
			if err := s.ensureImage(ctx, v); err != nil {
				return made, err
			}
			d.File, d.Format = v.image.path, "qcow2"
		}
	}
	return made, nil
}

func removeAll(files []string) {
	for _, f := range files {
		_ = os.Remove(f) // all are below the work directory, which goes in the end
	}
}

// mediaOf is what is in a VM's CD drives by slot; s.mu is held.
func (s *Server) mediaOf(m *machine) map[string]medium {
	out := map[string]medium{}
	for slot, value := range driveOptionsOf(m.conf) {
		d, err := parseDrive(value)
		if err != nil || !d.isCDROM() {
			continue
		}
		if _, v := s.volumeOf(m.node, d.file); v != nil {
			out[slot] = medium{volid: v.id, data: v.data}
		}
	}
	return out
}

// disksOf are the volumes of a VM's disks by slot; s.mu is held.
func (s *Server) disksOf(m *machine) map[string]*volume {
	out := map[string]*volume{}
	for slot, value := range driveOptionsOf(m.conf) {
		d, err := parseDrive(value)
		if err != nil || d.isCDROM() {
			continue
		}
		if _, v := s.volumeOf(m.node, d.file); v != nil {
			out[slot] = v
		}
	}
	return out
}

// updateVM changes a configuration, and what is in the CD drives of a VM that
// runs.
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

// changeMedia makes the CD drives hold what the configuration says.
func (g *qemuGuest) changeMedia(ctx context.Context) error {
	g.s.mu.Lock()
	want, had, drives := g.s.mediaOf(g.m), maps.Clone(g.media), driveOptionsOf(g.m.conf)
	g.s.mu.Unlock()
	for slot := range drives {
		in, full := want[slot]
		if in.volid == had[slot] {
			continue
		}
		if err := g.change(ctx, slot, in, full); err != nil {
			return dief("%s", err)
		}
		g.s.mu.Lock()
		g.media[slot] = in.volid
		g.s.mu.Unlock()
	}
	return nil
}

func (g *qemuGuest) change(ctx context.Context, slot string, in medium, full bool) error {
	if !full {
		return g.vm.ChangeMedium(ctx, slot, "")
	}
	file, err := g.s.host.mediumFile(g.m.id, slot, in.data)
	if err != nil {
		return err
	}
	defer removeAll([]string{file})
	return g.vm.ChangeMedium(ctx, slot, file)
}

// live follows the process.
func (g *qemuGuest) live(run *guestRun) bool {
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

func (g *qemuGuest) press(run *guestRun) time.Duration {
	if err := g.vm.PowerButton(run.ctx); err != nil {
		run.log.printf("pvesim: %s", err)
	}
	return never
}

func (g *qemuGuest) agent(ctx context.Context, command string) (any, error) {
	wait := agentTimeout
	if command == "guest-ping" {
		wait = agentWait
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	result, err := g.vm.Agent(ctx, command)
	switch {
	case errors.Is(err, vm.ErrNoAgent):
		return nil, noAgent()
	case err != nil:
		return nil, dief("%s", err)
	}
	return result, nil
}

func (g *qemuGuest) pid() int { return g.vm.PID() }

// Terminal is the first serial port of a VM that runs under QEMU: what is
// written to it is typed there. What the guest answers is in [Server.Console].
func (s *Server) Terminal(vmid int) (io.Writer, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.vms[vmid]; m != nil && m.guest != nil {
		if g, ok := m.guest.guest.(*qemuGuest); ok {
			return typist{g.vm}, true
		}
	}
	return nil, false
}

type typist struct{ vm *vm.VM }

func (t typist) Write(p []byte) (int, error) { return t.vm.Type(p) }
