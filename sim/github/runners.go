// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
	"github.com/hyperfleet/hyperfleet/sim/github/protocol"
)

// runner is one runner registration.
type runner struct {
	id        int64
	name      string
	scope     scope
	group     *group // nil: Default
	labels    []label
	ephemeral bool
	jit       bool
	os        string // "unknown" until it first connects
	version   string
	clientID  string
	token     string // access token of the runner service

	session   string
	openPolls int // open polls; a runner with an open poll is online
	lastSeen  time.Time
	wake      chan struct{} // a job was assigned or the session has ended; capacity 1
	job       *job          // assigned or running
	set       *scaleSet     // the set that the runner belongs to
}

// label is a label of a runner. At GitHub, the labels that GitHub sets are read-only.
type label struct {
	id       int64
	name     string
	readOnly bool
}

const (
	defaultGroupID   = 1
	defaultGroupName = "Default"
	maxRunnerName    = 64
	runnerVersion    = "2.330.0"
)

func (r *runner) groupID() int64 {
	if r.group == nil {
		return defaultGroupID
	}
	return r.group.id
}

func (r *runner) groupName() string {
	if r.group == nil {
		return defaultGroupName
	}
	return r.group.name
}

// isOnline reports whether the runner has a session and an open poll or a call within offlineAfter.
func (r *runner) isOnline(now time.Time, offlineAfter time.Duration) bool {
	return r.session != "" && (r.openPolls > 0 || now.Sub(r.lastSeen) < offlineAfter)
}

func (r *runner) isBusy() bool { return r.job != nil && r.job.status == statusInProgress }

type runnerJSON struct {
	ID            int64       `json:"id"`
	RunnerGroupID int64       `json:"runner_group_id"`
	Name          string      `json:"name"`
	OS            string      `json:"os"`
	Status        string      `json:"status"`
	Busy          bool        `json:"busy"`
	Ephemeral     bool        `json:"ephemeral"`
	Version       *string     `json:"version"`
	Labels        []labelJSON `json:"labels"`
}

type labelJSON struct {
	ID   int64  `json:"id"`
	Name string `json:"name"`
	Type string `json:"type"`
}

func (s *Server) encodeRunner(r *runner) runnerJSON {
	out := runnerJSON{
		ID: r.id, RunnerGroupID: r.groupID(), Name: r.name, OS: r.os, Status: "offline",
		Busy: r.isBusy(), Ephemeral: r.ephemeral, Labels: []labelJSON{},
	}
	if r.isOnline(s.now(), s.opts.OfflineAfter) {
		out.Status = "online"
	}
	if r.version != "" {
		out.Version = &r.version
	}
	for _, l := range r.labels {
		kind := "custom"
		if l.readOnly {
			kind = "read-only"
		}
		out.Labels = append(out.Labels, labelJSON{l.id, l.name, kind})
	}
	return out
}

// listScopeRunners lists the runners of a scope in the order of their ids.
func (s *Server) listScopeRunners(sc scope) []*runner {
	var out []*runner
	for _, r := range s.runners {
		if r.scope == sc {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *runner) int { return int(a.id - b.id) })
	return out
}

func (s *Server) findRunner(sc scope, name string) *runner {
	for _, r := range s.runners {
		if r.scope == sc && strings.EqualFold(r.name, name) {
			return r
		}
	}
	return nil
}

// listRunners lists the runners of a scope, or of one of its groups.
func (s *Server) listRunners(c *call) response {
	group, inGroup := c.params["runner_group_id"]
	if inGroup && s.findCallGroup(c) == nil && group != "1" {
		return newNotFound()
	}
	name, list := c.r.URL.Query().Get("name"), []runnerJSON{}
	for _, r := range s.listScopeRunners(c.scope) {
		if (name == "" || strings.EqualFold(r.name, name)) &&
			(!inGroup || strconv.FormatInt(r.groupID(), 10) == group) {
			list = append(list, s.encodeRunner(r))
		}
	}
	part, link := paginate(c, list)
	return response{status: http.StatusOK, link: link, body: map[string]any{"total_count": len(list), "runners": part}}
}

func (s *Server) findCallRunner(c *call) *runner {
	id, err := strconv.ParseInt(c.params["runner_id"], 10, 64)
	if r := s.runners[id]; err == nil && r != nil && r.scope == c.scope {
		return r
	}
	return nil
}

func (s *Server) getRunner(c *call) response {
	r := s.findCallRunner(c)
	if r == nil {
		return newNotFound()
	}
	return newOK(s.encodeRunner(r))
}

// deleteRunner deletes a runner. It rejects the call while the runner runs a job.
func (s *Server) deleteRunner(c *call) response {
	r := s.findCallRunner(c)
	if r == nil {
		return newNotFound()
	}
	if r.isBusy() || s.core.Occurs(s.core.Faults().DeleteBusy) {
		return newError(http.StatusUnprocessableEntity, fmt.Sprintf("Bad request - Runner %q is still running a job\"", r.name))
	}
	s.unregisterRunner(r)
	return response{status: http.StatusNoContent}
}

