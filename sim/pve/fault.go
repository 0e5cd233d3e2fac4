// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strconv"
	"time"
)

// The statuses of the node-to-node proxy (AnyEvent::HTTP).
const (
	statusProxy        = 595
	statusProxyTimeout = 596
)

// FaultKind says what goes wrong.
type FaultKind string

// What can go wrong.
const (
	// FaultError answers Status and Reason instead of doing the call.
	FaultError FaultKind = "error"
	// FaultSlow waits Delay before the call is done.
	FaultSlow FaultKind = "slow"
	// FaultLockTimeout answers that the VM's lock could not be had.
	FaultLockTimeout FaultKind = "lock-timeout"
	// FaultTaskLock lets the task fail that way, after Delay.
	FaultTaskLock FaultKind = "task-lock"
	// FaultTaskError lets the task fail with Reason, after Delay, undone.
	FaultTaskError FaultKind = "task-error"
	// FaultWarnings lets a task that succeeds end as "WARNINGS: 1".
	FaultWarnings FaultKind = "warnings"
	// FaultTaskLost does the work, but the task ends as "unexpected status"
	// and its log is gone.
	FaultTaskLost FaultKind = "task-lost"
	// FaultTaskKilled loses the task and does not do the work.
	FaultTaskKilled FaultKind = "task-killed"
	// FaultHalfClone kills a clone half-way: the VM stays, locked.
	FaultHalfClone FaultKind = "half-clone"
	// FaultCutConnection does the call and closes the connection unanswered.
	FaultCutConnection FaultKind = "cut-connection"
	// FaultUnauthorized answers 401, as an expired ticket.
	FaultUnauthorized FaultKind = "unauthorized"
	// FaultNodeDown answers 595 after Delay without doing the call.
	FaultNodeDown FaultKind = "node-down"
	// FaultProxyTimeout does the call and answers 596 after Delay.
	FaultProxyTimeout FaultKind = "proxy-timeout"
	// FaultStale answers cluster/resources out of the last broadcast although
	// a new one is due.
	FaultStale FaultKind = "stale"
	// FaultStorageFull lets clones and uploads run out of space.
	FaultStorageFull FaultKind = "storage-full"
	// FaultVMCrash ends a VM Delay after it was started.
	FaultVMCrash FaultKind = "vm-crash"

	// The following are states of Node, from the rule's addition to its
	// removal; [Outage] has their delays.

	// FaultNodeHung stops a node's programs: the others call it offline, keep
	// what it reported last for some minutes, and calls for it time out (596).
	FaultNodeHung FaultKind = "node-hung"
	// FaultNodeCut pulls a node's network cable: calls for it answer 595.
	FaultNodeCut FaultKind = "node-cut"
	// FaultNodeLost is a node that is gone for good: an administrator has removed it
	// from the cluster, and its VMs with it. It stays gone when the rule is removed.
	FaultNodeLost FaultKind = "node-lost"
	// FaultNoReports lets a node's status daemon stand still, and what it
	// reported be too old to count. The node works.
	FaultNoReports FaultKind = "no-reports"
)

// Fault is a rule. Empty conditions match everything.
type Fault struct { //nolint:recvcheck // a value encodes itself, a pointer decodes
	Kind FaultKind `json:"kind"`
	// Method is the HTTP method, Path a pattern as of path.Match, relative to
	// /api2/json, such as /nodes/*/qemu/*/clone.
	Method string `json:"method"`
	Path   string `json:"path"`
	Node   string `json:"node"`
	// VMID matches the VM of the path, for a clone also the new one.
	VMID int `json:"vmid"`
	// Probability is in (0, 1]; 0 means 1.
	Probability float64 `json:"probability"`
	// Count is how often the rule strikes at most; 0 means without end.
	Count int           `json:"count"`
	Delay time.Duration `json:"delay"`
	// Status and Reason are what FaultError answers; Reason is also used by
	// FaultTaskError.
	Status int    `json:"status"`
	Reason string `json:"reason"`
}

// Validate reports what is wrong with a rule.
func (f Fault) Validate() error {
	kinds := []FaultKind{
		FaultError, FaultSlow, FaultLockTimeout, FaultTaskLock, FaultTaskError, FaultWarnings, FaultTaskLost,
		FaultTaskKilled, FaultHalfClone, FaultCutConnection, FaultUnauthorized, FaultNodeDown, FaultProxyTimeout,
		FaultStale, FaultStorageFull, FaultVMCrash,
	}
	kinds = append(kinds, nodeFaults()...)
	if slices.Contains(nodeFaults(), f.Kind) && f.Node == "" {
		return fmt.Errorf("fault %s: name its node", f.Kind)
	}
	if !slices.Contains(kinds, f.Kind) {
		return fmt.Errorf("fault: unknown kind %q (one of %v)", f.Kind, kinds)
	}
	if _, err := path.Match(f.Path, "/"); err != nil {
		return fmt.Errorf("fault %s: path %q: %w", f.Kind, f.Path, err)
	}
	if f.Probability < 0 || f.Probability > 1 {
		return fmt.Errorf("fault %s: probability %g is not between 0 and 1", f.Kind, f.Probability)
	}
	if f.Kind == FaultError && f.Status != 0 && (f.Status < 400 || f.Status > 599) {
		return fmt.Errorf("fault %s: status %d is no error", f.Kind, f.Status)
	}
	return nil
}

