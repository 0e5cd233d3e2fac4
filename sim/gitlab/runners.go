// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Types of runners.
const (
	typeInstance = "instance_type"
	typeGroup    = "group_type"
	typeProject  = "project_type"
)

// Limits of GitLab.
const (
	maxTags   = 50
	maxNote   = 1024
	staleLife = 7 * 24 * time.Hour
	shortest  = 600 // seconds that a maximum timeout may be
)

// runner is one registered runner.
type runner struct {
	id          int64
	description string
	note        string
	kind        string
	project     *project
	group       *group
	token       string
	expires     time.Time
	tags        []string
	untagged    bool
	locked      bool
	paused      bool
	access      string
	maximum     int64
	created     time.Time
	contacted   time.Time
	systemID    string
	running     *job
}

// place is the path of whose runner it is; empty for the instance's.
func (r *runner) place() string {
	switch r.kind {
	case typeProject:
		return r.project.path
	case typeGroup:
		return r.group.path
	default:
		return ""
	}
}

// status: docs "Manage runners", section "Runner statuses".
func (s *Server) status(r *runner) string {
	now := s.now()
	switch {
	case r.contacted.IsZero() && now.Sub(r.created) >= staleLife:
		return "stale"
	case r.contacted.IsZero():
		return "never_contacted"
	case now.Sub(r.contacted) < s.opts.OnlineFor:
		return "online"
	case now.Sub(r.contacted) >= staleLife:
		return "stale"
	default:
		return "offline"
	}
}

// runnerJSON is a runner as listings tell it.
func (s *Server) runnerJSON(r *runner) map[string]any {
	status := s.status(r)
	out := map[string]any{
		"id": r.id, "description": r.description, "ip_address": nil, "active": !r.paused, "paused": r.paused,
		"is_shared": r.kind == typeInstance, "runner_type": r.kind, "name": nil, "online": status == "online", "status": status,
		"created_at": stamp(r.created), "created_by": map[string]any{"id": 3, "username": "hyperfleet", "name": "HyperFleet"},
	}
	if r.contacted.IsZero() {
		out["online"] = nil
	} else {
		out["name"] = "gitlab-runner"
	}
	if r.paused {
		out["status"] = "paused"
	}
	if !s.opts.HideExecution {
		out["job_execution_status"] = "idle"
		if r.running != nil {
			out["job_execution_status"] = "active"
		}
	}
	return out
}

// detailJSON is a runner as it is told by itself.
func (s *Server) detailJSON(r *runner) map[string]any {
	out := s.runnerJSON(r)
	out["tag_list"], out["run_untagged"], out["locked"] = r.tags, r.untagged, r.locked
	out["access_level"], out["maintenance_note"], out["contacted_at"] = r.access, r.note, stamp(r.contacted)
	out["maximum_timeout"], out["projects"], out["groups"] = nil, []any{}, []any{}
	if r.maximum > 0 {
		out["maximum_timeout"] = r.maximum
	}
	switch r.kind {
	case typeProject:
		out["projects"] = []any{map[string]any{"id": r.project.id, "path_with_namespace": r.project.path}}
	case typeGroup:
		out["groups"] = []any{map[string]any{"id": r.group.id, "web_url": s.base + "/groups/" + r.group.path}}
	}
	return out
}

// may tells whether the caller may see, change and remove a runner.
func (t *Token) may(r *runner) bool {
	switch r.kind {
	case typeProject:
		return t.level(r.project.path) >= maintainer
	case typeGroup:
		return t.level(r.group.path) >= owner
	default:
		return t.Admin
	}
}

// runnerOf finds the runner of a call, or says what to answer.
func (s *Server) runnerOf(c *call) (*runner, *reply) {
	r := s.runners[c.pathID("id")]
	if r == nil {
		out := notFound("Runner")
		return nil, &out
	}
	if !c.token.may(r) {
		out := forbidden("No access granted")
		return nil, &out
	}
	return r, nil
}