// unregisterRunner deletes a registration. A queued job that was assigned to the runner becomes
// unassigned.
func (s *Server) unregisterRunner(r *runner) {
	if r.job != nil && r.job.status == statusQueued {
		s.unassign(r.job)
	}
	r.session, r.token = "", ""
	delete(s.runners, r.id)
	engine.Wake(r.wake)
}

type jitRequest struct {
	Name       string   `json:"name"`
	GroupID    int64    `json:"runner_group_id"`
	Labels     []string `json:"labels"`
	WorkFolder string   `json:"work_folder"`
}

// createJITConfig registers an ephemeral runner that has not connected yet.
func (s *Server) createJITConfig(c *call) response {
	var req jitRequest
	if err := json.Unmarshal(c.body, &req); err != nil {
		return newError(http.StatusBadRequest, "Problems parsing JSON")
	}
	if text := checkRunnerName(req.Name); text != "" {
		return newError(http.StatusUnprocessableEntity, text)
	}
	c.params["runner_group_id"] = strconv.FormatInt(req.GroupID, 10)
	group := s.findCallGroup(c)
	if group == nil && req.GroupID != defaultGroupID {
		return newNotFound()
	}
	if s.findRunner(c.scope, req.Name) != nil {
		return newError(http.StatusConflict, "Already exists - A runner with the name "+req.Name+" already exists.")
	}
	if !s.admitRegistration(c.scope) {
		return newRegistrationLimitError()
	}
	r := s.newRunner(c.scope, req.Name, group)
	r.ephemeral, r.jit = true, true
	for _, name := range req.Labels {
		s.addLabel(r, name, custom)
	}
	const noUpdate = true
	blob, err := s.encodeConfig(r, c.baseURL, req.WorkFolder, noUpdate)
	if err != nil {
		return newError(http.StatusInternalServerError, err.Error())
	}
	return newCreated(map[string]any{"runner": s.encodeRunner(r), "encoded_jit_config": blob})
}

func checkRunnerName(name string) string {
	switch {
	case name == "":
		return "Invalid request.\n\n\"name\" wasn't supplied."
	case len(name) > maxRunnerName:
		return fmt.Sprintf("Bad request - Runner name %q is longer than %d characters", name, maxRunnerName)
	}
	return ""
}

func (s *Server) newRunner(sc scope, name string, g *group) *runner {
	s.ids.runner++
	s.registeredCount++
	r := &runner{
		id: s.ids.runner, name: name, scope: sc, group: g, os: "unknown", clientID: engine.NewUUID(),
		wake: make(chan struct{}, 1), lastSeen: s.now(),
	}
	s.runners[r.id] = r
	return r
}

// readOnly and custom are the values of the parameter isReadOnly. They are GitHub's two types of labels.
const readOnly, custom = true, false

func (s *Server) addLabel(r *runner, name string, isReadOnly bool) {
	for _, l := range r.labels {
		if strings.EqualFold(l.name, name) {
			return
		}
	}
	s.ids.label++
	r.labels = append(r.labels, label{s.ids.label, name, isReadOnly})
}

// encodeConfig encodes the configuration of a runner as a just-in-time config.
func (s *Server) encodeConfig(r *runner, host, work string, noUpdate bool) (string, error) {
	key, err := s.ensureRunnerKey()
	if err != nil {
		return "", err
	}
	if work == "" {
		work = "_work"
	}
	config := protocol.Config{
		Runner: protocol.RunnerFile{
			AgentID: strconv.FormatInt(r.id, 10), AgentName: r.name,
			PoolID: strconv.FormatInt(r.groupID(), 10), PoolName: r.groupName(),
			DisableUpdate: formatFlag(noUpdate), Ephemeral: formatFlag(r.ephemeral),
			ServerURL: host, GitHubURL: host + "/" + s.scopePath(r.scope), WorkFolder: work,
			UseV2Flow: "True", ServerURLV2: host,
		},
		Credentials: protocol.CredentialsFile{Scheme: "OAuth", Data: protocol.CredentialsData{
			ClientID: r.clientID, AuthorizationURL: host + protocol.PathToken, RequireFips: "True",
		}},
		RSA: protocol.NewRSAParams(key),
	}
	blob, err := protocol.EncodeJIT(config)
	if err != nil {
		return "", errors.Join(fmt.Errorf("encode configuration of runner %q", r.name), err)
	}
	return blob, nil
}

func formatFlag(isOn bool) string {
	if isOn {
		return "True"
	}
	return "False"
}

// scopePath returns the scope as URLs spell it, with the original case.
func (s *Server) scopePath(sc scope) string {
	switch sc.kind {
	case scopeRepo:
		return s.repos[sc.name].fullName()
	case scopeOrg:
		return s.orgs[sc.name].login
	case scopeEnterprise:
		return "enterprises/" + s.opts.Enterprise
	case scopeNone:
	}
	return ""
}

