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

// runner is one registration.
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

	session  string
	polls    int // held polls; while one is open the runner is there
	lastSeen time.Time
	wake     chan struct{} // a job was assigned or the session is over; capacity 1
	job      *job          // assigned or running
	set      *scaleSet     // that the runner belongs to
}

// label of a runner. GitHub calls its own labels read-only.
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

// online says whether the runner holds a session and was heard of lately.
func (r *runner) online(now time.Time, offlineAfter time.Duration) bool {
	return r.session != "" && (r.polls > 0 || now.Sub(r.lastSeen) < offlineAfter)
}

func (r *runner) busy() bool { return r.job != nil && r.job.status == statusInProgress }

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

func (s *Server) runnerJSON(r *runner) runnerJSON {
	out := runnerJSON{
		ID: r.id, RunnerGroupID: r.groupID(), Name: r.name, OS: r.os, Status: "offline",
		Busy: r.busy(), Ephemeral: r.ephemeral, Labels: []labelJSON{},
	}
	if r.online(s.now(), s.opts.OfflineAfter) {
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

// runnersOf lists the runners of a scope by id.
func (s *Server) runnersOf(sc scope) []*runner {
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

// answerRunners lists the runners of a scope, or of one of its groups.
func (s *Server) answerRunners(c *call) reply {
	group, inGroup := c.params["runner_group_id"]
	if inGroup && s.groupByID(c) == nil && group != "1" {
		return notFound()
	}
	name, list := c.r.URL.Query().Get("name"), []runnerJSON{}
	for _, r := range s.runnersOf(c.scope) {
		if (name == "" || strings.EqualFold(r.name, name)) &&
			(!inGroup || strconv.FormatInt(r.groupID(), 10) == group) {
			list = append(list, s.runnerJSON(r))
		}
	}
	part, link := page(c, list)
	return reply{status: http.StatusOK, link: link, body: map[string]any{"total_count": len(list), "runners": part}}
}

func (s *Server) runnerOf(c *call) *runner {
	id, err := strconv.ParseInt(c.params["runner_id"], 10, 64)
	if r := s.runners[id]; err == nil && r != nil && r.scope == c.scope {
		return r
	}
	return nil
}

func (s *Server) answerRunner(c *call) reply {
	r := s.runnerOf(c)
	if r == nil {
		return notFound()
	}
	return ok(s.runnerJSON(r))
}

// answerDeleteRunner refuses while a job runs, with GitHub's words.
func (s *Server) answerDeleteRunner(c *call) reply {
	r := s.runnerOf(c)
	if r == nil {
		return notFound()
	}
	if r.busy() || s.core.Chance(s.core.Faults().DeleteBusy) {
		return fail(http.StatusUnprocessableEntity, fmt.Sprintf("Bad request - Runner %q is still running a job\"", r.name))
	}
	s.removeRunner(r)
	return reply{status: http.StatusNoContent}
}

// removeRunner forgets a registration; a job assigned to it is queued again.
func (s *Server) removeRunner(r *runner) {
	if r.job != nil && r.job.status == statusQueued {
		s.unassign(r.job)
	}
	r.session, r.token = "", ""
	delete(s.runners, r.id)
	engine.Poke(r.wake)
}

type jitRequest struct {
	Name       string   `json:"name"`
	GroupID    int64    `json:"runner_group_id"`
	Labels     []string `json:"labels"`
	WorkFolder string   `json:"work_folder"`
}

// answerJIT registers an ephemeral runner that has not connected yet.
func (s *Server) answerJIT(c *call) reply {
	var req jitRequest
	if err := json.Unmarshal(c.body, &req); err != nil {
		return fail(http.StatusBadRequest, "Problems parsing JSON")
	}
	if text := checkRunnerName(req.Name); text != "" {
		return fail(http.StatusUnprocessableEntity, text)
	}
	c.params["runner_group_id"] = strconv.FormatInt(req.GroupID, 10)
	group := s.groupByID(c)
	if group == nil && req.GroupID != defaultGroupID {
		return notFound()
	}
	if s.findRunner(c.scope, req.Name) != nil {
		return fail(http.StatusConflict, "Already exists - A runner with the name "+req.Name+" already exists.")
	}
	if !s.admitRegistration(c.scope) {
		return refuseRegistration()
	}
	r := s.newRunner(c.scope, req.Name, group)
	r.ephemeral, r.jit = true, true
	for _, name := range req.Labels {
		s.addLabel(r, name, false)
	}
	blob, err := s.encodeConfig(r, c.host, req.WorkFolder, true)
	if err != nil {
		return fail(http.StatusInternalServerError, err.Error())
	}
	return created(map[string]any{"runner": s.runnerJSON(r), "encoded_jit_config": blob})
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
	s.registered++
	r := &runner{
		id: s.ids.runner, name: name, scope: sc, group: g, os: "unknown", clientID: engine.UUID(),
		wake: make(chan struct{}, 1), lastSeen: s.now(),
	}
	s.runners[r.id] = r
	return r
}

func (s *Server) addLabel(r *runner, name string, readOnly bool) {
	for _, l := range r.labels {
		if strings.EqualFold(l.name, name) {
			return
		}
	}
	s.ids.label++
	r.labels = append(r.labels, label{s.ids.label, name, readOnly})
}

// encodeConfig packs what a runner must know into a JIT blob.
func (s *Server) encodeConfig(r *runner, host, work string, noUpdate bool) (string, error) {
	key, err := s.key()
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
			DisableUpdate: flag(noUpdate), Ephemeral: flag(r.ephemeral),
			ServerURL: host, GitHubURL: host + "/" + s.place(r.scope), WorkFolder: work,
			UseV2Flow: "True", ServerURLV2: host,
		},
		Credentials: protocol.CredentialsFile{Scheme: "OAuth", Data: protocol.CredentialsData{
			ClientID: r.clientID, AuthorizationURL: host + protocol.PathToken, RequireFips: "True",
		}},
		RSA: protocol.RSAParams(key),
	}
	blob, err := protocol.EncodeJIT(config)
	if err != nil {
		return "", errors.Join(fmt.Errorf("encode configuration of runner %q", r.name), err)
	}
	return blob, nil
}

func flag(on bool) string {
	if on {
		return "True"
	}
	return "False"
}

// place is the scope as it stands in a URL, in its own spelling.
func (s *Server) place(sc scope) string {
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

// grant is a registration or removal token: good for an hour, any number of times.
type grant struct {
	scope   scope
	remove  bool
	expires time.Time
}

const grantLife = time.Hour

// tokenTime is how GitHub writes expires_at of these tokens.
const tokenTime = "2006-01-02T15:04:05.000-07:00"

func (s *Server) answerRegistrationToken(c *call) reply { return s.grantToken(c, false) }

func (s *Server) answerRemoveToken(c *call) reply { return s.grantToken(c, true) }

func (s *Server) grantToken(c *call, remove bool) reply {
	token := "A" + strings.ToUpper(engine.Hex(14))
	expires := c.now.Add(grantLife)
	s.tokens[token] = &grant{scope: c.scope, remove: remove, expires: expires}
	zone := time.FixedZone("PST", -8*60*60)
	return created(map[string]any{"token": token, "expires_at": expires.In(zone).Format(tokenTime)})
}

func (s *Server) groupByID(c *call) *group {
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

func (s *Server) groupJSON(c *call, g *group) map[string]any {
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

func (s *Server) answerGroups(c *call) reply {
	list := []map[string]any{s.groupJSON(c, nil)}
	repo := c.r.URL.Query().Get("visible_to_repository")
	for _, g := range s.groups {
		if g.scope != c.scope {
			continue
		}
		known := s.repos[strings.ToLower(s.place(c.scope)+"/"+repo)]
		if repo == "" || (known != nil && g.allows(known)) {
			list = append(list, s.groupJSON(c, g))
		}
	}
	part, link := page(c, list)
	return reply{status: http.StatusOK, link: link, body: map[string]any{"total_count": len(list), "runner_groups": part}}
}

func (s *Server) answerGroup(c *call) reply {
	g := s.groupByID(c)
	if g == nil && c.params["runner_group_id"] != "1" {
		return notFound()
	}
	return ok(s.groupJSON(c, g))
}

// allows says whether jobs of a repository may use the group's runners.
func (g *group) allows(repo *repository) bool {
	switch {
	case g == nil || g.visibility == "all":
		return true
	case g.visibility == "private":
		return repo.private
	}
	return g.selected[strings.ToLower(repo.fullName())] || g.selected[strings.ToLower(repo.owner.login)]
}

func (s *Server) answerDownloads(*call) reply {
	list := []map[string]any{}
	for _, arch := range []string{"x64", "arm64"} {
		file := fmt.Sprintf("actions-runner-linux-%s-%s.tar.gz", arch, runnerVersion)
		list = append(list, map[string]any{
			"os": "linux", "architecture": arch, "filename": file,
			"download_url": "https://github.com/actions/runner/releases/download/v" + runnerVersion + "/" + file,
		})
	}
	return ok(list)
}

// page cuts one page out of a list and writes the Link header.
func page[T any](c *call, list []T) (part []T, link string) {
	query := c.r.URL.Query()
	size, number := intOr(query.Get("per_page"), 30), intOr(query.Get("page"), 1)
	size = min(size, 100)
	last := max((len(list)+size-1)/size, 1)
	start := min((number-1)*size, len(list))
	part = list[start:min(start+size, len(list))]
	at := func(n int, rel string) string {
		query.Set("page", strconv.Itoa(n))
		query.Set("per_page", strconv.Itoa(size))
		u := *c.r.URL
		u.RawQuery = query.Encode()
		return fmt.Sprintf("<%s%s>; rel=%q", c.host, u.RequestURI(), rel)
	}
	var links []string
	if number > 1 {
		links = append(links, at(min(number-1, last), "prev"))
	}
	if number < last {
		links = append(links, at(number+1, "next"), at(last, "last"))
	}
	if number > 1 {
		links = append(links, at(1, "first"))
	}
	return part, strings.Join(links, ", ")
}

func intOr(text string, fallback int) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return fallback
	}
	return n
}
