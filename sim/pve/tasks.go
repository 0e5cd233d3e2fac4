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
		return nil, dief("no such task")
	}
	if s.ownTask(c, t) {
		return t, nil
	}
	return t, s.mayLocked(c.auth, "/nodes/"+c.node, priv)
}

// ownTask is true for the user's own tasks and those of its tokens; a token
// owns only its own.
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

func (s *Server) listTasks(c *call, path func(*task) string, keep func(*task) bool) []map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []map[string]any{}
	for _, t := range slices.Backward(s.taskOrder) {
		if keep(t) && (s.ownTask(c, t) || s.mayLocked(c.auth, path(t), "Sys.Audit") == nil) {
			out = append(out, t.listed())
		}
	}
	return out
}

func listClusterTasks(s *Server, c *call) (any, error) {
	const most = 25 // the cluster keeps the last 25 of each node
	perNode := map[string]int{}
	return s.listTasks(c, func(*task) string { return "/" }, func(t *task) bool {
		perNode[t.node]++
		return perNode[t.node] <= most
	}), nil
}

func listNodeTasks(s *Server, c *call) (any, error) {
	all := s.listTasks(c, func(t *task) string { return "/nodes/" + t.node }, func(t *task) bool {
		return t.node == c.node && c.wantsTask(t)
	})
	start := min(c.num("start"), len(all))
	limit := 50
	if c.has("limit") {
		limit = c.num("limit")
	}
	return all[start:min(start+limit, len(all))], nil
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
	return !c.flag("errors") || t.exit != taskOK
}
