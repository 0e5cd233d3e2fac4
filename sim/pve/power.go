// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Timeouts of power operations.
const (
	configLockWait  = 10 * time.Second
	shutdownTimeout = 60 * time.Second
	// initStopTimeout is how long an init system waits for the end of a service before it kills the
	// service (DefaultTimeoutStopSec of systemd).
	initStopTimeout = 90 * time.Second
)

func powerRoutes() []route {
	power := requireAll("/vms/{vmid}", "VM.PowerMgmt")
	skip := schema{"skiplock": {kind: kBool}}
	start := skip.merge(schema{"timeout": {kind: kInt}, "machine": {check: newPropertyCheck(machineFormat)}, "force-cpu": {}})
	stop := skip.merge(schema{"timeout": {kind: kInt}, "keepActive": {kind: kBool}, "overrule-shutdown": {kind: kBool}})
	shutdown := skip.merge(schema{"timeout": {kind: kInt}, "forceStop": {kind: kBool}, "keepActive": {kind: kBool}})
	base := "/nodes/{node}/qemu/{vmid}/status/"
	return []route{
		newRoute(http.MethodPost, base+"start", ClassVM, power, start, startVM).asTask(),
		newRoute(http.MethodPost, base+"stop", ClassVM, power, stop, stopVM).asTask(),
		newRoute(http.MethodPost, base+"shutdown", ClassVM, power, shutdown, shutdownVM).asTask(),
	}
}

// requireRoot refuses options that only root itself can use.
func requireRoot(c *call, names ...string) error {
	for _, n := range names {
		if c.boolParam(n) && !c.auth.isRoot() {
			return newParamError(n, "Only root may use this option.")
		}
	}
	return nil
}

func startVM(s *Server, c *call) (any, error) {
	if err := requireRoot(c, "skiplock"); err != nil {
		return nil, err
	}
	return s.forkVM(c, "qmstart", func(ctx context.Context, t *task) error {
		if err := s.checkStart(c); err != nil {
			return err
		}
		if !s.sleep(ctx, s.model.Delays.Start) {
			return dief("start failed: got interrupted")
		}
		return s.bootVM(ctx, c, t)
	})
}

// forkVM starts a task that holds the VM's lock.
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

func (s *Server) checkStart(c *call) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.findVM(c.node, c.vmid)
	if err != nil {
		return err
	}
	if m.isTemplate() {
		return dief("you can't start a vm if it's a template")
	}
	if !c.boolParam("skiplock") {
		if err := m.checkLock(); err != nil {
			return err
		}
	}
	if m.running {
		return dief("VM %d already running", m.id)
	}
	return nil
}

// bootVM starts the VM. Its memory is reserved before its guest starts.
func (s *Server) bootVM(ctx context.Context, c *call, t *task) error {
	m, err := s.prepareBoot(c, t)
	if err != nil {
		return err
	}
	g, err := s.newGuest(ctx, m, t)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		m.memory, m.devices = 0, nil
		return err
	}
	m.running, m.pid, m.started = true, g.pid(), s.clk.Now()
	if m.pid == 0 {
		m.pid = s.newPID()
	}
	m.starts++
	s.initializeTPM(m)
	s.recordSighting(m)
	s.startGuest(m, g, findFault(t.faults, FaultVMCrash))
	return nil
}

// prepareBoot applies the pending changes, checks the conditions of a start and reserves the memory.
func (s *Server) prepareBoot(c *call, t *task) (*machine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.findVM(c.node, c.vmid)
	if err != nil {
		return nil, err
	}
	s.applyPending(m)
	if err := s.checkDrives(m); err != nil {
		return nil, err
	}
	if s.model.isMissing(MissingOVMF) && m.conf["bios"] == "ovmf" {
		return nil, dief("EFI base image '%s/OVMF_CODE.fd' not found", ovmfDir)
	}
	if err := s.checkCapacity(m); err != nil {
		t.log = append(t.log, "kvm: cannot set up guest memory 'pc.ram': Cannot allocate memory")
		return nil, err
	}
	if err := s.reserveHostPCI(m); err != nil {
		return nil, err
	}
	m.memory = m.memBytes()
	return m, nil
}

