// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
	"net/http"
	"strconv"
	"time"
)

// Waiting for a VM's configuration lock.
const (
	configLockWait  = 10 * time.Second
	shutdownTimeout = 60 * time.Second
	// initPatience is how long an init system waits for a service to end
	// before it kills it (DefaultTimeoutStopSec of systemd).
	initPatience = 90 * time.Second
)

func powerRoutes() []route {
	power := needs("/vms/{vmid}", "VM.PowerMgmt")
	skip := schema{"skiplock": {kind: kBool}}
	start := skip.with(schema{"timeout": {kind: kInt}, "machine": {}, "force-cpu": {}})
	stop := skip.with(schema{"timeout": {kind: kInt}, "keepActive": {kind: kBool}, "overrule-shutdown": {kind: kBool}})
	shutdown := skip.with(schema{"timeout": {kind: kInt}, "forceStop": {kind: kBool}, "keepActive": {kind: kBool}})
	base := "/nodes/{node}/qemu/{vmid}/status/"
	return []route{
		newRoute(http.MethodPost, base+"start", ClassVM, power, start, startVM).async(),
		newRoute(http.MethodPost, base+"stop", ClassVM, power, stop, stopVM).async(),
		newRoute(http.MethodPost, base+"shutdown", ClassVM, power, shutdown, shutdownVM).async(),
	}
}

// rootOnly refuses options only root itself may use.
func rootOnly(c *call, names ...string) error {
	for _, n := range names {
		if c.flag(n) && !c.auth.isRoot() {
			return badParam(n, "Only root may use this option.")
		}
	}
	return nil
}

func startVM(s *Server, c *call) (any, error) {
	if err := rootOnly(c, "skiplock"); err != nil {
		return nil, err
	}
	return s.forkVM(c, "qmstart", func(ctx context.Context, t *task) error {
		if err := s.startChecks(c); err != nil {
			return err
		}
		if !s.sleep(ctx, s.model.Delays.Start) {
			return dief("start failed: got interrupted")
		}
		return s.boot(ctx, c, t)
	})
}

// forkVM starts a worker that holds the VM's lock.
func (s *Server) forkVM(c *call, kind string, work func(context.Context, *task) error) (any, error) {
	return s.fork(c, kind, strconv.Itoa(c.vmid), func(ctx context.Context, t *task) error {
		release, err := s.lockVM(ctx, c.vmid, 0, configLockWait)
		if err != nil {
			return err
		}
		defer release()
		return work(ctx, t)
	})
}

func (s *Server) startChecks(c *call) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.get(c.node, c.vmid)
	if err != nil {
		return err
	}
	if m.template() {
		return dief("you can't start a vm if it's a template")
	}
	if !c.flag("skiplock") {
		if err := m.checkLock(); err != nil {
			return err
		}
	}
	if m.running {
		return dief("VM %d already running", m.id)
	}
	return nil
}

// boot brings the VM up. Its memory is reserved before its guest starts.
func (s *Server) boot(ctx context.Context, c *call, t *task) error {
	m, err := s.prepareBoot(c, t)
	if err != nil {
		return err
	}
	g, err := s.newGuest(ctx, m, t)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		m.memory = 0
		return err
	}
	m.running, m.pid, m.started = true, g.pid(), s.clk.Now()
	if m.pid == 0 {
		m.pid = s.newPID()
	}
	m.starts++
	s.makeTPM(m)
	s.sight(m)
	s.startGuest(m, g, struck(t.faults, FaultVMCrash))
	return nil
}

// prepareBoot applies pending changes and checks what a start needs.
func (s *Server) prepareBoot(c *call, t *task) (*machine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.get(c.node, c.vmid)
	if err != nil {
		return nil, err
	}
	s.applyPending(m)
	if err := s.checkDrives(m); err != nil {
		return nil, err
	}
	if s.model.NoOVMF && m.conf["bios"] == "ovmf" {
		return nil, dief("EFI base image '%s/OVMF_CODE.fd' not found", ovmfDir)
	}
	if err := s.reserve(m); err != nil {
		t.log = append(t.log, "kvm: cannot set up guest memory 'pc.ram': Cannot allocate memory")
		return nil, err
	}
	m.memory = m.memBytes()
	return m, nil
}

