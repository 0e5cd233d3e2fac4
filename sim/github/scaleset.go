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

// Paths of the Actions service. GitHub returns the URL of the service in the response to a
// registration. GitHub serves the message queue on another host. The simulator serves the queue at
// another path.
const (
	pathRegistration = "/actions/runner-registration"
	pathService      = "/actions-service/{tenant}"
	pathScaleSets    = pathService + "/_apis/runtime/runnerscalesets"
	pathAgents       = pathService + "/_apis/distributedtask/pools/0/agents"
	pathQueue        = "/actions-broker/scalesets/message"
	// apiVersion is the version that every call to the service must request.
	apiVersion = "6.0-preview"
	// exceptionNamespace is the namespace of the service's exceptions.
	exceptionNamespace = "GitHub.Actions.Runtime.WebApi"
)

// ScaleSetOptions configure the Actions service.
type ScaleSetOptions struct {
	// OfferJobs makes the service offer jobs, which the listener acquires, as GitHub Enterprise
	// Server does. Without OfferJobs, the service assigns jobs at once, up to the capacity that the
	// last poll named, as github.com does.
	OfferJobs bool

	AdminTokenLifetime time.Duration // default 1 h
	QueueTokenLifetime time.Duration // default 50 min
	SessionTimeout     time.Duration // time without a call after which a session ends; default 5 min
	AssignTimeout      time.Duration // time after which the assignment of a job that no runner took ends; default 5 min
	AssignDelay        time.Duration // delay before a job is assigned again, times the number of attempts; default 10 s
}

func (o *ScaleSetOptions) setDefaults() {
	for field, value := range map[*time.Duration]time.Duration{
		&o.AdminTokenLifetime: time.Hour, &o.QueueTokenLifetime: 50 * time.Minute, &o.SessionTimeout: 5 * time.Minute,
		&o.AssignTimeout: 5 * time.Minute, &o.AssignDelay: 10 * time.Second,
	} {
		if *field <= 0 {
			*field = value
		}
	}
}

// scaleSet is a runner scale set: a name and labels that jobs request, and a queue of messages.
type scaleSet struct {
	id        int64
	scope     scope
	group     *group // nil: Default
	name      string
	labels    []setLabel
	setting   setSetting
	createdAt time.Time
	capacity  int // of the last poll

	session  *setSession
	events   []map[string]any // not in a message yet
	messages []setMessage     // not acknowledged yet
	lastID   int64
	wake     chan struct{} // closed when the set changes
}

