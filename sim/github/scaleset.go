// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
	"github.com/hyperfleet/hyperfleet/sim/github/protocol"
)

// Paths of the Actions service. Where it is, GitHub says in the answer to a registration;
// the queue of messages is on another host there, and so has another path here.
const (
	pathRegistration = "/actions/runner-registration"
	pathService      = "/actions-service/{tenant}"
	pathScaleSets    = pathService + "/_apis/runtime/runnerscalesets"
	pathAgents       = pathService + "/_apis/distributedtask/pools/0/agents"
	pathQueue        = "/actions-broker/scalesets/message"
	// apiVersion that every call to the service asks for.
	apiVersion = "6.0-preview"
	// exceptions is the namespace of the service's errors.
	exceptions = "GitHub.Actions.Runtime.WebApi"
)

// ScaleSetOptions are the Actions service's part of Options.
type ScaleSetOptions struct {
	// Offer makes the service offer jobs, to be acquired, as GitHub Enterprise Server does;
	// github.com assigns them at once, up to the capacity that is asked with.
	Offer bool

	AdminTokenLife time.Duration // default 1 h
	QueueTokenLife time.Duration // default 50 min
	SessionLife    time.Duration // silence until a session is over; default 5 min
	AssignTimeout  time.Duration // an assigned job that no runner took is taken back; default 5 min
	AssignDelay    time.Duration // before it is assigned again, times the number of tries; default 10 s
}

func (o *ScaleSetOptions) setDefaults() {
	for field, value := range map[*time.Duration]time.Duration{
		&o.AdminTokenLife: time.Hour, &o.QueueTokenLife: 50 * time.Minute, &o.SessionLife: 5 * time.Minute,
		&o.AssignTimeout: 5 * time.Minute, &o.AssignDelay: 10 * time.Second,
	} {
		if *field <= 0 {
			*field = value
		}
	}
}

// scaleSet is a runner scale set: a name that jobs ask for, and a queue of messages.
type scaleSet struct {
	id       int64
	scope    scope
	group    *group // nil: Default
	name     string
	labels   []setLabel
	setting  setSetting
	created  time.Time
	capacity int // as last asked with

	session *setSession
	events  []map[string]any // not in a message yet
	queue   []setMessage     // not acknowledged yet
	lastID  int64
	wake    chan struct{} // closed when something changed
}

// scaleSets is the state of the service; the zero value is ready.
type scaleSets struct {
	sets   []*scaleSet
	last   struct{ set, request int64 }
	admins map[string]*grant // by token
}

type setLabel struct {
	ID   int64  `json:"id,omitempty"`
	Type string `json:"type"`
	Name string `json:"name"`
}

type setSetting struct {
	Ephemeral     bool `json:"ephemeral"`
	DisableUpdate bool `json:"disableUpdate"`
}

// setRequest is the body of a creation or an update. Callers send whole sets, and so the
// fields too that they can't set.
type setRequest struct {
	Name    string      `json:"name"`
	GroupID int64       `json:"runnerGroupId"`
	Labels  []setLabel  `json:"labels"`
	Setting *setSetting `json:"RunnerSetting"`

	ID         json.RawMessage `json:"id"`
	GroupName  json.RawMessage `json:"runnerGroupName"`
	CreatedOn  json.RawMessage `json:"createdOn"`
	JITURL     json.RawMessage `json:"runnerJitConfigUrl"`
	Statistics json.RawMessage `json:"statistics"`
}

type setJSON struct {
	ID         int64      `json:"id"`
	Name       string     `json:"name"`
	GroupID    int64      `json:"runnerGroupId"`
	GroupName  string     `json:"runnerGroupName"`
	Labels     []setLabel `json:"labels"`
	Setting    setSetting `json:"RunnerSetting"`
	CreatedOn  time.Time  `json:"createdOn"`
	JITURL     string     `json:"runnerJitConfigUrl"`
	Statistics setCounts  `json:"statistics"`
}

// setCall is one call to the service.
type setCall struct {
	s     *Server
	w     http.ResponseWriter
	r     *http.Request
	scope scope
	set   *scaleSet
	now   time.Time
}

