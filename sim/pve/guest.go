// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"time"
)

// guest is the inside of a running VM: a timer or a script, a program on this machine, or a QEMU
// process.
type guest interface {
	// execute runs the guest and returns when the guest has ended. off is true if the guest ended by
	// itself, and false if run's context ended it.
	execute(run *guestRun) (off bool)
	// pressPowerButton presses the power button and returns how long the guest needs at most to
	// power off. It returns [unlimited] if that depends on the guest.
	pressPowerButton(run *guestRun) time.Duration
	// runAgentCommand runs a command of the guest agent and returns its result. The error is the one
	// of the API.
	runAgentCommand(ctx context.Context, command string) (any, error)
	// typeKeys writes to the VM's first serial port.
	typeKeys(run *guestRun, keys []byte) error
	// pid returns the guest's process id on this machine, or 0 if it has no process. The process has
	// ended when execute returns.
	pid() int
}

// unlimited is longer than any timeout.
const unlimited = time.Duration(math.MaxInt64)

// guestRun is one boot of a VM, from its start to its power-off.
type guestRun struct {
	guest

	ctx    context.Context //nolint:containedctx // ends with the boot
	cancel context.CancelFunc
	done   chan struct{} // closed when the guest has ended
	log    *guestLog
}

func (r *guestRun) kill() { r.cancel() }

// waitForExit waits until the process of a killed guest has ended, so that its disks are free.
func (r *guestRun) waitForExit() {
	if r != nil && r.pid() != 0 {
		<-r.done
	}
}

// GuestVM is a booted VM for a guest script.
type GuestVM struct {
	// Context ends when the VM is stopped.
	Context context.Context //nolint:containedctx // a value for callbacks
	VMID    int
	Name    string
	Node    string
	// Drive holds the files of the attached cloud-init drive or ISO by name. It is nil if there is
	// none.
	Drive map[string][]byte
	// Log writes to the VM's console.
	Log func(format string, args ...any)
}

// guestLog is a VM's console. It holds the output of all boots up to a limit.
type guestLog struct {
	mu   sync.Mutex
	data []byte
	file string // a file that receives the output too, if set
	// terminal receives the output while a terminal is open.
	terminal chan<- []byte
}

const maxGuestLog = 1 << 20

// attach connects a terminal, and reports whether no other terminal is connected.
func (l *guestLog) attach(terminal chan<- []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.terminal != nil {
		return false
	}
	l.terminal = terminal
	return true
}

// detach disconnects the terminal.
func (l *guestLog) detach() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.terminal = nil
}

func (l *guestLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.terminal != nil {
		select {
		case l.terminal <- slices.Clone(p):
		default: // a guest does not wait for a terminal that does not read
		}
	}
	if free := maxGuestLog - len(l.data); free > 0 {
		fits := p[:min(len(p), free)]
		l.data = append(l.data, fits...)
		l.appendToFile(fits)
	}
	return len(p), nil
}

// appendToFile appends to the file. It ignores errors, because a VM must run even if its console
// can't be written.
func (l *guestLog) appendToFile(p []byte) {
	if l.file == "" {
		return
	}
	f, err := os.OpenFile(l.file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	_, _ = f.Write(p)
	_ = f.Close()
}

func (l *guestLog) printf(format string, args ...any) { _, _ = fmt.Fprintf(l, format+"\n", args...) }

func (l *guestLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.data)
}

// newGuest creates the guest of a VM and returns when the VM runs.
func (s *Server) newGuest(ctx context.Context, m *machine, t *task) (guest, error) {
	if s.host != nil {
		return s.startQEMU(ctx, m, t)
	}
	base := simGuest{s: s, m: m, agentAt: s.clk.Now().Add(s.model.Delays.Boot + s.model.Delays.Agent)}
	if g := s.model.Guest; g.Script == nil && g.Kind == GuestExec {
		return &execGuest{simGuest: base}, nil
	}
	return &base, nil
}

