// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

func (s *Server) answerSelf(c *call) reply {
	if c.token.OAuth {
		return notFound("Not")
	}
	return ok(map[string]any{
		"id": 42, "name": "hyperfleet", "revoked": c.token.Revoked, "created_at": stamp(c.now.Add(-time.Hour)), "description": "",
		"scopes": c.token.Scopes, "user_id": 3, "last_used_at": stamp(c.now), "active": !c.token.Revoked,
		"expires_at": c.now.AddDate(0, 1, 0).Format(time.DateOnly),
	})
}

func (s *Server) answerUser(c *call) reply {
	return ok(map[string]any{
		"id": 3, "username": "hyperfleet", "name": "HyperFleet", "state": "active", "is_admin": c.token.Admin,
		"web_url": s.base + "/hyperfleet",
	})
}

func (s *Server) answerProject(c *call) reply {
	p := s.projectOf(c)
	if p == nil {
		return notFound("Project")
	}
	return ok(s.projectJSON(p))
}

func (s *Server) projectJSON(p *project) map[string]any {
	namespace, name := split(p.path)
	home := s.base + "/" + p.path
	return map[string]any{
		"id": p.id, "name": name, "path": name, "path_with_namespace": p.path, "description": nil, "default_branch": "main",
		"name_with_namespace": strings.ReplaceAll(p.path, "/", " / "), "web_url": home, "http_url_to_repo": home + ".git",
		"visibility": "private", "archived": false, "last_activity_at": stamp(p.active), "created_at": stamp(p.active),
		"namespace": map[string]any{"id": s.groupBy(namespace).id, "path": namespace, "full_path": namespace, "kind": "group"},
	}
}

func (s *Server) answerGroup(c *call) reply {
	g := s.groupOf(c)
	if g == nil {
		return notFound("Group")
	}
	_, name := split(g.path)
	return ok(map[string]any{
		"id": g.id, "name": name, "path": name, "full_path": g.path, "full_name": strings.ReplaceAll(g.path, "/", " / "),
		"web_url": s.base + "/groups/" + g.path, "visibility": "private", "description": "",
	})
}

func (s *Server) answerGroupProjects(c *call) reply {
	g := s.groupOf(c)
	if g == nil {
		return notFound("Group")
	}
	var found []*project
	for _, p := range s.projects {
		namespace, _ := split(p.path)
		inside := namespace == g.path || c.flag("include_subgroups", false) && strings.HasPrefix(p.path, g.path+"/")
		if inside && c.token.level(p.path) >= guest {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(a, b *project) int {
		order := a.active.Compare(b.active)
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
		list = append(list, s.projectJSON(p))
	}
	return c.paginate(s.base, list)
}

func (s *Server) answerProjectJobs(c *call) reply {
	p := s.projectOf(c)
	switch {
	case p == nil:
		return notFound("Project")
	case p.plain || c.token.level(p.path) < reporter:
		return forbidden("")
	}
	wanted := c.list("scope")
	return c.paginate(s.base, s.jobList(func(j *job) bool {
		return j.pipeline.project == p && (len(wanted) == 0 || slices.Contains(wanted, j.status))
	}))
}

func (s *Server) answerJob(c *call) reply {
	p := s.projectOf(c)
	if p == nil {
		return notFound("Project")
	}
	j := s.jobs[c.pathID("job")]
	switch {
	case p.plain || c.token.level(p.path) < reporter:
		return forbidden("")
	case j == nil || j.pipeline.project != p:
		return fail(http.StatusNotFound, "404 Not found")
	}
	return ok(s.jobJSON(j))
}

// jobList gives jobs as the API does, newest first.
func (s *Server) jobList(wanted func(*job) bool) []map[string]any {
	var found []*job
	for _, j := range s.jobs {
		if wanted(j) {
			found = append(found, j)
		}
	}
	slices.SortFunc(found, func(a, b *job) int { return int(b.id - a.id) })
	list := make([]map[string]any, 0, len(found))
	for _, j := range found {
		list = append(list, s.jobJSON(j))
	}
	return list
}
