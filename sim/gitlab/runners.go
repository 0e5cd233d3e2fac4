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
	maxTags    = 50
	maxNote    = 1024
	staleAfter = 7 * 24 * time.Hour
	minTimeout = 600 // minimum of a maximum timeout in seconds
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
	expiresAt   time.Time
	tags        []string
	runUntagged bool
	locked      bool
	paused      bool
	access      string
	maxTimeout  int64
	createdAt   time.Time
	contactedAt time.Time
	systemID    string
	job         *job
}

// ownerPath returns the path of the project or group of a runner. For a runner of the instance, it
// is empty.
func (r *runner) ownerPath() string {
	switch r.kind {
	case typeProject:
		return r.project.path
	case typeGroup:
		return r.group.path
	default:
		return ""
	}
}

// runnerStatus returns the status of a runner. See the documentation "Manage runners", section
// "Runner statuses".
func (s *Server) runnerStatus(r *runner) string {
	now := s.now()
	switch {
	case r.contactedAt.IsZero() && now.Sub(r.createdAt) >= staleAfter:
		return "stale"
	case r.contactedAt.IsZero():
		return "never_contacted"
	case now.Sub(r.contactedAt) < s.opts.OnlineTimeout:
		return "online"
	case now.Sub(r.contactedAt) >= staleAfter:
		return "stale"
	default:
		return "offline"
	}
}

// encodeRunner returns a runner as lists represent it.
func (s *Server) encodeRunner(r *runner) map[string]any {
	status := s.runnerStatus(r)
	out := map[string]any{
		"id": r.id, "description": r.description, "ip_address": nil, "active": !r.paused, "paused": r.paused,
		"is_shared": r.kind == typeInstance, "runner_type": r.kind, "name": nil, "online": status == "online", "status": status,
		"created_at": formatTime(r.createdAt), "created_by": map[string]any{"id": 3, "username": "hyperfleet", "name": "HyperFleet"},
	}
	if r.contactedAt.IsZero() {
		out["online"] = nil
	} else {
		out["name"] = "gitlab-runner"
	}
	if r.paused {
		out["status"] = "paused"
	}
	if !s.opts.HideExecutionStatus {
		out["job_execution_status"] = "idle"
		if r.job != nil {
			out["job_execution_status"] = "active"
		}
	}
	return out
}

// encodeRunnerDetail returns a runner with all fields.
func (s *Server) encodeRunnerDetail(r *runner) map[string]any {
	out := s.encodeRunner(r)
	out["tag_list"], out["run_untagged"], out["locked"] = r.tags, r.runUntagged, r.locked
	out["access_level"], out["maintenance_note"], out["contacted_at"] = r.access, r.note, formatTime(r.contactedAt)
	out["maximum_timeout"], out["projects"], out["groups"] = nil, []any{}, []any{}
	if r.maxTimeout > 0 {
		out["maximum_timeout"] = r.maxTimeout
	}
	switch r.kind {
	case typeProject:
		out["projects"] = []any{map[string]any{"id": r.project.id, "path_with_namespace": r.project.path}}
	case typeGroup:
		out["groups"] = []any{map[string]any{"id": r.group.id, "web_url": s.baseURL + "/groups/" + r.group.path}}
	}
	return out
}

// canManage reports whether the caller may read, change and delete a runner.
func (t *Token) canManage(r *runner) bool {
	switch r.kind {
	case typeProject:
		return t.roleIn(r.project.path) >= levelMaintainer
	case typeGroup:
		return t.roleIn(r.group.path) >= levelOwner
	default:
		return t.Admin
	}
}

// findCallRunner returns the runner of a call, or the error response.
func (s *Server) findCallRunner(c *call) (*runner, *response) {
	r := s.runners[c.pathID("id")]
	if r == nil {
		out := newNotFound("Runner")
		return nil, &out
	}
	if !c.token.canManage(r) {
		out := newForbidden("No access granted")
		return nil, &out
	}
	return r, nil
}

