// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

func taskRoutes() []route {
	base := "/nodes/{node}/tasks"
	list := schema{
		"start": {kind: kInt}, "limit": {kind: kInt}, "userfilter": {}, "typefilter": {}, "vmid": vmidParam(),
		"errors": {kind: kBool}, "source": {enum: []string{"archive", "active", "all"}}, "since": {kind: kInt},
		"until": {kind: kInt}, "statusfilter": {check: checkTaskStates},
	}
	page := schema{"start": {kind: kInt}, "limit": {kind: kInt}, "download": {kind: kBool}}
	return []route{
		newRoute(http.MethodGet, base, ClassTask, nil, list, listNodeTasks),
		newRoute(http.MethodGet, base+"/{upid}", ClassTask, nil, nil, index("name", "log", "status")),
		newRoute(http.MethodGet, base+"/{upid}/status", ClassTask, nil, nil, taskStatus),
		newRoute(http.MethodGet, base+"/{upid}/log", ClassTask, nil, page, taskLog),
		newRoute(http.MethodDelete, base+"/{upid}", ClassTask, nil, nil, stopTask),
		newRoute(http.MethodGet, "/cluster/tasks", ClassTask, nil, nil, listClusterTasks),
	}
}

// reUPID is the form of a UPID; its node and user are checked no further.
var reUPID = regexp.MustCompile(
	`^UPID:([a-zA-Z0-9-]+):([0-9A-Fa-f]{8}):([0-9A-Fa-f]{8,9}):([0-9A-Fa-f]{8}):([^:\s]+):([^:\s]*):([^:\s]+):$`)

// findTask looks a UPID up and checks that the caller may see it: its own, or
// any with the privilege on the node. A task that is not there has an owner
// too; then it is nil. s.mu is held.
func (s *Server) findTask(c *call, priv string, there bool) (*task, error) {
	parts := reUPID.FindStringSubmatch(c.vars["upid"])
	if parts == nil {
		return nil, badParam("upid", "unable to parse worker upid")
	}
	t := s.tasks[c.vars["upid"]]
	if t != nil && t.node != c.node {
		t = nil
	}
	if t == nil && there {
		return nil, badParam("upid", "no such task")
	}
	if ownTask(c.auth, parts[len(parts)-1]) {
		return t, nil
	}
	return t, s.mayLocked(c.auth, "/nodes/"+c.node, priv)
}

// ownTask is true for the user's own tasks and those of its tokens; a token
// owns only its own.
func ownTask(who identity, owner string) bool {
	user, _, _ := strings.Cut(owner, "!")
	return who.principal() == owner || who.principal() == user
}

// principal is who started the task.
func (t *task) principal() string { return identity{user: t.user, token: t.tokenID}.principal() }

func (s *Server) mayStopTask(c *call, t *task) bool {
	return ownTask(c.auth, t.principal()) || s.mayLocked(c.auth, "/nodes/"+t.node, "Sys.Modify") == nil
}

func taskStatus(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.findTask(c, "Sys.Audit", true)
	if err != nil {
		return nil, err
	}
	return t.status(), nil
}

func (t *task) status() map[string]any {
	out := map[string]any{
		"upid": t.upid, "node": t.node, "pid": t.pid, "pstart": t.pstart, "starttime": t.start.Unix(),
		"type": t.kind, "id": t.id, "user": t.user, "status": "running",
	}
	if t.tokenID != "" {
		out["tokenid"] = t.tokenID
	}
	if t.exit != "" {
		out["status"], out["exitstatus"] = "stopped", t.exit
	}
	return out
}

// taskLog reads the log's file: that of a task that is not there can't be
// opened, which is no error of the call.
func taskLog(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.findTask(c, "Sys.Audit", false)
	if err != nil {
		return nil, err
	}
	if t == nil || t.lost && t.exit != "" {
		return counted{[]map[string]any{{"n": 1, "t": "unable to open file - No such file or directory"}}, 1}, nil
	}
	start, limit := c.num("start"), c.num("limit")
	if !c.has("limit") {
		limit = 50
	}
	out := []map[string]any{}
	for i, line := range t.log {
		if i >= start && (limit == 0 || len(out) < limit) {
			out = append(out, map[string]any{"n": i + 1, "t": line})
		}
	}
	if len(t.log) == 0 {
		out = append(out, map[string]any{"n": 1, "t": "no content"})
	}
	return counted{out, max(1, len(t.log))}, nil
}

