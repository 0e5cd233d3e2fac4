// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitea

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
)

const (
	maxBody = 4 << 20
	// maxItems is the maximum size of a page (MAX_RESPONSE_ITEMS). defaultItems is the size of a
	// page if the call does not set it (DEFAULT_PAGING_NUM).
	maxItems     = 50
	defaultItems = 30
)

// call is one API request while it is handled.
type call struct {
	r    *http.Request
	body map[string]any
	// scope is the path of the call's scope: owner/name, owner, or "" for the instance.
	scope string
	repo  *repository
}

// response is a response before it is encoded. A nil body is not sent.
type response struct {
	status int
	body   any
	header map[string]string
}

func newOK(body any) response { return response{status: http.StatusOK, body: body} }

func newError(status int, format string, args ...any) response {
	return response{status: status, body: map[string]any{
		"message": fmt.Sprintf(format, args...), "url": "https://gitea.invalid/api/swagger",
	}}
}

func newNotFound() response { return newError(http.StatusNotFound, "The target couldn't be found.") }

// endpoint serves a route. handle is called with the lock held.
type endpoint struct {
	params []string // of the query
	fields []string // of the body
	handle func(*Server, *call) response
}

func pageParams() []string { return []string{"page", "limit"} }

// scopedEndpoints returns the calls below each of /repos/{owner}/{repo}, /orgs/{org} and /admin.
func (s *Server) scopedEndpoints() map[string]endpoint {
	if s.opts.Forgejo {
		return map[string]endpoint{
			"GET /actions/runners": {params: append(pageParams(), "visible"), handle: (*Server).listRunners},
			"POST /actions/runners": {
				fields: []string{"name", "description", "ephemeral"}, handle: (*Server).createRunner,
			},
			"GET /actions/runners/{id}":    {handle: (*Server).getRunner},
			"DELETE /actions/runners/{id}": {handle: (*Server).deleteRunner},
			"GET /actions/runners/jobs":    {params: []string{"labels"}, handle: (*Server).listForgejoJobs},
		}
	}
	return map[string]endpoint{
		"GET /actions/runners":                     {params: append(pageParams(), "disabled"), handle: (*Server).listRunners},
		"POST /actions/runners/registration-token": {handle: (*Server).createRegistrationToken},
		"GET /actions/runners/{id}":                {handle: (*Server).getRunner},
		"PATCH /actions/runners/{id}":              {fields: []string{"disabled"}, handle: (*Server).updateRunner},
		"DELETE /actions/runners/{id}":             {handle: (*Server).deleteRunner},
		"GET /actions/jobs": {
			params: append(pageParams(), "status", "sort", "order"), handle: (*Server).listGiteaJobs,
		},
	}
}

// newEndpoints returns all calls that need an access token.
func (s *Server) newEndpoints() map[string]endpoint {
	out := map[string]endpoint{
		"GET /version":                            {handle: (*Server).getVersion},
		"GET /repositories/{repository}":          {handle: (*Server).getRepository},
		"GET /repos/{owner}/{repo}/actions/tasks": {params: append(pageParams(), "status"), handle: (*Server).listTasks},
	}
	for route, ep := range s.scopedEndpoints() {
		method, path, _ := strings.Cut(route, " ")
		for _, prefix := range []string{"/repos/{owner}/{repo}", "/orgs/{org}", "/admin"} {
			out[method+" "+prefix+path] = ep
		}
	}
	if !s.opts.Forgejo {
		out["GET /repos/{owner}/{repo}/actions/jobs/{id}"] = endpoint{handle: (*Server).getGiteaJob}
	}
	return out
}

func (s *Server) newAPIHandler() http.Handler {
	mux := http.NewServeMux()
	for route, ep := range s.newEndpoints() {
		method, path, _ := strings.Cut(route, " ")
		mux.HandleFunc(method+" /api/v1"+path, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, route, ep) })
	}
	s.mountRPC(mux)
	mux.HandleFunc("/", s.handleUnknown)
	return mux
}

func (s *Server) handleUnknown(w http.ResponseWriter, r *http.Request) {
	s.core.Mu.Lock()
	s.addViolation("unknown-path", r, "the simulator does not serve this call")
	s.core.Mu.Unlock()
	writeResponse(w, newError(http.StatusNotImplemented, "Not simulated: %s %s", r.Method, r.URL.Path))
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, route string, ep endpoint) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		writeResponse(w, newError(http.StatusRequestEntityTooLarge, "the body is too large"))
		return
	}
	if isPost := strings.HasPrefix(route, "POST "); isPost && !s.core.Sleep(r.Context(), s.delay()) {
		return
	}
	s.lock()
	out := s.handleCall(&call{r: r}, route, ep, raw)
	s.core.Wake()
	s.core.Mu.Unlock()
	writeResponse(w, out)
}

func (s *Server) delay() time.Duration {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	return s.core.Faults().JITDelay
}

// handleCall runs the stages in the servers' order: outages, limits, credentials, scope,
// parameters, and the call itself. The lock is held.
func (s *Server) handleCall(c *call, route string, ep endpoint, raw []byte) response {
	s.core.Requests[route]++
	faults := s.core.Faults()
	switch {
	case s.core.Occurs(faults.ServerError):
		return response{status: http.StatusBadGateway}
	case s.core.Occurs(faults.RateLimit), s.core.Occurs(faults.SecondaryRateLimit):
		delay := max(int64(faults.RetryAfter.Seconds()), 1)
		return response{status: http.StatusTooManyRequests, header: map[string]string{"Retry-After": strconv.FormatInt(delay, 10)}}
	case s.core.Occurs(faults.Unauthorized):
		return newError(http.StatusUnauthorized, "user does not exist [uid: 0, name: ]")
	}
	if route != "GET /version" {
		if rejection := s.authenticate(c, route); rejection != nil {
			return *rejection
		}
	}
	if moved := s.redirectMoved(c, route); moved != nil {
		return *moved
	}
	if !s.resolveScope(c, route) {
		return newNotFound()
	}
	if rejection := s.readParams(c, ep, raw); rejection != nil {
		return *rejection
	}
	return ep.handle(s, c)
}