// scaleSetRoutes mounts the Actions service.
func (s *Server) scaleSetRoutes(root *http.ServeMux) {
	root.HandleFunc("POST "+pathRegistration, s.registerAdmin)
	root.HandleFunc("POST /api/v3"+pathRegistration, s.registerAdmin)
	one := pathScaleSets + "/{set}"
	for pattern, do := range map[string]func(*setCall){
		"GET " + pathService + "/_apis/runtime/runnergroups/": (*setCall).listGroups,
		"GET " + pathScaleSets:                                (*setCall).listSets,
		"POST " + pathScaleSets:                               (*setCall).createSet,
		"GET " + one:                                          (*setCall).getSet,
		"PATCH " + one:                                        (*setCall).updateSet,
		"DELETE " + one:                                       (*setCall).deleteSet,
		"GET " + one + "/acquirablejobs":                      (*setCall).listAcquirable,
		"POST " + one + "/generatejitconfig":                  (*setCall).generateJIT,
		"POST " + one + "/sessions":                           (*setCall).openSession,
		"PATCH " + one + "/sessions/{session}":                (*setCall).refreshSession,
		"DELETE " + one + "/sessions/{session}":               (*setCall).closeSession,
		"GET " + pathAgents:                                   (*setCall).listAgents,
		"GET " + pathAgents + "/{agent}":                      (*setCall).getAgent,
		"DELETE " + pathAgents + "/{agent}":                   (*setCall).deleteAgent,
	} {
		root.HandleFunc(pattern, s.withAdmin(do))
	}
	root.HandleFunc("POST "+one+"/acquirejobs", s.acquireJobs)
	root.HandleFunc("GET "+pathQueue, s.pollQueue)
	root.HandleFunc("DELETE "+pathQueue+"/{message}", s.acknowledge)
	root.HandleFunc("/actions-service/", s.unknown)
	root.HandleFunc("/actions-broker/", s.unknown)
}

// registerAdmin trades a registration token for the service's address and a token for it.
func (s *Server) registerAdmin(w http.ResponseWriter, r *http.Request) {
	var req struct {
		URL   string `json:"url"`
		Event string `json:"runner_event"`
	}
	if !s.readStrict(w, r, &req) {
		return
	}
	s.lock()
	defer s.core.Mu.Unlock()
	s.core.Requests["runner-registration"]++
	if s.core.Chance(s.core.Faults().ServerError) {
		refuse(w, http.StatusInternalServerError, "an error by a fault")
		return
	}
	if req.Event != "register" {
		s.violateLocked("request", r.Method, r.URL.Path, fmt.Errorf("runner_event is %q, want register", req.Event))
	}
	sc, err := s.grantFor(r, req.URL, false)
	if err != nil {
		refuse(w, http.StatusNotFound, err.Error())
		return
	}
	key, err := s.key()
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	expires := s.now().Add(s.opts.ScaleSets.AdminTokenLife)
	token, err := protocol.Sign(key, protocol.Claims{
		Subject: engine.UUID(), IssuedAt: json.Number(strconv.FormatInt(s.now().Unix(), 10)),
		Expires: json.Number(strconv.FormatInt(expires.Unix(), 10)), TokenUUID: engine.UUID(),
	})
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	if s.scaling.admins == nil {
		s.scaling.admins = map[string]*grant{}
	}
	s.scaling.admins[token] = &grant{scope: sc, expires: expires}
	sendJSON(w, http.StatusOK, map[string]any{
		"url": hostOf(r) + "/actions-service/" + url.PathEscape(sc.String()) + "/", "token": token,
		"token_schema": "OAuthAccessToken", "use_v2_flow": true,
	})
}

// exception answers as the service does when it refuses a call.
func exception(w http.ResponseWriter, status int, kind, message string) {
	sendJSON(w, status, map[string]any{
		"$id": "1", "innerException": nil, "message": message, "typeKey": kind,
		"typeName": exceptions + "." + kind + ", " + exceptions, "errorCode": 0, "eventId": 3000,
	})
}

// decodeBody reads a body. Fields that are not known are passed over, as the service does:
// unknown tells of the first.
func decodeBody(w http.ResponseWriter, r *http.Request, into any) (unknown, err error) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return nil, fmt.Errorf("read body: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("read body: %w", err), nil
	}
	return nil, nil
}

// readStrict reads a body and records fields that the service does not know.
func (s *Server) readStrict(w http.ResponseWriter, r *http.Request, into any) bool {
	return readBody(w, r, into, func(err error) { s.violate("request", r.Method, r.URL.Path, err) })
}

func readBody(w http.ResponseWriter, r *http.Request, into any, violate func(error)) bool {
	unknown, err := decodeBody(w, r, into)
	if bad := cmp.Or(err, unknown); bad != nil {
		violate(bad)
	}
	if err != nil {
		exception(w, http.StatusBadRequest, "VssPropertyValidationException", "the body cannot be read")
	}
	return err == nil
}