// ensureConsole returns a VM's console, which it creates if necessary. The caller holds s.mu.
func (s *Server) ensureConsole(vmid int) *guestLog {
	if s.consoles[vmid] == nil {
		s.consoles[vmid] = &guestLog{}
		if s.host != nil {
			s.consoles[vmid].file = s.host.serialLogPath(vmid)
		}
	}
	return s.consoles[vmid]
}

// startGuest runs the guest of a VM in a goroutine. The caller holds s.mu.
func (s *Server) startGuest(m *machine, g guest, crash *faultRule) {
	ctx, cancel := context.WithCancel(s.ctx)
	run := &guestRun{guest: g, ctx: ctx, cancel: cancel, done: make(chan struct{}), log: s.ensureConsole(m.id)}
	m.guest, m.lastRun = run, run
	s.wg.Add(1)
	if crash != nil {
		s.wg.Add(1)
		go s.crash(m, run, s.model.Delays.Boot+crash.Delay)
	}
	go func() {
		defer s.wg.Done()
		defer cancel()
		off := run.execute(run)
		close(run.done)
		if !off {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if m.guest == run {
			s.powerOff(m)
		}
	}()
}

// crash ends a VM after a delay, whatever its guest does.
func (s *Server) crash(m *machine, run *guestRun, after time.Duration) {
	defer s.wg.Done()
	if !s.sleep(run.ctx, after) {
		return
	}
	run.log.printf("guest: crashed")
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.guest == run {
		s.crashes++
		s.powerOff(m)
	}
}

// simGuest is a guest that runs a script, or that stays up for a time or forever.
type simGuest struct {
	s       *Server
	m       *machine
	agentAt time.Time // the time from which the agent responds

	files map[string]string // the files that the agent has written; guarded by Server.mu
	execs []execution       // the programs that the agent has run, by process id minus one
}

func (g *simGuest) execute(run *guestRun) bool {
	if !g.waitForBoot(run) {
		return false
	}
	switch cfg := g.s.model.Guest; {
	case cfg.Script != nil:
		cfg.Script(g.s.newGuestVM(g.m, run))
		return run.ctx.Err() == nil
	case cfg.Kind == GuestScript:
		return g.s.sleep(run.ctx, cfg.StayUp)
	default:
		<-run.ctx.Done()
		return false
	}
}

// waitForBoot waits for the time of booting. It returns false if run's context ends first.
func (g *simGuest) waitForBoot(run *guestRun) bool {
	if !g.s.sleep(run.ctx, g.s.model.Delays.Boot) {
		return false
	}
	run.log.printf("guest: booted %s", g.m.readName(g.s))
	return true
}

func (g *simGuest) pressPowerButton(*guestRun) time.Duration { return g.s.model.Delays.Shutdown }

func (g *simGuest) pid() int { return 0 }

// typeKeys echoes the keys, as the terminal of a login prompt does.
func (g *simGuest) typeKeys(run *guestRun, keys []byte) error {
	_, err := run.log.Write(bytes.ReplaceAll(keys, []byte("\r"), []byte("\r\n")))
	return err
}

// readName takes the lock and returns the name of the VM.
func (m *machine) readName(s *Server) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return m.name()
}

func (s *Server) newGuestVM(m *machine, run *guestRun) GuestVM {
	files, _ := s.readCloudInitDrive(m)
	s.mu.Lock()
	defer s.mu.Unlock()
	return GuestVM{
		Context: run.ctx, VMID: m.id, Name: m.name(), Node: m.node, Drive: files, Log: run.log.printf,
	}
}

// Console returns the output of a VM's guests over all boots.
func (s *Server) Console(vmid int) string {
	s.mu.Lock()
	l := s.consoles[vmid]
	s.mu.Unlock()
	if l == nil {
		return ""
	}
	return l.String()
}

// DeleteVM deletes a VM at once, as the reinstallation of a host does.
func (s *Server) DeleteVM(vmid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.vms[vmid]; m != nil {
		s.powerOff(m)
		s.deleteVMLocked(m)
	}
}

// PowerOff ends a VM, as a shutdown from inside its guest does.
func (s *Server) PowerOff(vmid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.vms[vmid]; m != nil {
		s.powerOff(m)
	}
}
