// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
	"fmt"
	"math"
	"os"
	"sync"
	"time"
)

// guest is what is inside of a running VM: a timer or a script, a program of
// this machine, or a machine of QEMU's.
type guest interface {
	// live is the guest's life. It returns when the guest has gone: true if it
	// ended by itself, false if run's context ended it.
	live(run *guestRun) (off bool)
	// press presses the power button, and gives the most that the guest then
	// takes to power off; [never] if that is for it to say.
	press(run *guestRun) time.Duration
	// agent runs a guest agent's command and gives what it returns. The error
	// is that of the API.
	agent(ctx context.Context, command string) (any, error)
	// pid is its process on this machine, which is gone when live has
	// returned; 0 if it has none.
	pid() int
}

// never is longer than any timeout.
const never = time.Duration(math.MaxInt64)

// guestRun is one boot of a VM, from start to power-off.
type guestRun struct {
	guest

	ctx    context.Context //nolint:containedctx // the life of the boot
	cancel context.CancelFunc
	done   chan struct{} // closed when the guest has gone
	log    *guestLog
}

func (r *guestRun) kill() { r.cancel() }

// awaitGone waits until the process of a guest that was killed has gone, so
// that its disks are free.
func (r *guestRun) awaitGone() {
	if r != nil && r.pid() != 0 {
		<-r.done
	}
}

// GuestVM is a booted VM as a guest script sees it.
type GuestVM struct {
	// Context ends when the VM is stopped.
	Context context.Context //nolint:containedctx // a value for callbacks
	VMID    int
	Name    string
	Node    string
	// Drive holds the files of the attached cloud-init drive or ISO by name;
	// nil when there is none.
	Drive map[string][]byte
	// Log is the VM's console.
	Log func(format string, args ...any)
}

// guestLog is a VM's console, kept over its boots up to a limit.
type guestLog struct {
	mu   sync.Mutex
	data []byte
	file string // also written there, if set
}

const maxGuestLog = 1 << 20

func (l *guestLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if room := maxGuestLog - len(l.data); room > 0 {
		fits := p[:min(len(p), room)]
		l.data = append(l.data, fits...)
		l.tee(fits)
	}
	return len(p), nil
}

// tee appends to the file. A console that can't be written is no reason to end
// a VM.
func (l *guestLog) tee(p []byte) {
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

// newGuest makes what is inside a VM, up to the point where the VM runs.
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

// console is a VM's log; s.mu is held.
func (s *Server) console(vmid int) *guestLog {
	if s.consoles[vmid] == nil {
		s.consoles[vmid] = &guestLog{}
		if s.host != nil {
			s.consoles[vmid].file = s.host.serialLog(vmid)
		}
	}
	return s.consoles[vmid]
}

// startGuest lets what is inside a VM live; s.mu is held.
func (s *Server) startGuest(m *machine, g guest, crash *faultRule) {
	ctx, cancel := context.WithCancel(s.ctx)
	run := &guestRun{guest: g, ctx: ctx, cancel: cancel, done: make(chan struct{}), log: s.console(m.id)}
	m.guest, m.last = run, run
	s.wg.Add(1)
	if crash != nil {
		s.wg.Add(1)
		go s.crash(m, run, s.model.Delays.Boot+crash.Delay)
	}
	go func() {
		defer s.wg.Done()
		defer cancel()
		off := run.live(run)
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

// crash ends a VM whatever its guest is doing.
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

// simGuest is a guest that is a script, stays up for a while, or for ever.
type simGuest struct {
	s       *Server
	m       *machine
	agentAt time.Time // when the agent starts to answer

	files map[string]string // written by the agent; guarded by Server.mu
	execs []execution       // done by the agent, by process id less one
}

func (g *simGuest) live(run *guestRun) bool {
	if !g.boot(run) {
		return false
	}
	switch cfg := g.s.model.Guest; {
	case cfg.Script != nil:
		cfg.Script(g.s.guestView(g.m, run))
		return run.ctx.Err() == nil
	case cfg.Kind == GuestScript:
		return g.s.sleep(run.ctx, cfg.StayUp)
	default:
		<-run.ctx.Done()
		return false
	}
}

// boot takes the time that booting takes.
func (g *simGuest) boot(run *guestRun) bool {
	if !g.s.sleep(run.ctx, g.s.model.Delays.Boot) {
		return false
	}
	run.log.printf("guest: booted %s", g.m.name0(g.s))
	return true
}

func (g *simGuest) press(*guestRun) time.Duration { return g.s.model.Delays.Shutdown }

func (g *simGuest) pid() int { return 0 }

func (m *machine) name0(s *Server) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return m.name()
}

func (s *Server) guestView(m *machine, run *guestRun) GuestVM {
	files, _ := s.driveFiles(m)
	s.mu.Lock()
	defer s.mu.Unlock()
	return GuestVM{
		Context: run.ctx, VMID: m.id, Name: m.name(), Node: m.node, Drive: files, Log: run.log.printf,
	}
}

// Console is what a VM's guests have written, over all its boots.
func (s *Server) Console(vmid int) string {
	s.mu.Lock()
	l := s.consoles[vmid]
	s.mu.Unlock()
	if l == nil {
		return ""
	}
	return l.String()
}

// Vanish takes a VM away at once, as a host that is installed anew does.
func (s *Server) Vanish(vmid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.vms[vmid]; m != nil {
		s.powerOff(m)
		s.remove(m)
	}
}

// PowerOff ends a VM from inside, as its guest would.
func (s *Server) PowerOff(vmid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.vms[vmid]; m != nil {
		s.powerOff(m)
	}
}