func (s *Server) createRunner(c *call) response {
	r := &runner{kind: c.text("runner_type"), access: "not_protected"}
	_, hasProject := c.values["project_id"]
	_, hasGroup := c.values["group_id"]
	switch {
	case r.kind == typeProject && !hasProject:
		return newParamError("project_id is missing")
	case r.kind == typeGroup && !hasGroup:
		return newParamError("group_id is missing")
	case r.kind == typeProject:
		if r.project = s.projects[c.number("project_id", 0)]; r.project == nil {
			return newError(http.StatusBadRequest, "400 Bad request - Missing/invalid scope")
		}
	case r.kind == typeGroup:
		if r.group = s.groups[c.number("group_id", 0)]; r.group == nil {
			return newError(http.StatusBadRequest, "400 Bad request - Missing/invalid scope")
		}
	}
	if !c.token.canManage(r) {
		return newForbidden("Insufficient permissions")
	}
	r.runUntagged = true
	if problem := r.applySettings(c); problem != "" {
		return newError(http.StatusBadRequest, "400 Bad request - "+problem)
	}
	s.ids.runner++
	r.id, r.token, r.createdAt = s.ids.runner, newToken("glrt-t"+map[string]string{
		typeInstance: "1", typeGroup: "2", typeProject: "3",
	}[r.kind]+"_"), c.now
	if s.opts.TokenLifetime > 0 {
		r.expiresAt = c.now.Add(s.opts.TokenLifetime)
	}
	s.runners[r.id] = r
	s.registeredCount++
	return response{status: http.StatusCreated, body: map[string]any{
		"id": r.id, "token": r.token, "token_expires_at": formatTime(r.expiresAt),
	}}
}

