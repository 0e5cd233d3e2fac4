// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import "strings"

// Class says what a call costs its cluster.
type Class string

// The classes of calls.
const (
	// ClassListing is one answer about many things: cluster/resources, the storages
	// of a node, what a storage holds.
	ClassListing Class = "listing"
	// ClassTask polls a task.
	ClassTask Class = "task"
	// ClassVM concerns one VM.
	ClassVM Class = "vm"
	// ClassStorage writes to a storage or removes from it.
	ClassStorage Class = "storage"
	// ClassOther is everything else: version, access, nodes, pools.
	ClassOther Class = "other"
)

// Phase says when a hook runs.
type Phase string

// The phases of a call.
const (
	// Before is when the call has arrived and nothing was done yet.
	Before Phase = "before"
	// After is when its effect is there and no answer was sent yet.
	After Phase = "after"
)

// Call is what a hook and the call log see of one request.
type Call struct {
	// Seq numbers the calls from 1.
	Seq    int64  `json:"seq"`
	Phase  Phase  `json:"phase,omitempty"`
	Method string `json:"method"`
	// Path is relative to /api2/json.
	Path  string `json:"path"`
	Node  string `json:"node,omitempty"`
	VMID  int    `json:"vmid,omitempty"`
	Class Class  `json:"class"`
	// User is who called (user or token), known After.
	User string `json:"user,omitempty"`
	// Status and Reason are the answer, known After.
	Status int    `json:"status,omitempty"`
	Reason string `json:"reason,omitempty"`
	// UPID is the task the call started.
	UPID string `json:"upid,omitempty"`
}

// callLog keeps what was called.
type callLog struct {
	seq        int64
	calls      []Call
	violations []Violation
}

// Violation is something no correct client does.
type Violation struct {
	Call Call   `json:"call"`
	What string `json:"what"`
}

// maxCalls bounds the log; the counts go on.
const maxCalls = 100_000

// OnCall runs f before and after every call, in the call's own goroutine: as
// long as f blocks, the call waits. It returns what removes the hook.
func (s *Server) OnCall(f func(Call)) (remove func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.nextHook
	s.nextHook++
	s.hooks[id] = f
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.hooks, id)
	}
}

func (s *Server) runHooks(c Call) {
	s.mu.Lock()
	hooks := make([]func(Call), 0, len(s.hooks))
	for id := range s.nextHook {
		if h := s.hooks[id]; h != nil {
			hooks = append(hooks, h)
		}
	}
	s.mu.Unlock()
	for _, h := range hooks {
		h(c)
	}
}

func (c *call) record() Call {
	out := Call{Seq: c.id, Method: c.method, Path: c.path, Node: c.node, VMID: c.vmid, Class: ClassOther, UPID: c.upid}
	if c.route != nil {
		out.Class = c.route.class
		if !strings.Contains(strings.Join(c.route.pattern, "/"), "{node}") {
			out.Node = ""
		}
	}
	return out
}

func (s *Server) callStarts(c *call) {
	s.mu.Lock()
	s.calls.seq++
	c.id = s.calls.seq
	s.mu.Unlock()
	rec := c.record()
	rec.Phase = Before
	s.runHooks(rec)
}

func (s *Server) callDone(c *call, err error) {
	if c.id == 0 {
		return
	}
	rec := c.record()
	rec.User = c.auth.principal()
	rec.Status = 200
	if err != nil {
		rec.Status, rec.Reason = 500, reasonOf(err)
		if e, ok := err.(*apiError); ok { //nolint:errorlint // handlers return it bare
			rec.Status = e.status
		}
	}
	s.mu.Lock()
	if len(s.calls.calls) < maxCalls {
		s.calls.calls = append(s.calls.calls, rec)
	}
	s.mu.Unlock()
	rec.Phase = After
	s.runHooks(rec)
}

// Calls is the log of finished calls, oldest first.
func (s *Server) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Call(nil), s.calls.calls...)
}

// ResetCalls empties the call log; numbering goes on.
func (s *Server) ResetCalls() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls.calls = nil
}

// CallCounts sums the call log.
type CallCounts struct {
	Total   int           `json:"total"`
	ByClass map[Class]int `json:"byClass"`
	ByVM    map[int]int   `json:"byVM"`
	Errors  int           `json:"errors"`
}

// Counts sums the call log by class and VM.
func (s *Server) Counts() CallCounts {
	out := CallCounts{ByClass: map[Class]int{}, ByVM: map[int]int{}}
	for _, c := range s.Calls() {
		out.Total++
		out.ByClass[c.Class]++
		if c.VMID != 0 {
			out.ByVM[c.VMID]++
		}
		if c.Status >= 400 {
			out.Errors++
		}
	}
	return out
}

func (s *Server) violate(c *call, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls.violations = append(s.calls.violations, Violation{Call: c.record(), What: what})
}

// Violations are the calls no correct client makes, oldest first.
func (s *Server) Violations() []Violation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Violation(nil), s.calls.violations...)
}
