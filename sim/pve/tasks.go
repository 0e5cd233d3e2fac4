// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"cmp"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

func taskRoutes() []route {
	base := "/nodes/{node}/tasks"
	list := schema{
		"start": {kind: kInt}, "limit": {kind: kInt}, "userfilter": {}, "typefilter": {}, "vmid": newVMIDParam(),
		"errors": {kind: kBool}, "source": {enum: []string{"archive", "active", "all"}}, "since": {kind: kInt},
		"until": {kind: kInt}, "statusfilter": {check: checkTaskStates},
	}
	page := schema{"start": {kind: kInt}, "limit": {kind: kInt}, "download": {kind: kBool}}
	return []route{
		newRoute(http.MethodGet, base, ClassTask, nil, list, listNodeTasks),
		newRoute(http.MethodGet, base+"/{upid}", ClassTask, nil, nil, newIndex("name", "log", "status")),
		newRoute(http.MethodGet, base+"/{upid}/status", ClassTask, nil, nil, getTaskStatus),
		newRoute(http.MethodGet, base+"/{upid}/log", ClassTask, nil, page, getTaskLog),
		newRoute(http.MethodDelete, base+"/{upid}", ClassTask, nil, nil, stopTask),
		newRoute(http.MethodGet, "/cluster/tasks", ClassTask, nil, nil, listClusterTasks),
	}
}

// reUPID matches a UPID. The node and the user in it are not validated further.
var reUPID = regexp.MustCompile(
	`^UPID:([a-zA-Z0-9-]+):([0-9A-Fa-f]{8}):([0-9A-Fa-f]{8,9}):([0-9A-Fa-f]{8}):([^:\s]+):([^:\s]*):([^:\s]+):$`)

// taskMustExist and taskMayBeGone are the values of the parameter isRequired.
const taskMustExist, taskMayBeGone = true, false

// findTask returns the task of a call and checks that the caller can see it. A caller can see its
// own tasks, and with the privilege on the node all tasks. If the task does not exist and isRequired
// is false, findTask returns nil after the same check of the owner in the UPID. The caller holds
// s.mu.
func (s *Server) findTask(c *call, priv string, isRequired bool) (*task, error) {
	parts := reUPID.FindStringSubmatch(c.vars["upid"])
	if parts == nil {
		return nil, newParamError("upid", "unable to parse worker upid")
	}
	t := s.tasks[c.vars["upid"]]
	if t != nil && t.node != c.node {
		t = nil
	}
	if t == nil && isRequired {
		return nil, newParamError("upid", "no such task")
	}
	if isOwnTask(c.auth, parts[len(parts)-1]) {
		return t, nil
	}
	return t, s.requireLocked(c.auth, "/nodes/"+c.node, priv)
}

// isOwnTask returns true for the tasks of a user and of the user's tokens. For a token, it returns
// true only for the token's own tasks.
func isOwnTask(caller identity, owner string) bool {
	user, _, _ := strings.Cut(owner, "!")
	return caller.principal() == owner || caller.principal() == user
}

// principal returns the user or token that started the task.
func (t *task) principal() string { return identity{user: t.user, token: t.tokenID}.principal() }

func (s *Server) canStopTask(c *call, t *task) bool {
	return isOwnTask(c.auth, t.principal()) || s.requireLocked(c.auth, "/nodes/"+t.node, "Sys.Modify") == nil
}

func getTaskStatus(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.findTask(c, "Sys.Audit", taskMustExist)
	if err != nil {
		return nil, err
	}
	return t.encodeStatus(), nil
}

func (t *task) encodeStatus() map[string]any {
	out := map[string]any{
		"upid": t.upid, "node": t.node, "pid": t.pid, "pstart": t.pstart, "starttime": t.start.Unix(),
		"type": t.kind, "id": t.id, "user": t.user, "status": "running",
	}
	if t.tokenID != "" {
		out["tokenid"] = t.tokenID
	}
	if !t.isRunning() {
		out["status"], out["exitstatus"] = "stopped", t.exit
	}
	return out
}

// getTaskLog reads the log of a task. If the task does not exist, its log file cannot be opened, and
// Proxmox VE reports that as a line of the log and not as an error of the call.
func getTaskLog(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.findTask(c, "Sys.Audit", taskMayBeGone)
	if err != nil {
		return nil, err
	}
	if t == nil || t.lost && !t.isRunning() {
		return listPage{[]map[string]any{{"n": 1, "t": "unable to open file - No such file or directory"}}, 1}, nil
	}
	start, limit := c.intParam("start"), c.intParam("limit")
	if !c.hasParam("limit") {
		limit = 50
	}
	out := []map[string]any{}
	for i, line := range t.log {
		if i >= start && (limit == 0 || len(out) < limit) {
			out = append(out, map[string]any{"n": i + 1, "t": line})
		}
	}
	if c.boolParam("download") {
		return plainText(strings.Join(t.log, "\n") + "\n"), nil
	}
	if len(t.log) == 0 {
		out = append(out, map[string]any{"n": 1, "t": "no content"})
	}
	return listPage{out, max(1, len(t.log))}, nil
}

