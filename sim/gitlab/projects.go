// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

func (s *Server) getSelf(c *call) response {
	if c.token.OAuth {
		return newNotFound("Not")
	}
	return newOK(map[string]any{
		"id": 42, "name": "hyperfleet", "revoked": c.token.Revoked, "created_at": formatTime(c.now.Add(-time.Hour)), "description": "",
		"scopes": c.token.Scopes, "user_id": 3, "last_used_at": formatTime(c.now), "active": !c.token.Revoked,
		"expires_at": c.now.AddDate(0, 1, 0).Format(time.DateOnly),
	})
}

func (s *Server) getUser(c *call) response {
	return newOK(map[string]any{
		"id": 3, "username": "hyperfleet", "name": "HyperFleet", "state": "active", "is_admin": c.token.Admin,
		"web_url": s.baseURL + "/hyperfleet",
	})
}

func (s *Server) getProject(c *call) response {
	p := s.findCallProject(c)
	if p == nil {
		return newNotFound("Project")
	}
	return newOK(s.encodeProject(p))
}

func (s *Server) encodeProject(p *project) map[string]any {
	namespace, name := splitPath(p.path)
	home := s.baseURL + "/" + p.path
	return map[string]any{
		"id": p.id, "name": name, "path": name, "path_with_namespace": p.path, "description": nil, "default_branch": "main",
		"name_with_namespace": strings.ReplaceAll(p.path, "/", " / "), "web_url": home, "http_url_to_repo": home + ".git",
		"visibility": "private", "archived": false, "last_activity_at": formatTime(p.activeAt), "created_at": formatTime(p.activeAt),
		"namespace": map[string]any{"id": s.findGroup(namespace).id, "path": namespace, "full_path": namespace, "kind": "group"},
	}
}

func (s *Server) getGroup(c *call) response {
	g := s.findCallGroup(c)
	if g == nil {
		return newNotFound("Group")
	}
	_, name := splitPath(g.path)
	return newOK(map[string]any{
		"id": g.id, "name": name, "path": name, "full_path": g.path, "full_name": strings.ReplaceAll(g.path, "/", " / "),
		"web_url": s.baseURL + "/groups/" + g.path, "visibility": "private", "description": "",
	})
}

func (s *Server) listGroupProjects(c *call) response {
	g := s.findCallGroup(c)
	if g == nil {
		return newNotFound("Group")
	}
	var found []*project
	for _, p := range s.projects {
		namespace, _ := splitPath(p.path)
		isInGroup := namespace == g.path || c.flag("include_subgroups", false) && strings.HasPrefix(p.path, g.path+"/")
		if isInGroup && c.token.roleIn(p.path) >= levelGuest {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(a, b *project) int {
		order := a.activeAt.Compare(b.activeAt)
		if c.text("order_by") != "last_activity_at" || order == 0 {
			order = int(a.id - b.id)
		}
		if c.text("sort") != "asc" {
			order = -order
		}
		return order
	})
	list := make([]map[string]any, 0, len(found))
	for _, p := range found {
		list = append(list, s.encodeProject(p))
	}
	return c.paginate(s.baseURL, list)
}

func (s *Server) listProjectJobs(c *call) response {
	p := s.findCallProject(c)
	switch {
	case p == nil:
		return newNotFound("Project")
	case p.hasNoPipelines || c.token.roleIn(p.path) < levelReporter:
		return newForbidden("")
	}
	statuses := c.list("scope")
	return c.paginate(s.baseURL, s.encodeJobs(func(j *job) bool {
		return j.pipeline.project == p && (len(statuses) == 0 || slices.Contains(statuses, j.status))
	}))
}

func (s *Server) getJob(c *call) response {
	p := s.findCallProject(c)
	if p == nil {
		return newNotFound("Project")
	}
	j := s.jobs[c.pathID("job")]
	switch {
	case p.hasNoPipelines || c.token.roleIn(p.path) < levelReporter:
		return newForbidden("")
	case j == nil || j.pipeline.project != p:
		return newError(http.StatusNotFound, "404 Not found")
	}
	return newOK(s.encodeJob(j))
}

// encodeJobs returns the matching jobs as the API represents them, newest first.
func (s *Server) encodeJobs(matches func(*job) bool) []map[string]any {
	var found []*job
	for _, j := range s.jobs {
		if matches(j) {
			found = append(found, j)
		}
	}
	slices.SortFunc(found, func(a, b *job) int { return int(b.id - a.id) })
	list := make([]map[string]any, 0, len(found))
	for _, j := range found {
		list = append(list, s.encodeJob(j))
	}
	return list
}
