// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// The exit statuses of a task.
const (
	taskOK         = "OK"
	taskUnexpected = "unexpected status"
)

// task is one worker task of a node.
type task struct {
	upid     string
	node     string
	pid      int
	pstart   int
	start    time.Time
	end      time.Time
	kind     string
	id       string
	user     string
	tokenID  string
	exit     string // the exit status, set when the task ends
	log      []string
	lost     bool // the log is lost, and the exit status is unknown
	warnings int
	cancel   context.CancelFunc
	done     chan struct{}
	faults   []*faultRule
}

func (t *task) isRunning() bool { return t.exit == "" }

// printf adds a line to the task's log.
func (s *Server) printf(t *task, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.log = append(t.log, fmt.Sprintf(format, args...))
}

// log adds lines to the log of the call's task, if it has one. The caller holds Server.mu.
func (c *call) log(lines ...string) {
	if c.task != nil {
		c.task.log = append(c.task.log, lines...)
	}
}

// warnf adds a warning to the task's log. A task with warnings ends with the exit status WARNINGS.
func (s *Server) warnf(t *task, format string, args ...any) {
	s.printf(t, "WARN: "+format, args...)
	s.mu.Lock()
	defer s.mu.Unlock()
	t.warnings++
}

// fork starts a task and returns its UPID without waiting for its end.
func (s *Server) fork(c *call, kind, id string, work func(context.Context, *task) error) (any, error) {
	ctx, cancel := context.WithCancel(s.ctx)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		cancel()
		return nil, dief("fork failed: shutting down")
	}
	t := s.newTask(c, kind, id)
	t.cancel = cancel
	s.wg.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.wg.Done()
		defer cancel()
		s.finishTask(t, s.runTask(ctx, t, work))
	}()
	return t.upid, nil
}

// newTask registers a task. The caller holds s.mu.
func (s *Server) newTask(c *call, kind, id string) *task {
	s.nextPID++
	now := s.clk.Now()
	t := &task{
		node: c.node, pid: s.nextPID, pstart: 100_000 + s.nextPID, start: now,
		kind: kind, id: id, done: make(chan struct{}), faults: c.faults,
	}
	user := c.auth.principal()
	t.user, t.tokenID, _ = strings.Cut(user, "!")
	t.upid = fmt.Sprintf("UPID:%s:%08X:%08X:%08X:%s:%s:%s:",
		t.node, t.pid, t.pstart, now.Unix(), kind, id, user)
	s.tasks[t.upid] = t
	s.taskOrder = append(s.taskOrder, t)
	c.upid, c.task = t.upid, t
	return t
}

// runTask does the work of a task and applies the task's faults.
func (s *Server) runTask(ctx context.Context, t *task, work func(context.Context, *task) error) error {
	for _, f := range t.faults {
		if err := f.applyBeforeTask(ctx, s, t); err != nil {
			return err
		}
	}
	err := work(ctx, t)
	for _, f := range t.faults {
		err = f.applyAfterTask(s, t, err)
	}
	if err == nil && ctx.Err() != nil {
		return dief("interrupted by signal")
	}
	return err
}

func (s *Server) finishTask(t *task, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.end = s.clk.Now()
	switch {
	case err != nil:
		t.exit = errorReason(err)
		t.log = append(t.log, "TASK ERROR: "+t.exit)
	case t.warnings > 0:
		t.exit = fmt.Sprintf("WARNINGS: %d", t.warnings)
		t.log = append(t.log, "TASK "+t.exit)
	default:
		t.exit = taskOK
		t.log = append(t.log, "TASK OK")
	}
	if t.lost {
		t.exit = taskUnexpected
		t.log = nil
	}
	close(t.done)
}

// sleep waits on the injected clock. It returns false if ctx ended before the time was over.
func (s *Server) sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := s.clk.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}