func stopTask(s *Server, c *call) (any, error) {
	s.mu.Lock()
	t, err := s.findTask(c, "Sys.Modify", true)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	t.cancel()
	return nil, nil //nolint:nilnil // "data": null
}

// listed is a task in a listing: its status is the exit status.
func (t *task) listed() map[string]any {
	out := t.status()
	delete(out, "exitstatus")
	delete(out, "status")
	if t.exit != "" {
		out["endtime"], out["status"] = t.end.Unix(), t.exit
	}
	return out
}

// listClusterTasks gives the last tasks of every node. Without Sys.Audit on /
// these are only the ones of the very user that asks, or of a token of it: a
// token that asks is no user, and sees none, not even its own.
func listClusterTasks(s *Server, c *call) (any, error) {
	const most = 25 // a node broadcasts its running tasks, and others up to so many
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.mayLocked(c.auth, "/", "Sys.Audit") == nil
	out := []map[string]any{}
	for _, n := range s.members() {
		for i, t := range s.recentTasks(n.Name) {
			if (t.exit == "" || i < most) && (all || c.auth.principal() == t.user) {
				row := t.listed()
				delete(row, "pstart")
				if t.exit != "" {
					delete(row, "pid")
					row["saved"] = "1"
				}
				out = append(out, row)
			}
		}
	}
	return out, nil
}

// recentTasks are a node's tasks: those that run, then the others, the newest
// first. s.mu is held.
func (s *Server) recentTasks(node string) []*task {
	var running, ended []*task
	for _, t := range slices.Backward(s.taskOrder) {
		switch {
		case t.node != node:
		case t.exit == "":
			running = append(running, t)
		default:
			ended = append(ended, t)
		}
	}
	slices.SortStableFunc(ended, func(a, b *task) int { return b.end.Compare(a.end) })
	return append(running, ended...)
}

// listNodeTasks gives a node's own tasks: those that run, the archive, or all.
func listNodeTasks(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	auditor := s.mayLocked(c.auth, "/nodes/"+c.node, "Sys.Audit") == nil
	out, total, limit := []map[string]any{}, 0, 50
	if c.has("limit") {
		limit = c.num("limit")
	}
	for _, t := range s.recentTasks(c.node) {
		row := t.listed()
		if t.exit == "" { // not split as those of the archive are
			row["status"], row["user"], row["saved"] = "RUNNING", t.principal(), "0"
			delete(row, "tokenid")
		}
		if !c.wantsTask(t, fmt.Sprint(row["user"])) || !auditor && !ownListed(c.auth, t) {
			continue
		}
		total++
		if total > c.num("start") && len(out) < limit {
			out = append(out, row)
		}
	}
	return counted{out, total}, nil
}

// ownListed is [ownTask] but for tasks that run: those of its tokens are then
// not the user's.
func ownListed(who identity, t *task) bool {
	if t.exit == "" {
		return who.principal() == t.principal()
	}
	return ownTask(who, t.principal())
}

// wantsTask applies the filters of a listing; user is who it says the task's is.
func (c *call) wantsTask(t *task, user string) bool {
	source := cmpOr(c.param("source"), "archive")
	started := int(t.start.Unix())
	switch {
	case source == "active" && t.exit != "", source == "archive" && t.exit == "",
		c.has("userfilter") && !strings.Contains(strings.ToLower(user), strings.ToLower(c.param("userfilter"))),
		c.has("typefilter") && c.param("typefilter") != t.kind,
		c.has("vmid") && c.param("vmid") != t.id,
		c.has("since") && started < c.num("since"), c.has("until") && started > c.num("until"):
		return false
	case c.flag("errors"):
		return t.statusType() != "ok"
	case c.has("statusfilter"):
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

// statusType is the kind of end that a task has come to.
func (t *task) statusType() string {
	switch {
	case t.exit == "", t.exit == taskUnexpected:
		return "unknown"
	case t.exit == taskOK:
		return "ok"
	case strings.HasPrefix(t.exit, "WARNINGS: "):
		return "warning"
	default:
		return "error"
	}
}