// checkDrives makes sure every volume is there, as activating them does, and
// writes the cloud-init drive anew; s.mu is held.
func (s *Server) checkDrives(m *machine) error {
	for opt, value := range m.conf {
		if !isDriveName(opt) {
			continue
		}
		d, err := parseDrive(value)
		if err != nil || d.file == "none" || d.file == "cdrom" {
			continue
		}
		_, v := s.volumeOf(m.node, d.file)
		if d.isCloudInit() && v != nil {
			if err := s.writeCloudInit(m, v); err != nil {
				return err
			}
			continue
		}
		if v == nil {
			return dief("volume '%s' does not exist", d.file)
		}
	}
	return nil
}

// reserve checks that the node has the memory and cores. Proxmox lets memory
// be promised twice, but QEMU fails when it is not there.
func (s *Server) reserve(m *machine) error {
	n := s.nodes[m.node]
	if n.Memory > 0 && s.load(m.node)+m.memBytes() > n.Memory {
		return dief("start failed: QEMU exited with code 1")
	}
	if n.CPUs > 0 && m.cpus() > n.CPUs {
		return dief("MAX %d vcpus allowed per VM on this node", n.CPUs)
	}
	return nil
}

func stopVM(s *Server, c *call) (any, error) {
	if err := rootOnly(c, "skiplock", "keepActive"); err != nil {
		return nil, err
	}
	if c.flag("overrule-shutdown") {
		s.cancelShutdowns(c)
	}
	return s.forkVM(c, "qmstop", func(_ context.Context, _ *task) error {
		run, err := s.pullPlug(c)
		run.awaitGone()
		return err
	})
}

// pullPlug ends a VM that runs; its process may still be ending.
func (s *Server) pullPlug(c *call) (*guestRun, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.get(c.node, c.vmid)
	if err != nil || !m.running {
		return nil, err
	}
	if !c.flag("skiplock") {
		if err := m.checkLock(); err != nil {
			return nil, err
		}
	}
	run := m.guest
	s.powerOff(m)
	return run, nil
}

// cancelShutdowns aborts the VM's running shutdown tasks that the caller may
// end.
func (s *Server) cancelShutdowns(c *call) {
	s.mu.Lock()
	var stop []*task
	for _, t := range s.taskOrder {
		if t.exit == "" && t.kind == "qmshutdown" && t.id == strconv.Itoa(c.vmid) && s.mayStopTask(c, t) {
			stop = append(stop, t)
		}
	}
	s.mu.Unlock()
	for _, t := range stop {
		t.cancel()
		<-t.done
	}
}

func shutdownVM(s *Server, c *call) (any, error) {
	if err := rootOnly(c, "skiplock", "keepActive"); err != nil {
		return nil, err
	}
	timeout := shutdownTimeout
	if c.has("timeout") {
		timeout = time.Duration(c.num("timeout")) * time.Second
	}
	return s.forkVM(c, "qmshutdown", func(ctx context.Context, _ *task) error {
		s.mu.Lock()
		m, err := s.get(c.node, c.vmid)
		if err == nil && m.running && !c.flag("skiplock") {
			err = m.checkLock()
		}
		if err != nil || !m.running {
			s.mu.Unlock()
			return err
		}
		run := m.guest
		s.mu.Unlock()
		if !s.askToPowerOff(ctx, run, timeout) && (!c.flag("forceStop") || ctx.Err() != nil) {
			return dief("VM quit/powerdown failed - got timeout")
		}
		s.mu.Lock()
		s.powerOff(m)
		s.mu.Unlock()
		run.awaitGone()
		return nil
	})
}

// askToPowerOff presses the power button and waits for the guest to follow.
func (s *Server) askToPowerOff(ctx context.Context, run *guestRun, timeout time.Duration) bool {
	takes := s.model.Delays.Shutdown
	if run == nil { // a VM of somebody else; it obeys
		return s.sleep(ctx, min(takes, timeout)) && takes <= timeout
	}
	if s.model.Guest.IgnoreShutdown {
		takes = never
	} else {
		takes = run.press(run)
	}
	timer := s.clk.NewTimer(min(takes, timeout))
	defer timer.Stop()
	select {
	case <-run.done: // it went down by itself
		return true
	case <-timer.C():
		return takes <= timeout
	case <-ctx.Done():
		return false
	}
}

// powerOff ends a VM's process; s.mu is held.
func (s *Server) powerOff(m *machine) {
	if !m.running {
		return
	}
	m.running, m.paused, m.pid, m.memory, m.started = false, false, 0, 0, time.Time{}
	if m.guest != nil {
		m.guest.kill()
		m.guest = nil
	}
	s.applyPending(m)
	s.sight(m)
}
