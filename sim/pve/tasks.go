// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"net/http"
	"slices"
	"strings"
)

func taskRoutes() []route {
	base := "/nodes/{node}/tasks"
	list := schema{
		"start": {kind: kInt}, "limit": {kind: kInt}, "userfilter": {}, "typefilter": {}, "vmid": vmidParam(),
		"errors": {kind: kBool}, "source": {enum: []string{"archive", "active", "all"}}, "since": {kind: kInt},
		"until": {kind: kInt}, "statusfilter": {},
	}
	page := schema{"start": {kind: kInt}, "limit": {kind: kInt}, "download": {kind: kBool}}
	return []route{
		newRoute(http.MethodGet, base, ClassTask, nil, list, listNodeTasks),
		newRoute(http.MethodGet, base+"/{upid}/status", ClassTask, nil, nil, taskStatus),
		newRoute(http.MethodGet, base+"/{upid}/log", ClassTask, nil, page, taskLog),
		newRoute(http.MethodDelete, base+"/{upid}", ClassTask, nil, nil, stopTask),
		newRoute(http.MethodGet, "/cluster/tasks", ClassTask, nil, nil, listClusterTasks),
	}
}

// findTask looks a UPID up and checks that the caller may see it: its own, or
// any with Sys.Audit on the node. s.mu is held.
func (s *Server) findTask(c *call, priv string) (*task, error) {
	upid := c.vars["upid"]
	if strings.Count(upid, ":") < 8 || !strings.HasPrefix(upid, "UPID:") {
		return nil, badParam("upid", "unable to parse worker upid '%s'", upid)
	}
	t := s.tasks[upid]
	if t == nil || t.node != c.node {
		return nil, badParam("upid", "no such task")
	}
	if s.ownTask(c, t) {
		return t, nil
	}
	return t, s.mayLocked(c.auth, "/nodes/"+c.node, priv)
}

// ownTask is true for the user's own tasks and those of its tokens; a token
// owns only its own (PVE::API2::Tasks).
func (s *Server) ownTask(c *call, t *task) bool {
	return t.user == c.auth.user && (c.auth.token == "" || t.tokenID == c.auth.token)
}

func (s *Server) mayStopTask(c *call, t *task) bool {
	return s.ownTask(c, t) || s.mayLocked(c.auth, "/nodes/"+t.node, "Sys.Modify") == nil
}

func taskStatus(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.findTask(c, "Sys.Audit")
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

func taskLog(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.findTask(c, "Sys.Audit")
	if err != nil {
		return nil, err
	}
	if t.lost && t.exit != "" {
		return nil, dief("unable to open file - No such file or directory")
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
	return out, nil
}

func stopTask(s *Server, c *call) (any, error) {
	s.mu.Lock()
	t, err := s.findTask(c, "Sys.Modify")
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

// active is a task in its node's list of those that run: there a token is still a part
// of its user's name.
func (t *task) active() map[string]any {
	out := t.listed()
	out["status"] = "RUNNING"
	if t.tokenID != "" {
		out["user"] = t.user + "!" + t.tokenID
		delete(out, "tokenid")
	}
	return out
}

// listClusterTasks shows callers without Sys.Audit on / the tasks whose user they are. A
// token is never the user of a task, so that it sees none, its own neither
// (PVE::API2::Cluster).
func listClusterTasks(s *Server, c *call) (any, error) {
	const most = 25 // the cluster keeps the last 25 of each node
	s.mu.Lock()
	defer s.mu.Unlock()
	perNode := map[string]int{}
	out := []map[string]any{}
	auditor := s.mayLocked(c.auth, "/", "Sys.Audit") == nil
	for _, t := range slices.Backward(s.taskOrder) {
		perNode[t.node]++
		if perNode[t.node] <= most && (auditor || t.user == c.auth.principal()) {
			out = append(out, t.listed())
		}
	}
	return out, nil
}

// listNodeTasks gives the tasks of a node that the caller started, or all with Sys.Audit
// on it: those that run first, then those that have ended, each newest first.
func listNodeTasks(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	auditor := s.mayLocked(c.auth, "/nodes/"+c.node, "Sys.Audit") == nil
	running, ended := []map[string]any{}, []map[string]any{}
	for _, t := range slices.Backward(s.taskOrder) {
		switch {
		case t.node != c.node || !auditor && !s.ownTask(c, t) || !c.wantsTask(t):
		case t.exit == "":
			running = append(running, t.active())
		default:
			ended = append(ended, t.listed())
		}
	}
	all := slices.Concat(running, ended)
	start, limit := min(c.num("start"), len(all)), 50
	if c.has("limit") {
		limit = c.num("limit")
	}
	end := min(start+limit, len(all))
	c.attributes = map[string]any{"total": end}
	return all[start:end], nil
}

func (c *call) wantsTask(t *task) bool {
	switch c.param("source") {
	case "active":
		if t.exit != "" {
			return false
		}
	case "", "archive":
		if t.exit == "" {
			return false
		}
	}
	if v := c.param("vmid"); v != "" && v != t.id {
		return false
	}
	if f := c.param("typefilter"); f != "" && f != t.kind {
		return false
	}
	if f := c.param("userfilter"); f != "" && !strings.Contains(strings.ToLower(t.user), strings.ToLower(f)) {
		return false
	}
	if at := t.start.Unix(); c.has("since") && at < int64(c.num("since")) || c.has("until") && at > int64(c.num("until")) {
		return false
	}
	return !c.flag("errors") || t.exit != taskOK
}
