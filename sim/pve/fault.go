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

// The error statuses of the node-to-node proxy (AnyEvent::HTTP).
const (
	statusProxyError   = 595
	statusProxyTimeout = 596
)

// FaultKind is the kind of a fault.
type FaultKind string

// The kinds of faults.
const (
	// FaultError returns Status and Reason and does not run the call.
	FaultError FaultKind = "error"
	// FaultSlow waits for Delay before the call runs.
	FaultSlow FaultKind = "slow"
	// FaultLockTimeout returns a timeout of the VM's lock.
	FaultLockTimeout FaultKind = "lock-timeout"
	// FaultTaskLock makes the task fail with a timeout of the VM's lock after Delay.
	FaultTaskLock FaultKind = "task-lock"
	// FaultTaskError makes the task fail with Reason after Delay, without doing its work.
	FaultTaskError FaultKind = "task-error"
	// FaultWarnings makes a successful task end with "WARNINGS: 1".
	FaultWarnings FaultKind = "warnings"
	// FaultTaskLost does the work of the task, but the task ends with "unexpected status", and its
	// log is lost.
	FaultTaskLost FaultKind = "task-lost"
	// FaultTaskKilled does not do the work of the task. The task ends as with FaultTaskLost, after
	// Delay.
	FaultTaskKilled FaultKind = "task-killed"
	// FaultHalfClone kills a clone task halfway. The new VM remains and is locked.
	FaultHalfClone FaultKind = "half-clone"
	// FaultCutConnection runs the call and closes the connection without a response.
	FaultCutConnection FaultKind = "cut-connection"
	// FaultUnauthorized returns 401, as for an expired ticket.
	FaultUnauthorized FaultKind = "unauthorized"
	// FaultNodeDown returns 595 after Delay and does not run the call.
	FaultNodeDown FaultKind = "node-down"
	// FaultProxyTimeout runs the call and returns 596 after Delay.
	FaultProxyTimeout FaultKind = "proxy-timeout"
	// FaultStale makes cluster/resources and pools use an older broadcast, although a newer one exists.
	FaultStale FaultKind = "stale"
	// FaultStorageFull makes clones and uploads fail because the storage is full.
	FaultStorageFull FaultKind = "storage-full"
	// FaultVMCrash ends a VM at Delay after its boot.
	FaultVMCrash FaultKind = "vm-crash"

	// The following faults are states of Node from the time when the rule is added until the rule is
	// removed. [Outage] defines their delays.

	// FaultNodeHung stops all programs of a node. The other nodes report it as offline and keep its
	// last report for some minutes. Calls for the node time out (596).
	FaultNodeHung FaultKind = "node-hung"
	// FaultNodeCut disconnects a node from the network. Calls for the node return 595.
	FaultNodeCut FaultKind = "node-cut"
	// FaultNodeLost removes a node and its VMs from the cluster, as an administrator can. The node
	// does not return when the rule is removed.
	FaultNodeLost FaultKind = "node-lost"
	// FaultNoReports stops a node's status daemon, so that the node's last report is too old to be
	// valid. The node itself works.
	FaultNoReports FaultKind = "no-reports"
)

// Fault is a rule. An empty condition matches every call.
type Fault struct { //nolint:recvcheck // encoding needs a value, decoding needs a pointer
	Kind FaultKind `json:"kind"`
	// Method is the HTTP method. Path is a pattern as in path.Match and relative to /api2/json, such
	// as /nodes/*/qemu/*/clone.
	Method string `json:"method"`
	Path   string `json:"path"`
	Node   string `json:"node"`
	// VMID matches the VM of the path. For a clone, it also matches the new VM.
	VMID int `json:"vmid"`
	// Probability is a number from 0 to 1. 0 means 1.
	Probability float64 `json:"probability"`
	// Count is how often the rule applies at most. 0 means no limit.
	Count int           `json:"count"`
	Delay time.Duration `json:"delay"`
	// Status and Reason are the response of FaultError. Reason also replaces the default text of
	// other faults with a reason, such as FaultTaskError.
	Status int    `json:"status"`
	Reason string `json:"reason"`
}