// grant is a registration or removal token. It is valid for an hour and can be used any number of
// times.
type grant struct {
	scope     scope
	isRemoval bool
	expiresAt time.Time
}

const grantLifetime = time.Hour

// tokenTimeLayout is the layout of expires_at in GitHub's responses with these tokens.
const tokenTimeLayout = "2006-01-02T15:04:05.000-07:00"

func (s *Server) createRegistrationToken(c *call) response { return s.createToken(c, forRegistration) }

func (s *Server) createRemoveToken(c *call) response { return s.createToken(c, forRemoval) }

// forRemoval and forRegistration are the values of the parameter isRemoval.
const forRemoval, forRegistration = true, false

func (s *Server) createToken(c *call, isRemoval bool) response {
	token := "A" + strings.ToUpper(engine.RandomHex(14))
	expires := c.now.Add(grantLifetime)
	s.tokens[token] = &grant{scope: c.scope, isRemoval: isRemoval, expiresAt: expires}
	zone := time.FixedZone("PST", -8*60*60)
	return newCreated(map[string]any{"token": token, "expires_at": expires.In(zone).Format(tokenTimeLayout)})
}

func (s *Server) findCallGroup(c *call) *group {
	id, err := strconv.ParseInt(c.params["runner_group_id"], 10, 64)
	if err != nil {
		return nil
	}
	for _, g := range s.groups {
		if g.id == id && g.scope == c.scope {
			return g
		}
	}
	return nil
}

func (s *Server) encodeGroup(c *call, g *group) map[string]any {
	id, name, visibility := int64(defaultGroupID), defaultGroupName, "all"
	if g != nil {
		id, name, visibility = g.id, g.name, g.visibility
	}
	base := fmt.Sprintf("%s/orgs/%s/actions/runner-groups/%d", s.shapes.links.api, url.PathEscape(c.scope.name), id)
	if c.scope.kind == scopeEnterprise {
		base = fmt.Sprintf("%s/enterprises/%s/actions/runner-groups/%d", s.shapes.links.api, c.scope.name, id)
	}
	out := map[string]any{
		"id": id, "name": name, "visibility": visibility, "default": g == nil, "inherited": false,
		"runners_url": base + "/runners", "hosted_runners_url": base + "/hosted-runners",
		"allows_public_repositories": true, "restricted_to_workflows": false,
		"selected_workflows": []string{}, "workflow_restrictions_read_only": false,
	}
	if visibility == "selected" {
		out["selected_repositories_url"] = base + "/repositories"
	}
	return out
}

func (s *Server) listGroups(c *call) response {
	list := []map[string]any{s.encodeGroup(c, nil)}
	repo := c.r.URL.Query().Get("visible_to_repository")
	for _, g := range s.groups {
		if g.scope != c.scope {
			continue
		}
		visibleTo := s.repos[strings.ToLower(s.scopePath(c.scope)+"/"+repo)]
		if repo == "" || (visibleTo != nil && g.allows(visibleTo)) {
			list = append(list, s.encodeGroup(c, g))
		}
	}
	part, link := paginate(c, list)
	return response{status: http.StatusOK, link: link, body: map[string]any{"total_count": len(list), "runner_groups": part}}
}

func (s *Server) getGroup(c *call) response {
	g := s.findCallGroup(c)
	if g == nil && c.params["runner_group_id"] != "1" {
		return newNotFound()
	}
	return newOK(s.encodeGroup(c, g))
}

// allows reports whether jobs of a repository may use the runners of the group.
func (g *group) allows(repo *repository) bool {
	switch {
	case g == nil || g.visibility == "all":
		return true
	case g.visibility == "private":
		return repo.private
	}
	return g.selected[strings.ToLower(repo.fullName())] || g.selected[strings.ToLower(repo.owner.login)]
}

// paginate returns the requested page of a list and the value of the Link header.
func paginate[T any](c *call, list []T) (part []T, link string) {
	query := c.r.URL.Query()
	size, number := parsePositive(query.Get("per_page"), 30), parsePositive(query.Get("page"), 1)
	size = min(size, 100)
	last := max((len(list)+size-1)/size, 1)
	start := min((number-1)*size, len(list))
	part = list[start:min(start+size, len(list))]
	newLink := func(n int, rel string) string {
		query.Set("page", strconv.Itoa(n))
		query.Set("per_page", strconv.Itoa(size))
		u := *c.r.URL
		u.RawQuery = query.Encode()
		return fmt.Sprintf("<%s%s>; rel=%q", c.baseURL, u.RequestURI(), rel)
	}
	var links []string
	if number > 1 {
		links = append(links, newLink(min(number-1, last), "prev"))
	}
	if number < last {
		links = append(links, newLink(number+1, "next"), newLink(last, "last"))
	}
	if number > 1 {
		links = append(links, newLink(1, "first"))
	}
	return part, strings.Join(links, ", ")
}

func parsePositive(text string, fallback int) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return fallback
	}
	return n
}