// scaleSets is the state of the service. The zero value is ready to use.
type scaleSets struct {
	sets        []*scaleSet
	lastIDs     struct{ set, request int64 }
	adminTokens map[string]*grant // by token
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

// setRequest is the body of a creation or an update. Callers send whole sets, so the body may
// contain fields that callers cannot set.
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

// mountScaleSets mounts the Actions service.
func (s *Server) mountScaleSets(root *http.ServeMux) {
	root.HandleFunc("POST "+pathRegistration, s.registerAdmin)
	root.HandleFunc("POST /api/v3"+pathRegistration, s.registerAdmin)
	setPath := pathScaleSets + "/{set}"
	for pattern, handle := range map[string]func(*setCall){
		"GET " + pathService + "/_apis/runtime/runnergroups/": (*setCall).listGroups,
		"GET " + pathScaleSets:                                (*setCall).listSets,
		"POST " + pathScaleSets:                               (*setCall).createSet,
		"GET " + setPath:                                      (*setCall).getSet,
		"PATCH " + setPath:                                    (*setCall).updateSet,
		"DELETE " + setPath:                                   (*setCall).deleteSet,
		"GET " + setPath + "/acquirablejobs":                  (*setCall).listAcquirableJobs,
		"POST " + setPath + "/generatejitconfig":              (*setCall).generateJIT,
		"POST " + setPath + "/sessions":                       (*setCall).openSession,
		"PATCH " + setPath + "/sessions/{session}":            (*setCall).refreshSession,
		"DELETE " + setPath + "/sessions/{session}":           (*setCall).closeSession,
		"GET " + pathAgents:                                   (*setCall).listAgents,
		"GET " + pathAgents + "/{agent}":                      (*setCall).getAgent,
		"DELETE " + pathAgents + "/{agent}":                   (*setCall).deleteAgent,
	} {
		root.HandleFunc(pattern, s.withAdmin(handle))
	}
	root.HandleFunc("POST "+setPath+"/acquirejobs", s.acquireJobs)
	root.HandleFunc("GET "+pathQueue, s.pollQueue)
	root.HandleFunc("DELETE "+pathQueue+"/{message}", s.acknowledgeMessage)
	root.HandleFunc("/actions-service/", s.handleUnknown)
	root.HandleFunc("/actions-broker/", s.handleUnknown)
}

// registerAdmin exchanges a registration token for the URL of the service and an administrator
// token.
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
	if s.core.Occurs(s.core.Faults().ServerError) {
		writeError(w, http.StatusInternalServerError, "an injected fault")
		return
	}
	if req.Event != "register" {
		s.addViolationLocked("request", r.Method, r.URL.Path, fmt.Errorf("runner_event is %q, want register", req.Event))
	}
	sc, err := s.findGrant(r, req.URL, forRegistration)
	if err != nil {
		writeError(w, http.StatusNotFound, err.Error())
		return
	}
	key, err := s.ensureRunnerKey()
	if err != nil {
		writeError(w, http.StatusInternalServerError, err.Error())
		return
	}
	expires := s.now().Add(s.opts.ScaleSets.AdminTokenLifetime)
	token, err := protocol.Sign(key, protocol.Claims{
		Subject: engine.NewUUID(), IssuedAt: json.Number(strconv.FormatInt(s.now().Unix(), 10)),
		ExpiresAt: json.Number(strconv.FormatInt(expires.Unix(), 10)), TokenUUID: engine.NewUUID(),
	})
	if err != nil {
		writeError(w, http.StatusInternalServerError, err.Error())
		return
	}
	if s.scaling.adminTokens == nil {
		s.scaling.adminTokens = map[string]*grant{}
	}
	s.scaling.adminTokens[token] = &grant{scope: sc, expiresAt: expires}
	writeJSON(w, http.StatusOK, map[string]any{
		"url": requestBaseURL(r) + "/actions-service/" + url.PathEscape(sc.String()) + "/", "token": token,
		"token_schema": "OAuthAccessToken", "use_v2_flow": true,
	})
}

// writeException writes an error response of the service.
func writeException(w http.ResponseWriter, status int, kind, message string) {
	writeJSON(w, status, map[string]any{
		"$id": "1", "innerException": nil, "message": message, "typeKey": kind,
		"typeName": exceptionNamespace + "." + kind + ", " + exceptionNamespace, "errorCode": 0, "eventId": 3000,
	})
}

// decodeBody decodes a body. Like the service, it ignores unknown fields. unknown is an error that
// names the first unknown field, or nil.
func decodeBody(w http.ResponseWriter, r *http.Request, result any) (unknown, err error) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		err = json.Unmarshal(text, result)
	}
	if err != nil {
		return nil, fmt.Errorf("read body: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(result); err != nil {
		return fmt.Errorf("read body: %w", err), nil
	}
	return nil, nil
}

// readStrict decodes a body and records unknown fields as violations. If the body is invalid, it responds with an error and
// returns false.
func (s *Server) readStrict(w http.ResponseWriter, r *http.Request, result any) bool {
	return readBody(w, r, result, func(err error) { s.addViolation("request", r.Method, r.URL.Path, err) })
}

func readBody(w http.ResponseWriter, r *http.Request, result any, violate func(error)) bool {
	unknown, err := decodeBody(w, r, result)
	if invalid := cmp.Or(err, unknown); invalid != nil {
		violate(invalid)
	}
	if err != nil {
		writeException(w, http.StatusBadRequest, "VssPropertyValidationException", "the body cannot be read")
	}
	return err == nil
}

