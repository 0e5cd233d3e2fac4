// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import "strings"

// Class is the class of a call, by the load that it causes on the cluster.
type Class string

// The classes of calls.
const (
	// ClassListing lists many objects in one response: cluster/resources, the storages of a node,
	// the content of a storage.
	ClassListing Class = "listing"
	// ClassTask polls a task.
	ClassTask Class = "task"
	// ClassVM concerns one VM.
	ClassVM Class = "vm"
	// ClassStorage writes to a storage or deletes from it.
	ClassStorage Class = "storage"
	// ClassOther is any other call: version, access, nodes, pools.
	ClassOther Class = "other"
)

// Phase is the phase of a call in which a hook runs.
type Phase string

// The phases of a call.
const (
	// PhaseBefore is the time when the call has arrived and has had no effect yet.
	PhaseBefore Phase = "before"
	// PhaseAfter is the time when the call has had its effect and no response has been sent yet.
	PhaseAfter Phase = "after"
)

// Call is the record of one request for hooks and for the call log.
type Call struct {
	// Seq numbers the calls, starting at 1.
	Seq    int64  `json:"seq"`
	Phase  Phase  `json:"phase,omitempty"`
	Method string `json:"method"`
	// Path is relative to /api2/json.
	Path  string `json:"path"`
	Node  string `json:"node,omitempty"`
	VMID  int    `json:"vmid,omitempty"`
	Class Class  `json:"class"`
	// User is the caller (a user or a token), set in PhaseAfter.
	User string `json:"user,omitempty"`
	// Status and Reason describe the response, set in PhaseAfter.
	Status int    `json:"status,omitempty"`
	Reason string `json:"reason,omitempty"`
	// UPID is the task that the call has started.
	UPID string `json:"upid,omitempty"`
}

// callLog holds the finished calls and the violations.
type callLog struct {
	seq        int64
	calls      []Call
	violations []Violation
}

// Violation is a call that no correct client makes.
type Violation struct {
	Call    Call   `json:"call"`
	Message string `json:"what"`
}

// maxCalls is the maximum length of the call log. Later calls are not logged, and [Server.Counts]
// does not count them.
const maxCalls = 100_000

// OnCall runs f before and after every call in the call's own goroutine. The call waits while f
// blocks. OnCall returns a function that removes the hook.
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

func (c *call) toCall() Call {
	out := Call{Seq: c.id, Method: c.method, Path: c.path, Node: c.node, VMID: c.vmid, Class: ClassOther, UPID: c.upid}
	if c.route != nil {
		out.Class = c.route.class
		if !strings.Contains(strings.Join(c.route.pattern, "/"), "{node}") {
			out.Node = ""
		}
	}
	return out
}

func (s *Server) recordCallStart(c *call) {
	s.mu.Lock()
	s.calls.seq++
	c.id = s.calls.seq
	s.mu.Unlock()
	rec := c.toCall()
	rec.Phase = PhaseBefore
	s.runHooks(rec)
}

func (s *Server) recordCallEnd(c *call, err error) {
	if c.id == 0 {
		return
	}
	rec := c.toCall()
	rec.User = c.auth.principal()
	rec.Status = 200
	if err != nil {
		rec.Status, rec.Reason = 500, errorReason(err)
		if e, ok := err.(*apiError); ok { //nolint:errorlint // handlers do not wrap it
			rec.Status = e.status
		}
	}
	s.mu.Lock()
	if len(s.calls.calls) < maxCalls {
		s.calls.calls = append(s.calls.calls, rec)
	}
	s.mu.Unlock()
	rec.Phase = PhaseAfter
	s.runHooks(rec)
}

// Calls returns the log of finished calls, oldest first.
func (s *Server) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Call(nil), s.calls.calls...)
}

// ResetCalls empties the call log. The numbering continues.
func (s *Server) ResetCalls() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls.calls = nil
}

// CallCounts summarizes the call log.
type CallCounts struct {
	Total   int           `json:"total"`
	ByClass map[Class]int `json:"byClass"`
	ByVM    map[int]int   `json:"byVM"`
	Errors  int           `json:"errors"`
}

// Counts counts the calls of the log by class and by VM.
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

func (s *Server) recordViolation(c *call, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls.violations = append(s.calls.violations, Violation{Call: c.toCall(), Message: message})
}

// Violations returns the calls that no correct client makes, oldest first.
func (s *Server) Violations() []Violation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Violation(nil), s.calls.violations...)
}