func stopTask(s *Server, c *call) (any, error) {
	s.mu.Lock()
	t, err := s.findTask(c, "Sys.Modify", taskMustExist)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	t.cancel()
	return nil, nil //nolint:nilnil // "data": null
}

// newListRow returns a task's row in a listing, in which status is the exit status.
func (t *task) newListRow() map[string]any {
	out := t.encodeStatus()
	delete(out, "exitstatus")
	delete(out, "status")
	if !t.isRunning() {
		out["endtime"], out["status"] = t.end.Unix(), t.exit
	}
	return out
}

// listClusterTasks returns the last tasks of every node. Without Sys.Audit on /, it returns only the
// tasks of the calling user and of that user's tokens. A token is not a user, so a calling token
// sees no tasks, not even its own.
func listClusterTasks(s *Server, c *call) (any, error) {
	const maxTasks = 25 // a node broadcasts its running tasks, and ended tasks up to this number
	s.mu.Lock()
	defer s.mu.Unlock()
	maySeeAll := s.requireLocked(c.auth, "/", "Sys.Audit") == nil
	out := []map[string]any{}
	for _, n := range s.listMembers() {
		for i, t := range s.listRecentTasks(n.Name) {
			if (t.isRunning() || i < maxTasks) && (maySeeAll || c.auth.principal() == t.user) {
				row := t.newListRow()
				delete(row, "pstart")
				if !t.isRunning() {
					delete(row, "pid")
					row["saved"] = "1"
				}
				out = append(out, row)
			}
		}
	}
	return out, nil
}

// listRecentTasks returns a node's running tasks, followed by its ended tasks. The newest are first.
// The caller holds s.mu.
func (s *Server) listRecentTasks(node string) []*task {
	var running, ended []*task
	for _, t := range slices.Backward(s.taskOrder) {
		switch {
		case t.node != node:
		case t.isRunning():
			running = append(running, t)
		default:
			ended = append(ended, t)
		}
	}
	slices.SortStableFunc(ended, func(a, b *task) int { return b.end.Compare(a.end) })
	return append(running, ended...)
}

// listNodeTasks returns a node's own tasks: the running ones, the archive, or all.
func listNodeTasks(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	auditor := s.requireLocked(c.auth, "/nodes/"+c.node, "Sys.Audit") == nil
	out, total, limit := []map[string]any{}, 0, 50
	if c.hasParam("limit") {
		limit = c.intParam("limit")
	}
	for _, t := range s.listRecentTasks(c.node) {
		row := t.newListRow()
		if t.isRunning() { // unlike in the archive, user contains the token
			row["status"], row["user"], row["saved"] = "RUNNING", t.principal(), "0"
			delete(row, "tokenid")
		}
		if !c.matchesTask(t, fmt.Sprint(row["user"])) || !auditor && !isListedAsOwn(c.auth, t) {
			continue
		}
		total++
		if total > c.intParam("start") && len(out) < limit {
			out = append(out, row)
		}
	}
	if total == 0 {
		return out, nil
	}
	return listPage{out, total}, nil
}

// isListedAsOwn is like [isOwnTask], except that a user does not own the running tasks of the user's
// tokens.
func isListedAsOwn(caller identity, t *task) bool {
	if t.isRunning() {
		return caller.principal() == t.principal()
	}
	return isOwnTask(caller, t.principal())
}

// matchesTask returns true if the task passes the filters of a listing. user is the task's user as
// listed.
func (c *call) matchesTask(t *task, user string) bool {
	source := cmp.Or(c.param("source"), "archive")
	started := int(t.start.Unix())
	switch {
	case source == "active" && !t.isRunning(), source == "archive" && t.isRunning(),
		c.hasParam("userfilter") && !strings.Contains(strings.ToLower(user), strings.ToLower(c.param("userfilter"))),
		c.hasParam("typefilter") && c.param("typefilter") != t.kind,
		c.hasParam("vmid") && c.param("vmid") != t.id,
		c.hasParam("since") && started < c.intParam("since"), c.hasParam("until") && started > c.intParam("until"):
		return false
	case c.boolParam("errors"):
		return t.statusType() != "ok"
	case c.hasParam("statusfilter"):
		return slices.Contains(splitTags(strings.ToLower(c.param("statusfilter"))), t.statusType())
	default:
		return true
	}
}

func checkTaskStates(v string) error {
	for _, state := range splitTags(v) {
		if !slices.Contains([]string{"ok", "error", "warning", "unknown"}, state) {
			return formatError("invalid status '%s'", state)
		}
	}
	return nil
}

// statusType returns the type of a task's exit status, by which a listing can be filtered.
func (t *task) statusType() string {
	switch {
	case t.isRunning(), t.exit == taskUnexpected:
		return "unknown"
	case t.exit == taskOK:
		return "ok"
	case strings.HasPrefix(t.exit, "WARNINGS: "):
		return "warning"
	default:
		return "error"
	}
}