// applySettings applies the settings of a call. If GitLab rejects a setting, it returns the
// message.
func (r *runner) applySettings(c *call) string {
	if _, exists := c.values["description"]; exists {
		r.description = c.text("description")
	}
	if _, exists := c.values["maintenance_note"]; exists {
		r.note = c.text("maintenance_note")
	}
	if _, exists := c.values["tag_list"]; exists {
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
	r.runUntagged, r.locked = c.flag("run_untagged", r.runUntagged), c.flag("locked", r.locked)
	r.paused, r.maxTimeout = c.flag("paused", r.paused), c.number("maximum_timeout", r.maxTimeout)
	switch {
	case utf8.RuneCountInString(r.description) > maxNote:
		return "Description is too long (maximum is 1024 characters)"
	case utf8.RuneCountInString(r.note) > maxNote:
		return "Maintenance note is too long (maximum is 1024 characters)"
	case len(r.tags) > maxTags:
		return fmt.Sprintf("Tags list Too many tags specified. Please limit the number of tags to %d", maxTags)
	case len(r.tags) == 0 && !r.runUntagged:
		return "Tags list can not be empty when runner is not allowed to pick untagged jobs"
	case r.maxTimeout != 0 && r.maxTimeout < minTimeout:
		return "Maximum timeout needs to be at least 10 minutes"
	case r.locked && r.kind == typeGroup:
		return "" // GitLab accepts the setting and ignores it
	}
	return ""
}

func (s *Server) getRunner(c *call) response {
	r := s.runners[c.pathID("id")]
	switch {
	case r == nil:
		return newNotFound("Runner")
	case r.kind != typeInstance && !c.token.canManage(r):
		return newForbidden("No access granted")
	}
	return newOK(s.encodeRunnerDetail(r))
}

func (s *Server) updateRunner(c *call) response {
	r, rejection := s.findCallRunner(c)
	if rejection != nil {
		return *rejection
	}
	if len(c.values) == 0 {
		s.addViolation("request", c.r.Method, c.r.URL.Path, errors.New("no setting is given"))
		names := slices.Sorted(maps.Keys(newRunnerSettings()))
		return newParamError("%s are missing, at least one parameter must be provided", strings.Join(names, ", "))
	}
	updated := *r
	if problem := updated.applySettings(c); problem != "" {
		return newError(http.StatusBadRequest, problem)
	}
	*r = updated
	s.wakePolls()
	return newOK(s.encodeRunnerDetail(r))
}

// deleteRunner deletes any runner, as GitLab does. Deleting a runner that runs a job is a
// violation, because the job becomes an orphan.
func (s *Server) deleteRunner(c *call) response {
	r, rejection := s.findCallRunner(c)
	if rejection != nil {
		return *rejection
	}
	if r.job != nil {
		s.addViolation("request", c.r.Method, c.r.URL.Path, fmt.Errorf("runner %d runs job %d", r.id, r.job.id))
	}
	delete(s.runners, r.id)
	s.wakePolls()
	return response{status: http.StatusNoContent}
}

func (s *Server) listRunnerJobs(c *call) response {
	r, rejection := s.findCallRunner(c)
	if rejection != nil {
		return *rejection
	}
	status := c.text("status")
	if status == statusRunning && s.core.Occurs(s.core.Faults().DeleteBusy) {
		return c.paginate(s.baseURL, []map[string]any{{"id": 1, "status": statusRunning}})
	}
	return c.paginate(s.baseURL, s.encodeJobs(func(j *job) bool {
		return j.ranOn.id == r.id && (status == "" || j.status == status)
	}))
}

func (s *Server) listProjectRunners(c *call) response {
	p := s.findCallProject(c)
	switch {
	case p == nil:
		return newNotFound("Project")
	case c.token.roleIn(p.path) < levelMaintainer:
		return newForbidden("")
	}
	return s.encodeRunners(c, func(r *runner) bool { return r.serves(p) })
}

func (s *Server) listGroupRunners(c *call) response {
	g := s.findCallGroup(c)
	switch {
	case g == nil:
		return newNotFound("Group")
	case c.token.roleIn(g.path) < levelMaintainer:
		return newForbidden("")
	}
	return s.encodeRunners(c, func(r *runner) bool {
		return r.kind == typeInstance || r.kind == typeGroup && isWithin(g.path, r.group.path)
	})
}

func (s *Server) listAllRunners(c *call) response {
	if !c.token.Admin {
		return newForbidden("")
	}
	return s.encodeRunners(c, func(*runner) bool { return true })
}

// encodeRunners lists the matching runners, oldest first. This is GitLab's order if the request
// does not choose one.
func (s *Server) encodeRunners(c *call, matches func(*runner) bool) response {
	var found []*runner
	for _, r := range s.runners {
		if matches(r) && s.matchesFilter(c, r) {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(a, b *runner) int { return int(a.id - b.id) })
	list := make([]map[string]any, 0, len(found))
	for _, r := range found {
		list = append(list, s.encodeRunner(r))
	}
	return c.paginate(s.baseURL, list)
}

func (s *Server) matchesFilter(c *call, r *runner) bool {
	status := s.runnerStatus(r)
	switch filter := c.text("status"); {
	case c.text("type") != "" && c.text("type") != r.kind,
		c.flag("paused", r.paused) != r.paused,
		filter == "active" && r.paused, filter == "paused" && !r.paused,
		filter != "" && filter != "active" && filter != "paused" && filter != status:
		return false
	}
	for _, tag := range c.list("tag_list") {
		if !slices.Contains(r.tags, tag) {
			return false
		}
	}
	return true
}

// isWithin reports whether a path names a group or an object in the group.
func isWithin(path, group string) bool { return path == group || strings.HasPrefix(path, group+"/") }

// serves reports whether the runner may run jobs of a project.
func (r *runner) serves(p *project) bool {
	switch r.kind {
	case typeProject:
		return r.project == p
	case typeGroup:
		return isWithin(p.path, r.group.path)
	default:
		return true
	}
}

// canRun reports whether the runner may run a job.
func (r *runner) canRun(j *job) bool {
	if !r.serves(j.pipeline.project) || len(j.tags) == 0 && !r.runUntagged {
		return false
	}
	for _, tag := range j.tags {
		if !slices.Contains(r.tags, tag) {
			return false
		}
	}
	return true
}