// Validate returns an error if the rule is invalid.
func (f Fault) Validate() error {
	kinds := []FaultKind{
		FaultError, FaultSlow, FaultLockTimeout, FaultTaskLock, FaultTaskError, FaultWarnings, FaultTaskLost,
		FaultTaskKilled, FaultHalfClone, FaultCutConnection, FaultUnauthorized, FaultNodeDown, FaultProxyTimeout,
		FaultStale, FaultStorageFull, FaultVMCrash,
	}
	kinds = append(kinds, nodeFaults()...)
	if slices.Contains(nodeFaults(), f.Kind) && f.Node == "" {
		return fmt.Errorf("fault %s: node is required", f.Kind)
	}
	if !slices.Contains(kinds, f.Kind) {
		return fmt.Errorf("fault: unknown kind %q (use one of %v)", f.Kind, kinds)
	}
	if _, err := path.Match(f.Path, "/"); err != nil {
		return fmt.Errorf("fault %s: path %q: %w", f.Kind, f.Path, err)
	}
	if f.Probability < 0 || f.Probability > 1 {
		return fmt.Errorf("fault %s: probability %g is not between 0 and 1", f.Kind, f.Probability)
	}
	if f.Kind == FaultError && f.Status != 0 && (f.Status < 400 || f.Status > 599) {
		return fmt.Errorf("fault %s: status %d is not an error status (use 400 to 599)", f.Kind, f.Status)
	}
	return nil
}

// faultRule is an active rule.
type faultRule struct {
	Fault
	remaining int // how often the rule still applies; negative means no limit
}

// AddFault adds a rule and returns a function that removes the rule.
func (s *Server) AddFault(f Fault) (remove func()) {
	r := &faultRule{Fault: f, remaining: f.Count}
	if f.Count == 0 {
		r.remaining = -1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, r)
	if slices.Contains(nodeFaults(), f.Kind) {
		s.setNodeFault(f.Node, f.Kind)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.endNodeFault(r)
		s.faults = slices.DeleteFunc(s.faults, func(x *faultRule) bool { return x == r })
	}
}

// ClearFaults removes all rules.
func (s *Server) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.faults {
		s.endNodeFault(r)
	}
	s.faults = nil
}

// endNodeFault ends the node fault that a rule has caused. The caller holds s.mu.
func (s *Server) endNodeFault(r *faultRule) {
	if n := s.nodes[r.Node]; n != nil && n.fault == r.Kind {
		s.setNodeFault(r.Node, "")
	}
}

// Faults returns the rules that can still apply.
func (s *Server) Faults() []Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []Fault{}
	for _, f := range s.faults {
		if f.remaining != 0 {
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

// canApply returns true if the kind of fault can affect the call, so that rules without a path do
// not waste their count.
func (f *faultRule) canApply(c *call) bool {
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
		return last == "resources" || c.route.pattern[0] == "pools"
	case FaultLockTimeout:
		return c.vmid != 0 && isWrite(c.method)
	case FaultTaskLock, FaultTaskError, FaultWarnings, FaultTaskLost, FaultTaskKilled:
		return c.route.startsTask
	default:
		return true
	}
}

func (f *faultRule) matches(c *call) bool {
	if f.remaining == 0 || !f.canApply(c) {
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

// takeFaults returns the rules of the given kinds that apply to a call. It counts each use, and it
// skips a rule at random if the rule has a probability.
func (s *Server) takeFaults(c *call, kinds ...FaultKind) []*faultRule {
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
		if f.remaining > 0 {
			f.remaining--
		}
		out = append(out, f)
	}
	return out
}

// applyFaults applies the faults that affect a call before it runs, and stores the other faults in
// the call.
func (s *Server) applyFaults(c *call) error {
	matched := s.takeFaults(c, FaultError, FaultSlow, FaultLockTimeout, FaultNodeDown)
	for _, f := range matched {
		if !s.sleep(c.ctx, f.Delay) {
			return errClientGone
		}
		switch f.Kind {
		case FaultError:
			status := f.Status
			if status == 0 {
				status = http.StatusInternalServerError
			}
			return &apiError{status: status, reason: f.reasonOr("got no worker upid - start worker failed")}
		case FaultLockTimeout:
			return newLockTimeoutError(c.vmid)
		case FaultNodeDown:
			return &apiError{status: statusProxyError, reason: f.reasonOr("No route to host")}
		default:
		}
	}
	c.faults = s.takeFaults(c, FaultTaskLock, FaultTaskError, FaultWarnings, FaultTaskLost, FaultTaskKilled,
		FaultHalfClone, FaultCutConnection, FaultProxyTimeout, FaultStale, FaultStorageFull, FaultVMCrash)
	return nil
}

// findFault returns the first fault of a kind, or nil.
func findFault(faults []*faultRule, kind FaultKind) *faultRule {
	for _, f := range faults {
		if f.Kind == kind {
			return f
		}
	}
	return nil
}

var errKilled = errors.New("worker killed")

func (f *faultRule) applyBeforeTask(ctx context.Context, s *Server, t *task) error {
	switch f.Kind {
	case FaultTaskLock:
		s.sleep(ctx, f.Delay)
		vmid, _ := strconv.Atoi(t.id)
		return newLockTimeoutError(vmid)
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

func (f *faultRule) applyAfterTask(s *Server, t *task, err error) error {
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
