// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// guestRun is one boot of a VM, from start to power-off.
type guestRun struct {
	ctx     context.Context //nolint:containedctx // the life of the boot
	cancel  context.CancelFunc
	done    chan struct{} // closed when the guest has gone
	agentAt time.Time     // when the agent starts to answer; guarded by Server.mu
	group   int           // process group of its program, if it runs one; guarded by Server.mu
	log     *guestLog
}

func (r *guestRun) kill() { r.cancel() }

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
}

const maxGuestLog = 1 << 20

func (l *guestLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if room := maxGuestLog - len(l.data); room > 0 {
		l.data = append(l.data, p[:min(len(p), room)]...)
	}
	return len(p), nil
}

func (l *guestLog) printf(format string, args ...any) { _, _ = fmt.Fprintf(l, format+"\n", args...) }

func (l *guestLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.data)
}

// startGuest boots what is inside a VM; s.mu is held.
func (s *Server) startGuest(m *machine, crash *faultRule) {
	ctx, cancel := context.WithCancel(s.ctx)
	if s.consoles[m.id] == nil {
		s.consoles[m.id] = &guestLog{}
	}
	run := &guestRun{ctx: ctx, cancel: cancel, done: make(chan struct{}), log: s.consoles[m.id]}
	run.agentAt = s.clk.Now().Add(s.model.Delays.Boot + s.model.Delays.Agent)
	m.guest, m.last = run, run
	s.wg.Add(1)
	if crash != nil {
		s.wg.Add(1)
		go s.crash(m, run, s.model.Delays.Boot+crash.Delay)
	}
	go func() {
		defer s.wg.Done()
		defer cancel()
		off := s.live(m, run)
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

// live is the life of a guest; it tells whether the guest powers off itself.
func (s *Server) live(m *machine, run *guestRun) bool {
	if !s.sleep(run.ctx, s.model.Delays.Boot) {
		return false
	}
	run.log.printf("guest: booted %s", m.name0(s))
	g := s.model.Guest
	switch {
	case g.Script != nil:
		g.Script(s.guestView(m, run))
		return run.ctx.Err() == nil
	case g.Kind == GuestScript:
		return s.sleep(run.ctx, g.StayUp)
	case g.Kind == GuestExec:
		s.execGuest(m, run)
		return run.ctx.Err() == nil
	default:
		<-run.ctx.Done()
		return false
	}
}

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

// PowerOff ends a VM from inside, as its guest would.
func (s *Server) PowerOff(vmid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.vms[vmid]; m != nil {
		s.powerOff(m)
	}
}