// faultRule is a fault in force.
type faultRule struct {
	Fault
	left int // strikes left; negative without end
}

// AddFault puts a rule in force; remove takes it away.
func (s *Server) AddFault(f Fault) (remove func()) {
	r := &faultRule{Fault: f, left: f.Count}
	if f.Count == 0 {
		r.left = -1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, r)
	if slices.Contains(nodeFaults(), f.Kind) {
		s.setTrouble(f.Node, f.Kind)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.endTrouble(r)
		s.faults = slices.DeleteFunc(s.faults, func(x *faultRule) bool { return x == r })
	}
}

// ClearFaults removes every rule.
func (s *Server) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.faults {
		s.endTrouble(r)
	}
	s.faults = nil
}

// endTrouble ends what a rule has brought on a node; s.mu is held.
func (s *Server) endTrouble(r *faultRule) {
	if n := s.nodes[r.Node]; n != nil && n.trouble == r.Kind {
		s.setTrouble(r.Node, "")
	}
}

// Faults are the rules in force.
func (s *Server) Faults() []Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []Fault{}
	for _, f := range s.faults {
		if f.left != 0 {
			out = append(out, f.Fault)
		}
	}
	return out
}

func (f *faultRule) reasonOr(text string) string {
	if f.Reason != "" {
		return f.Reason
	}
	return text
}

// applies tells whether a kind of fault can hit a call at all, so that rules
// without a path do not waste their count.
func (f *faultRule) applies(c *call) bool {
	if c.route == nil {
		return false
	}
	last := c.route.pattern[len(c.route.pattern)-1]
	switch f.Kind {
	case FaultHalfClone:
		return last == "clone"
	case FaultStorageFull:
		return last == "clone" || last == "upload"
	case FaultVMCrash:
		return last == "start"
	case FaultStale:
		return last == "resources"
	case FaultLockTimeout:
		return c.vmid != 0 && isWrite(c.method)
	case FaultTaskLock, FaultTaskError, FaultWarnings, FaultTaskLost, FaultTaskKilled:
		return c.route.forks
	default:
		return true
	}
}

func (f *faultRule) matches(c *call) bool {
	if f.left == 0 || !f.applies(c) {
		return false
	}
	if f.Method != "" && f.Method != c.method || f.Node != "" && f.Node != c.node {
		return false
	}
	if ok, _ := path.Match(f.Path, c.path); f.Path != "" && !ok {
		return false
	}
	return f.VMID == 0 || f.VMID == c.vmid || strconv.Itoa(f.VMID) == c.params["newid"]
}

// matchFaults are the rules that strike a call, of the given kinds.
func (s *Server) matchFaults(c *call, kinds ...FaultKind) []*faultRule {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*faultRule
	for _, f := range s.faults {
		if !slices.Contains(kinds, f.Kind) || !f.matches(c) {
			continue
		}
		if f.Probability > 0 && s.rng.Float64() >= f.Probability {
			continue
		}
		if f.left > 0 {
			f.left--
		}
		out = append(out, f)
	}
	return out
}

// faultsBefore lets faults strike before a call is done and notes those that
// strike later.
func (s *Server) faultsBefore(c *call) error {
	struck := s.matchFaults(c, FaultError, FaultSlow, FaultLockTimeout, FaultNodeDown)
	for _, f := range struck {
		if !s.sleep(c.ctx, f.Delay) {
			return errGone
		}
		switch f.Kind {
		case FaultError:
			status := f.Status
			if status == 0 {
				status = http.StatusInternalServerError
			}
			return &apiError{status: status, reason: f.reasonOr("got no worker upid - start worker failed")}
		case FaultLockTimeout:
			return lockTimeout(c.vmid)
		case FaultNodeDown:
			return &apiError{status: statusProxy, reason: f.reasonOr("No route to host")}
		default:
		}
	}
	c.faults = s.matchFaults(c, FaultTaskLock, FaultTaskError, FaultWarnings, FaultTaskLost, FaultTaskKilled,
		FaultHalfClone, FaultCutConnection, FaultProxyTimeout, FaultStale, FaultStorageFull, FaultVMCrash)
	return nil
}

// struck finds a fault of a kind among those that hit a call or task.
func struck(faults []*faultRule, kind FaultKind) *faultRule {
	for _, f := range faults {
		if f.Kind == kind {
			return f
		}
	}
	return nil
}

var errKilled = errors.New("worker killed")

func (f *faultRule) beforeTask(ctx context.Context, s *Server, t *task) error {
	switch f.Kind {
	case FaultTaskLock:
		s.sleep(ctx, f.Delay)
		vmid, _ := strconv.Atoi(t.id)
		return lockTimeout(vmid)
	case FaultTaskError:
		s.sleep(ctx, f.Delay)
		return dief("%s", f.reasonOr("got no worker upid - start worker failed"))
	case FaultTaskKilled:
		s.sleep(ctx, f.Delay)
		s.mu.Lock()
		t.lost = true
		s.mu.Unlock()
		return errKilled
	default:
		return nil
	}
}

func (f *faultRule) afterTask(s *Server, t *task, err error) error {
	switch f.Kind {
	case FaultWarnings:
		if err == nil {
			s.warnf(t, "%s", f.reasonOr("injected"))
		}
	case FaultTaskLost, FaultHalfClone:
		s.mu.Lock()
		t.lost = true
		s.mu.Unlock()
	default:
	}
	return err
}