// authenticate finds the access token of a call and checks its scopes
// (models/auth/access_token_scope.go).
func (s *Server) authenticate(c *call, route string) *response {
	value, found := strings.CutPrefix(c.r.Header.Get("Authorization"), "token ")
	if !found {
		value = strings.TrimPrefix(c.r.Header.Get("Authorization"), "Bearer ")
	}
	token := s.tokens[value]
	if token == nil {
		out := newError(http.StatusUnauthorized, "user does not exist [uid: 0, name: ]")
		return &out
	}
	_, path, _ := strings.Cut(route, " ")
	category := "repository"
	switch {
	case strings.HasPrefix(path, "/orgs/"):
		category = "organization"
	case strings.HasPrefix(path, "/admin/"):
		category = "admin"
	}
	level := "write:"
	if c.r.Method == http.MethodGet {
		level = "read:"
	}
	for _, scope := range []string{"all", level + category, "write:" + category} {
		if slices.Contains(token.Scopes, scope) {
			return nil
		}
	}
	out := newError(http.StatusForbidden, "token does not have at least one of required scope(s), required=[%s%s], token scope=%s",
		level, category, strings.Join(token.Scopes, ","))
	return &out
}

// resolveScope sets the scope of a call. It returns false if the scope does not exist.
func (s *Server) resolveScope(c *call, route string) bool {
	switch {
	case strings.Contains(route, " /repos/"):
		c.scope = c.r.PathValue("owner") + "/" + c.r.PathValue("repo")
		c.repo = s.findRepository(c.scope)
		return c.repo != nil
	case strings.Contains(route, " /orgs/"):
		c.scope = c.r.PathValue("org")
		return slices.ContainsFunc(s.repositories, func(r *repository) bool { return strings.EqualFold(r.owner(), c.scope) })
	default:
		return true
	}
}

// readParams checks the query and decodes the body.
func (s *Server) readParams(c *call, ep endpoint, raw []byte) *response {
	for name := range c.r.URL.Query() {
		if !slices.Contains(ep.params, name) {
			s.addViolation("request", c.r, "parameter "+name+" is unknown")
		}
	}
	if len(ep.fields) == 0 {
		if len(raw) > 0 {
			s.addViolation("request", c.r, "the call must not have a body")
		}
		return nil
	}
	if media, _, _ := mime.ParseMediaType(c.r.Header.Get("Content-Type")); media != "application/json" {
		s.addViolation("request", c.r, "the Content-Type of the body is not application/json")
	}
	if err := json.Unmarshal(raw, &c.body); err != nil {
		s.addViolation("request", c.r, "decode body: "+err.Error())
		out := newError(http.StatusUnprocessableEntity, "[]: Deserialization: %v", err)
		return &out
	}
	for _, name := range slices.Sorted(maps.Keys(c.body)) {
		if !slices.Contains(ep.fields, name) {
			s.addViolation("request", c.r, "field "+name+" is unknown")
		}
	}
	return nil
}

func (c *call) id() int64 {
	id, err := strconv.ParseInt(c.r.PathValue("id"), 10, 64)
	if err != nil {
		return 0
	}
	return id
}

func (c *call) text(field string) string {
	text, _ := c.body[field].(string)
	return text
}

func (c *call) flag(field string) bool {
	flag, _ := c.body[field].(bool)
	return flag
}

// paginate returns the requested page of a list.
func paginate[T any](c *call, list []T) []T {
	number := func(name string, fallback int) int {
		value, err := strconv.Atoi(c.r.URL.Query().Get(name))
		if err != nil || value <= 0 {
			return fallback
		}
		return value
	}
	size := min(number("limit", defaultItems), maxItems)
	start := min((number("page", 1)-1)*size, len(list))
	return append([]T{}, list[start:min(start+size, len(list))]...)
}

func (s *Server) getVersion(*call) response {
	return newOK(map[string]string{"version": s.opts.Version})
}

func (s *Server) getRepository(c *call) response {
	for _, r := range s.repositories {
		if strconv.FormatInt(r.id, 10) == c.r.PathValue("repository") {
			return newOK(s.encodeRepository(r))
		}
	}
	return newNotFound()
}

func (s *Server) encodeRepository(r *repository) map[string]any {
	_, name, _ := strings.Cut(r.path, "/")
	return map[string]any{
		"id": r.id, "name": name, "full_name": r.path,
		"html_url": s.baseURL + "/" + r.path, "url": s.baseURL + "/api/v1/repos/" + r.path,
		"owner": map[string]any{"id": 2, "login": r.owner(), "username": r.owner()},
	}
}

func writeResponse(w http.ResponseWriter, out response) {
	for key, value := range out.header {
		w.Header().Set(key, value)
	}
	w.Header().Set("X-Request-Id", engine.RandomHex(8))
	if out.body == nil {
		w.WriteHeader(out.status)
		return
	}
	w.Header().Set("Content-Type", "application/json;charset=utf-8")
	w.WriteHeader(out.status)
	if text, err := json.Marshal(out.body); err == nil {
		_, _ = w.Write(text)
	}
}