// withAdmin checks what is the same for all calls with an administrator's token. The
// server is locked meanwhile, but for the reading of bodies.
func (s *Server) withAdmin(do func(*setCall)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if got := r.URL.Query().Get("api-version"); got != apiVersion {
			s.violate("request", r.Method, r.URL.Path, fmt.Errorf("api-version is %q, want %s", got, apiVersion))
		}
		s.lock()
		defer s.core.Mu.Unlock()
		s.core.Requests["scaleset "+r.Method+" "+lastWord(r.Pattern)]++
		if s.core.Chance(s.core.Faults().ServerError) {
			exception(w, http.StatusInternalServerError, "VssServiceException", "an error by a fault")
			return
		}
		token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		admin := s.scaling.admins[token]
		if !bearer || admin == nil || !s.now().Before(admin.expires) || admin.scope.String() != r.PathValue("tenant") {
			exception(w, http.StatusUnauthorized, "VssUnauthorizedException", "the token is unknown, expired or of another tenant")
			return
		}
		c := &setCall{s: s, w: w, r: r, scope: admin.scope, now: s.now()}
		if id := r.PathValue("set"); id != "" {
			if c.set = s.setByID(id, admin.scope); c.set == nil {
				exception(w, http.StatusNotFound, "RunnerScaleSetNotFoundException", "No runner scale set found with identifier "+id+".")
				return
			}
		}
		do(c)
		s.advance(s.now())
		s.core.Kick()
	}
}

func lastWord(pattern string) string {
	parts := strings.Split(strings.TrimSuffix(pattern, "/"), "/")
	word := parts[len(parts)-1]
	if strings.HasPrefix(word, "{") {
		word = parts[len(parts)-2] + "/" + word
	}
	return word
}

// read reads the body. The lock stays held: the body of a call is small, and here.
func (c *setCall) read(into any) bool { return readBody(c.w, c.r, into, c.violate) }

func (c *setCall) violate(err error) { c.s.violateLocked("request", c.r.Method, c.r.URL.Path, err) }

func (s *Server) setByID(id string, sc scope) *scaleSet {
	for _, set := range s.scaling.sets {
		if strconv.FormatInt(set.id, 10) == id && set.scope == sc {
			return set
		}
	}
	return nil
}

type groupEntry struct {
	ID        int64  `json:"id"`
	Name      string `json:"name"`
	Size      int    `json:"size"`
	IsDefault bool   `json:"isDefaultGroup"`
}

func (c *setCall) listGroups() {
	name := c.r.URL.Query().Get("groupName")
	list := []groupEntry{}
	if strings.EqualFold(name, defaultGroupName) {
		list = append(list, groupEntry{ID: defaultGroupID, Name: defaultGroupName, IsDefault: true})
	}
	for _, g := range c.s.groups {
		if g.scope == c.scope && strings.EqualFold(g.name, name) {
			list = append(list, groupEntry{ID: g.id, Name: g.name})
		}
	}
	sendJSON(c.w, http.StatusOK, map[string]any{"count": len(list), "value": list})
}

// listSets finds sets by group and name, both of which are asked for.
func (c *setCall) listSets() {
	query := c.r.URL.Query()
	if query.Get("name") == "" || query.Get("runnerGroupId") == "" {
		c.violate(errors.New("runnerGroupId and name must both be given"))
	}
	list := []setJSON{}
	for _, set := range c.s.scaling.sets {
		group := strconv.FormatInt(groupIDOf(set.group), 10)
		if set.scope == c.scope && strings.EqualFold(set.name, query.Get("name")) && group == query.Get("runnerGroupId") {
			list = append(list, c.setJSON(set))
		}
	}
	sendJSON(c.w, http.StatusOK, map[string]any{"count": len(list), "value": list})
}

func groupIDOf(g *group) int64 { return (&runner{group: g}).groupID() }

func (c *setCall) setJSON(set *scaleSet) setJSON {
	return setJSON{
		ID: set.id, Name: set.name, GroupID: groupIDOf(set.group), GroupName: (&runner{group: set.group}).groupName(),
		Labels: slices.Clone(set.labels), Setting: set.setting, CreatedOn: set.created.UTC(),
		JITURL:     c.base() + "/_apis/runtime/runnerscalesets/" + strconv.FormatInt(set.id, 10) + "/generatejitconfig",
		Statistics: c.s.countSet(set),
	}
}

func (c *setCall) base() string {
	return hostOf(c.r) + "/actions-service/" + url.PathEscape(c.scope.String())
}