// withAdmin returns a handler that checks the API version and the administrator token and then
// calls handle with the server locked.
func (s *Server) withAdmin(handle func(*setCall)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if got := r.URL.Query().Get("api-version"); got != apiVersion {
			s.addViolation("request", r.Method, r.URL.Path, fmt.Errorf("api-version is %q, want %s", got, apiVersion))
		}
		s.lock()
		defer s.core.Mu.Unlock()
		s.core.Requests["scaleset "+r.Method+" "+shortenRoute(r.Pattern)]++
		if s.core.Occurs(s.core.Faults().ServerError) {
			writeException(w, http.StatusInternalServerError, "VssServiceException", "an injected fault")
			return
		}
		token, isBearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		admin := s.scaling.adminTokens[token]
		if !isBearer || admin == nil || !s.now().Before(admin.expiresAt) || admin.scope.String() != r.PathValue("tenant") {
			writeException(w, http.StatusUnauthorized, "VssUnauthorizedException", "the token is unknown, expired or of another tenant")
			return
		}
		c := &setCall{s: s, w: w, r: r, scope: admin.scope, now: s.now()}
		if id := r.PathValue("set"); id != "" {
			if c.set = s.findSet(id, admin.scope); c.set == nil {
				writeException(w, http.StatusNotFound, "RunnerScaleSetNotFoundException", "No runner scale set found with identifier "+id+".")
				return
			}
		}
		handle(c)
		s.advance(s.now())
		s.core.Wake()
	}
}

// shortenRoute returns the last segment of a route, and the segment before it too if the last one is a wildcard such as {id}.
func shortenRoute(pattern string) string {
	parts := strings.Split(strings.TrimSuffix(pattern, "/"), "/")
	word := parts[len(parts)-1]
	if strings.HasPrefix(word, "{") {
		word = parts[len(parts)-2] + "/" + word
	}
	return word
}

// readBody is readStrict with the server locked. The lock stays held, because the body is small and was received with the
// request.
func (c *setCall) readBody(result any) bool { return readBody(c.w, c.r, result, c.addViolation) }

func (c *setCall) addViolation(err error) {
	c.s.addViolationLocked("request", c.r.Method, c.r.URL.Path, err)
}

func (s *Server) findSet(id string, sc scope) *scaleSet {
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
	writeJSON(c.w, http.StatusOK, map[string]any{"count": len(list), "value": list})
}

// listSets lists the sets of a group with a name. A call without both parameters is a violation.
func (c *setCall) listSets() {
	query := c.r.URL.Query()
	if query.Get("name") == "" || query.Get("runnerGroupId") == "" {
		c.addViolation(errors.New("runnerGroupId and name must both be given"))
	}
	list := []setJSON{}
	for _, set := range c.s.scaling.sets {
		group := strconv.FormatInt(getGroupID(set.group), 10)
		if set.scope == c.scope && strings.EqualFold(set.name, query.Get("name")) && group == query.Get("runnerGroupId") {
			list = append(list, c.encodeSet(set))
		}
	}
	writeJSON(c.w, http.StatusOK, map[string]any{"count": len(list), "value": list})
}

func getGroupID(g *group) int64 { return (&runner{group: g}).groupID() }

func (c *setCall) encodeSet(set *scaleSet) setJSON {
	return setJSON{
		ID: set.id, Name: set.name, GroupID: getGroupID(set.group), GroupName: (&runner{group: set.group}).groupName(),
		Labels: slices.Clone(set.labels), Setting: set.setting, CreatedOn: set.createdAt.UTC(),
		JITURL:     c.serviceURL() + "/_apis/runtime/runnerscalesets/" + strconv.FormatInt(set.id, 10) + "/generatejitconfig",
		Statistics: c.s.countSet(set),
	}
}

func (c *setCall) serviceURL() string {
	return requestBaseURL(c.r) + "/actions-service/" + url.PathEscape(c.scope.String())
}