func (s *Server) answerCreateRunner(c *call) reply {
	r := &runner{kind: c.text("runner_type"), access: "not_protected"}
	_, hasProject := c.given["project_id"]
	_, hasGroup := c.given["group_id"]
	switch {
	case r.kind == typeProject && !hasProject:
		return wrong("project_id is missing")
	case r.kind == typeGroup && !hasGroup:
		return wrong("group_id is missing")
	case r.kind == typeProject:
		if r.project = s.projects[c.number("project_id", 0)]; r.project == nil {
			return fail(http.StatusBadRequest, "400 Bad request - Missing/invalid scope")
		}
	case r.kind == typeGroup:
		if r.group = s.groups[c.number("group_id", 0)]; r.group == nil {
			return fail(http.StatusBadRequest, "400 Bad request - Missing/invalid scope")
		}
	}
	if !c.token.may(r) {
		return forbidden("Insufficient permissions")
	}
	r.untagged = true
	if problem := r.set(c); problem != "" {
		return fail(http.StatusBadRequest, "400 Bad request - "+problem)
	}
	s.ids.runner++
	r.id, r.token, r.created = s.ids.runner, secret("glrt-t"+map[string]string{
		typeInstance: "1", typeGroup: "2", typeProject: "3",
	}[r.kind]+"_"), c.now
	if s.opts.TokenLife > 0 {
		r.expires = c.now.Add(s.opts.TokenLife)
	}
	s.runners[r.id] = r
	s.registered++
	return reply{status: http.StatusCreated, body: map[string]any{
		"id": r.id, "token": r.token, "token_expires_at": stamp(r.expires),
	}}
}

// set takes the settings of a call, or says which of them GitLab refuses.
func (r *runner) set(c *call) string {
	if _, given := c.given["description"]; given {
		r.description = c.text("description")
	}
	if _, given := c.given["maintenance_note"]; given {
		r.note = c.text("maintenance_note")
	}
	if _, given := c.given["tag_list"]; given {
		r.tags = nil
		for _, tag := range c.list("tag_list") {
			if tag = strings.TrimSpace(tag); tag != "" && !slices.Contains(r.tags, tag) {
				r.tags = append(r.tags, tag)
			}
		}
	}
	if level := c.text("access_level"); level != "" {
		r.access = level
	}
	r.untagged, r.locked = c.flag("run_untagged", r.untagged), c.flag("locked", r.locked)
	r.paused, r.maximum = c.flag("paused", r.paused), c.number("maximum_timeout", r.maximum)
	switch {
	case utf8.RuneCountInString(r.description) > maxNote:
		return "Description is too long (maximum is 1024 characters)"
	case utf8.RuneCountInString(r.note) > maxNote:
		return "Maintenance note is too long (maximum is 1024 characters)"
	case len(r.tags) > maxTags:
		return fmt.Sprintf("Tags list Too many tags specified. Please limit the number of tags to %d", maxTags)
	case len(r.tags) == 0 && !r.untagged:
		return "Tags list can not be empty when runner is not allowed to pick untagged jobs"
	case r.maximum != 0 && r.maximum < shortest:
		return "Maximum timeout needs to be at least 10 minutes"
	case r.locked && r.kind == typeGroup:
		return "" // GitLab takes it, and it means nothing
	}
	return ""
}

func (s *Server) answerRunner(c *call) reply {
	r := s.runners[c.pathID("id")]
	switch {
	case r == nil:
		return notFound("Runner")
	case r.kind != typeInstance && !c.token.may(r):
		return forbidden("No access granted")
	}
	return ok(s.detailJSON(r))
}

func (s *Server) answerUpdateRunner(c *call) reply {
	r, refused := s.runnerOf(c)
	if refused != nil {
		return *refused
	}
	if len(c.given) == 0 {
		s.violate("request", c.r.Method, c.r.URL.Path, errors.New("no setting is given"))
		names := slices.Sorted(maps.Keys(runnerSettings()))
		return wrong("%s are missing, at least one parameter must be provided", strings.Join(names, ", "))
	}
	changed := *r
	if problem := changed.set(c); problem != "" {
		return fail(http.StatusBadRequest, problem)
	}
	*r = changed
	s.tick()
	return ok(s.detailJSON(r))
}