// checkDrives checks that each volume exists, as activating the volumes does, and generates the
// cloud-init drive again. The caller holds s.mu.
func (s *Server) checkDrives(m *machine) error {
	for opt, value := range m.conf {
		if !isDriveName(opt) {
			continue
		}
		d, err := parseDrive(value)
		if err != nil || d.file == "none" || d.file == "cdrom" {
			continue
		}
		_, v := s.findVolume(m.node, d.file)
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

// checkCapacity checks that the node has the memory and the cores for a VM. Proxmox VE allows
// overcommitted memory, but QEMU fails if the memory is not available.
func (s *Server) checkCapacity(m *machine) error {
	n := s.nodes[m.node]
	if n.Memory > 0 && s.usedMemory(m.node)+m.memBytes() > n.Memory {
		return dief("start failed: QEMU exited with code 1")
	}
	if n.CPUs > 0 && m.cpus() > n.CPUs {
		return dief("MAX %d vcpus allowed per VM on this node", n.CPUs)
	}
	return nil
}

func stopVM(s *Server, c *call) (any, error) {
	if err := requireRoot(c, "skiplock", "keepActive"); err != nil {
		return nil, err
	}
	var overruled []string
	if c.boolParam("overrule-shutdown") {
		overruled = s.cancelShutdowns(c)
	}
	return s.forkVM(c, "qmstop", func(_ context.Context, t *task) error {
		if len(overruled) > 0 {
			s.printf(t, "overruled qmshutdown tasks: %s", strings.Join(overruled, ", "))
		}
		run, err := s.stopNow(c)
		run.waitForExit()
		return err
	})
}

// stopNow ends a running VM without a shutdown of its guest and returns its run. The process of the
// run can still be ending.
func (s *Server) stopNow(c *call) (*guestRun, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.vms[c.vmid]
	if m == nil || m.node != c.node {
		return nil, newNoVMError(c.node, c.vmid)
	}
	if !m.running {
		return nil, nil //nolint:nilnil // nothing to wait for
	}
	if !c.boolParam("skiplock") {
		if err := m.checkLock(); err != nil {
			return nil, err
		}
	}
	run := m.guest
	s.powerOff(m)
	return run, nil
}

// cancelShutdowns cancels the VM's running shutdown tasks that the caller can stop.
func (s *Server) cancelShutdowns(c *call) (upids []string) {
	s.mu.Lock()
	var running []*task
	for _, t := range s.taskOrder {
		if t.isRunning() && t.kind == "qmshutdown" && t.id == strconv.Itoa(c.vmid) && s.canStopTask(c, t) {
			running = append(running, t)
		}
	}
	s.mu.Unlock()
	for _, t := range running {
		t.cancel()
		<-t.done
		upids = append(upids, t.upid)
	}
	return upids
}

func shutdownVM(s *Server, c *call) (any, error) {
	if err := requireRoot(c, "skiplock", "keepActive"); err != nil {
		return nil, err
	}
	timeout := shutdownTimeout
	if c.hasParam("timeout") {
		timeout = time.Duration(c.intParam("timeout")) * time.Second
	}
	return s.forkVM(c, "qmshutdown", func(ctx context.Context, t *task) error {
		m, run, err := s.findRun(c)
		if err != nil || m == nil {
			return err
		}
		s.logMissingAgent(ctx, t, m)
		switch isOff := s.requestPowerOff(ctx, run, timeout); {
		case isOff:
		case ctx.Err() != nil:
			return newInterruptError()
		case c.boolParam("forceStop"):
			s.printf(t, "VM still running - terminating now with SIGTERM")
		default:
			return newShutdownTimeoutError()
		}
		s.endRun(m, run)
		return nil
	})
}

func newShutdownTimeoutError() error { return dief("VM quit/powerdown failed - got timeout") }

// newInterruptError returns the exit status of a task that was stopped.
func newInterruptError() error { return dief("received interrupt") }

// logMissingAgent waits for the guest agent of a VM. If the agent does not respond, it logs that the VM is shut down by
// ACPI.
func (s *Server) logMissingAgent(ctx context.Context, t *task, m *machine) {
	s.mu.Lock()
	isMissing := s.isAgentMissing(m)
	s.mu.Unlock()
	if !isMissing {
		return
	}
	s.sleep(ctx, min(agentPingTimeout, s.model.Delays.Agent))
	s.printf(t, "QEMU Guest Agent is not running - VM %d qga command 'guest-ping' failed - got timeout", m.id)
}

// isAgentMissing reports whether a running VM has a guest agent that does not respond yet. The caller holds s.mu.
func (s *Server) isAgentMissing(m *machine) bool {
	if m.guest == nil || !isAgentEnabled(m.conf["agent"]) {
		return false
	}
	g, ok := m.guest.guest.(*simGuest)
	return ok && s.clk.Now().Before(g.agentAt)
}

// findRun returns the VM of a call and its run, or nil if the VM does not run. It returns an error if a task
// has locked the VM.
func (s *Server) findRun(c *call) (*machine, *guestRun, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.findVM(c.node, c.vmid)
	if err != nil || !m.running {
		return nil, nil, err
	}
	if !c.boolParam("skiplock") {
		if err := m.checkLock(); err != nil {
			return nil, nil, err
		}
	}
	return m, m.guest, nil
}

// endRun ends a VM and waits for the end of its process.
func (s *Server) endRun(m *machine, run *guestRun) {
	s.mu.Lock()
	s.powerOff(m)
	s.mu.Unlock()
	run.waitForExit()
}

// requestPowerOff presses the power button and waits until the guest has powered off. It returns
// false after the timeout or when ctx ends.
func (s *Server) requestPowerOff(ctx context.Context, run *guestRun, timeout time.Duration) bool {
	duration := s.model.Delays.Shutdown
	if run == nil { // a VM of the model has no guest and always powers off
		return s.sleep(ctx, min(duration, timeout)) && duration <= timeout
	}
	if s.model.Guest.IgnoreShutdown {
		duration = unlimited
	} else {
		duration = run.pressPowerButton(run)
	}
	timer := s.clk.NewTimer(min(duration, timeout))
	defer timer.Stop()
	select {
	case <-run.done: // the guest has powered off
		return true
	case <-timer.C():
		return duration <= timeout
	case <-ctx.Done():
		return false
	}
}

// powerOff ends a VM's process. The caller holds s.mu.
func (s *Server) powerOff(m *machine) {
	if !m.running {
		return
	}
	m.running, m.paused, m.pid, m.memory, m.started = false, false, 0, 0, time.Time{}
	m.devices = nil
	if m.guest != nil {
		m.guest.kill()
		m.guest = nil
	}
	s.applyPending(m)
	s.recordSighting(m)
}