// applyRequest applies the fields of a creation or an update to a set. Fields that an update does
// not contain stay as they are. If the request is invalid, applyRequest writes the response and
// returns false.
func (c *setCall) applyRequest(set *scaleSet, req setRequest) bool {
	req.Name = cmp.Or(req.Name, set.name)
	if req.GroupID == 0 && set.id != 0 {
		req.GroupID = getGroupID(set.group)
	}
	group := c.s.findGroup(c.scope, req.GroupID)
	if group == nil && req.GroupID != defaultGroupID {
		writeException(c.w, http.StatusNotFound, "RunnerGroupNotFoundException", "No runner group found.")
		return false
	}
	for _, other := range c.s.scaling.sets {
		if other != set && other.scope == c.scope && other.group == group && strings.EqualFold(other.name, req.Name) {
			writeException(c.w, http.StatusBadRequest, "RunnerScaleSetExistsException",
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
			c.addViolation(fmt.Errorf("label %+v: type must be System and a name given", l))
		}
		c.s.ids.label++
		set.labels = append(set.labels, setLabel{c.s.ids.label, l.Type, l.Name})
	}
	if req.Setting != nil {
		set.setting = *req.Setting
	}
	set.wakePolls()
	return true
}

func (s *Server) findGroup(sc scope, id int64) *group {
	for _, g := range s.groups {
		if g.id == id && g.scope == sc {
			return g
		}
	}
	return nil
}

func (c *setCall) createSet() {
	var req setRequest
	if !c.readBody(&req) {
		return
	}
	if req.Name == "" || len(req.Labels) == 0 {
		c.addViolation(errors.New("a scale set needs a name and a label"))
		writeException(c.w, http.StatusBadRequest, "VssPropertyValidationException", "name or labels are missing")
		return
	}
	set := &scaleSet{scope: c.scope, createdAt: c.now, wake: make(chan struct{})}
	if !c.applyRequest(set, req) {
		return
	}
	c.s.scaling.lastIDs.set++
	set.id = c.s.scaling.lastIDs.set
	c.s.scaling.sets = append(c.s.scaling.sets, set)
	writeJSON(c.w, http.StatusOK, c.encodeSet(set))
}

func (c *setCall) getSet() { writeJSON(c.w, http.StatusOK, c.encodeSet(c.set)) }

func (c *setCall) updateSet() {
	var req setRequest
	if c.readBody(&req) && c.applyRequest(c.set, req) {
		writeJSON(c.w, http.StatusOK, c.encodeSet(c.set))
	}
}

// deleteSet deletes a set and its idle runners. Its queued jobs wait for another set.
func (c *setCall) deleteSet() {
	c.s.removeSet(c.set)
	writeJSON(c.w, http.StatusNoContent, nil)
}

func (s *Server) removeSet(set *scaleSet) {
	for _, j := range s.queue {
		if j.set == set {
			s.unassign(j)
			j.set = nil
		}
	}
	for _, r := range s.runners {
		if r.set == set && !r.isBusy() {
			s.unregisterRunner(r)
		}
	}
	s.scaling.sets = slices.DeleteFunc(s.scaling.sets, func(other *scaleSet) bool { return other == set })
	set.session = nil
	set.wakePolls()
}

// AddScaleSet adds a scale set of a repository whose labels differ from its name. Tools other than
// HyperFleet create such sets.
func (s *Server) AddScaleSet(repo, name string, labels ...string) error {
	s.lock()
	defer s.core.Mu.Unlock()
	if s.repos[strings.ToLower(repo)] == nil || s.findSetByName(name) != nil {
		return fmt.Errorf("add scale set %q: repository %q is missing, or the set exists", name, repo)
	}
	s.scaling.lastIDs.set++
	set := &scaleSet{
		id: s.scaling.lastIDs.set, scope: scope{scopeRepo, strings.ToLower(repo)}, name: name, createdAt: s.now(),
		wake: make(chan struct{}),
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
	set := s.findSetByName(name)
	if set == nil {
		return fmt.Errorf("delete scale set %q: there is no such set", name)
	}
	s.removeSet(set)
	return nil
}