// apply takes over what a creation or an update says: what an update leaves out stays.
func (c *setCall) apply(set *scaleSet, req setRequest) bool {
	req.Name = cmp.Or(req.Name, set.name)
	if req.GroupID == 0 && set.id != 0 {
		req.GroupID = groupIDOf(set.group)
	}
	group := c.s.groupWithID(c.scope, req.GroupID)
	if group == nil && req.GroupID != defaultGroupID {
		exception(c.w, http.StatusNotFound, "RunnerGroupNotFoundException", "No runner group found.")
		return false
	}
	for _, other := range c.s.scaling.sets {
		if other != set && other.scope == c.scope && other.group == group && strings.EqualFold(other.name, req.Name) {
			exception(c.w, http.StatusBadRequest, "RunnerScaleSetExistsException",
				"A runner scale set with the name "+req.Name+" already exists.")
			return false
		}
	}
	set.group, set.name = group, req.Name
	if len(req.Labels) > 0 {
		set.labels = nil
	}
	for _, l := range req.Labels {
		if l.Type != "System" || l.Name == "" {
			c.violate(fmt.Errorf("label %+v: type must be System and a name given", l))
		}
		c.s.ids.label++
		set.labels = append(set.labels, setLabel{c.s.ids.label, l.Type, l.Name})
	}
	if req.Setting != nil {
		set.setting = *req.Setting
	}
	set.changed()
	return true
}

func (s *Server) groupWithID(sc scope, id int64) *group {
	for _, g := range s.groups {
		if g.id == id && g.scope == sc {
			return g
		}
	}
	return nil
}

func (c *setCall) createSet() {
	var req setRequest
	if !c.read(&req) {
		return
	}
	if req.Name == "" || len(req.Labels) == 0 {
		c.violate(errors.New("a scale set needs a name and a label"))
		exception(c.w, http.StatusBadRequest, "VssPropertyValidationException", "name or labels are missing")
		return
	}
	set := &scaleSet{scope: c.scope, created: c.now, wake: make(chan struct{})}
	if !c.apply(set, req) {
		return
	}
	c.s.scaling.last.set++
	set.id = c.s.scaling.last.set
	c.s.scaling.sets = append(c.s.scaling.sets, set)
	sendJSON(c.w, http.StatusOK, c.setJSON(set))
}

func (c *setCall) getSet() { sendJSON(c.w, http.StatusOK, c.setJSON(c.set)) }

func (c *setCall) updateSet() {
	var req setRequest
	if c.read(&req) && c.apply(c.set, req) {
		sendJSON(c.w, http.StatusOK, c.setJSON(c.set))
	}
}

// deleteSet forgets a set and its runners; its jobs wait for another.
func (c *setCall) deleteSet() {
	c.s.dropSet(c.set)
	sendJSON(c.w, http.StatusNoContent, nil)
}

func (s *Server) dropSet(set *scaleSet) {
	for _, j := range s.queue {
		if j.set == set {
			s.unassign(j)
			j.set = nil
		}
	}
	for _, r := range s.runners {
		if r.set == set && !r.busy() {
			s.removeRunner(r)
		}
	}
	s.scaling.sets = slices.DeleteFunc(s.scaling.sets, func(other *scaleSet) bool { return other == set })
	set.session = nil
	set.changed()
}

// AddScaleSet makes a scale set of a repository with other labels than its name, as other
// tools do.
func (s *Server) AddScaleSet(repo, name string, labels ...string) error {
	s.lock()
	defer s.core.Mu.Unlock()
	if s.repos[strings.ToLower(repo)] == nil || s.setByName(name) != nil {
		return fmt.Errorf("add scale set %q: no repository %q, or the set exists", name, repo)
	}
	s.scaling.last.set++
	set := &scaleSet{
		id: s.scaling.last.set, scope: scope{scopeRepo, strings.ToLower(repo)}, name: name, created: s.now(), wake: make(chan struct{}),
	}
	for _, l := range labels {
		s.ids.label++
		set.labels = append(set.labels, setLabel{s.ids.label, "System", l})
	}
	s.scaling.sets = append(s.scaling.sets, set)
	return nil
}

// DeleteScaleSet deletes a set as a person does on the settings page.
func (s *Server) DeleteScaleSet(name string) error {
	s.lock()
	defer s.core.Mu.Unlock()
	set := s.setByName(name)
	if set == nil {
		return fmt.Errorf("delete scale set %q: there is none", name)
	}
	s.dropSet(set)
	return nil
}