// answerDeleteRunner removes any runner, as GitLab does. A job that it runs is orphaned:
// that is a breach, for no caller should do so.
func (s *Server) answerDeleteRunner(c *call) reply {
	r, refused := s.runnerOf(c)
	if refused != nil {
		return *refused
	}
	if r.running != nil {
		s.violate("request", c.r.Method, c.r.URL.Path, fmt.Errorf("runner %d runs job %d", r.id, r.running.id))
	}
	delete(s.runners, r.id)
	s.tick()
	return reply{status: http.StatusNoContent}
}

func (s *Server) answerRunnerJobs(c *call) reply {
	r, refused := s.runnerOf(c)
	if refused != nil {
		return *refused
	}
	status := c.text("status")
	if status == statusRunning && s.core.Chance(s.core.Faults().DeleteBusy) {
		return c.paginate(s.base, []map[string]any{{"id": 1, "status": statusRunning}})
	}
	return c.paginate(s.base, s.jobList(func(j *job) bool {
		return j.ran.id == r.id && (status == "" || j.status == status)
	}))
}

func (s *Server) answerProjectRunners(c *call) reply {
	p := s.projectOf(c)
	switch {
	case p == nil:
		return notFound("Project")
	case c.token.level(p.path) < maintainer:
		return forbidden("")
	}
	return s.listRunners(c, func(r *runner) bool { return r.serves(p) })
}

func (s *Server) answerGroupRunners(c *call) reply {
	g := s.groupOf(c)
	switch {
	case g == nil:
		return notFound("Group")
	case c.token.level(g.path) < maintainer:
		return forbidden("")
	}
	return s.listRunners(c, func(r *runner) bool {
		return r.kind == typeInstance || r.kind == typeGroup && within(g.path, r.group.path)
	})
}

func (s *Server) answerAllRunners(c *call) reply {
	if !c.token.Admin {
		return forbidden("")
	}
	return s.listRunners(c, func(*runner) bool { return true })
}

// listRunners lists oldest first, as GitLab does with what it has no order for.
func (s *Server) listRunners(c *call, offered func(*runner) bool) reply {
	var found []*runner
	for _, r := range s.runners {
		if offered(r) && s.filtered(c, r) {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(a, b *runner) int { return int(a.id - b.id) })
	list := make([]map[string]any, 0, len(found))
	for _, r := range found {
		list = append(list, s.runnerJSON(r))
	}
	return c.paginate(s.base, list)
}

func (s *Server) filtered(c *call, r *runner) bool {
	status := s.status(r)
	switch wanted := c.text("status"); {
	case c.text("type") != "" && c.text("type") != r.kind,
		c.flag("paused", r.paused) != r.paused,
		wanted == "active" && r.paused, wanted == "paused" && !r.paused,
		wanted != "" && wanted != "active" && wanted != "paused" && wanted != status:
		return false
	}
	for _, tag := range c.list("tag_list") {
		if !slices.Contains(r.tags, tag) {
			return false
		}
	}
	return true
}

// within tells whether a path is that of a group or of something in it.
func within(path, group string) bool { return path == group || strings.HasPrefix(path, group+"/") }

// serves tells whether the runner may be given jobs of a project.
func (r *runner) serves(p *project) bool {
	switch r.kind {
	case typeProject:
		return r.project == p
	case typeGroup:
		return within(p.path, r.group.path)
	default:
		return true
	}
}

// takes tells whether the runner may be given the job.
func (r *runner) takes(j *job) bool {
	if !r.serves(j.pipeline.project) || len(j.tags) == 0 && !r.untagged {
		return false
	}
	for _, tag := range j.tags {
		if !slices.Contains(r.tags, tag) {
			return false
		}
	}
	return true
}
