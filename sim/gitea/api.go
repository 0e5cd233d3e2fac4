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
	// mostItems is the most that a page holds (MAX_RESPONSE_ITEMS), defaultItems what it
	// holds if nobody says (DEFAULT_PAGING_NUM).
	mostItems    = 50
	defaultItems = 30
)

// call is one API request on its way through a handler.
type call struct {
	r    *http.Request
	body map[string]any
	// place is the path of the call's scope: owner/name, owner, or "" for the instance.
	place string
	repo  *repository
}

// reply is an answer before it is encoded. A nil body sends none.
type reply struct {
	status int
	body   any
	header map[string]string
}

func ok(body any) reply { return reply{status: http.StatusOK, body: body} }

func fail(status int, format string, args ...any) reply {
	return reply{status: status, body: map[string]any{
		"message": fmt.Sprintf(format, args...), "url": "https://gitea.invalid/api/swagger",
	}}
}

func notFound() reply { return fail(http.StatusNotFound, "The target couldn't be found.") }

// endpoint is what serves a route. answer runs under the server's lock.
type endpoint struct {
	params []string // of the query
	fields []string // of the body
	answer func(*Server, *call) reply
}

func pages() []string { return []string{"page", "limit"} }

// scoped are the calls below each of /repos/{owner}/{repo}, /orgs/{org} and /admin.
func (s *Server) scoped() map[string]endpoint {
	if s.opts.Forgejo {
		return map[string]endpoint{
			"GET /actions/runners": {params: append(pages(), "visible"), answer: (*Server).answerRunners},
			"POST /actions/runners": {
				fields: []string{"name", "description", "ephemeral"}, answer: (*Server).answerMakeRunner,
			},
			"GET /actions/runners/{id}":    {answer: (*Server).answerRunner},
			"DELETE /actions/runners/{id}": {answer: (*Server).answerDeleteRunner},
			"GET /actions/runners/jobs":    {params: []string{"labels"}, answer: (*Server).answerForgejoJobs},
		}
	}
	return map[string]endpoint{
		"GET /actions/runners":                     {params: append(pages(), "disabled"), answer: (*Server).answerRunners},
		"POST /actions/runners/registration-token": {answer: (*Server).answerRegistrationToken},
		"GET /actions/runners/{id}":                {answer: (*Server).answerRunner},
		"PATCH /actions/runners/{id}":              {fields: []string{"disabled"}, answer: (*Server).answerEditRunner},
		"DELETE /actions/runners/{id}":             {answer: (*Server).answerDeleteRunner},
		"GET /actions/jobs": {
			params: append(pages(), "status", "sort", "order"), answer: (*Server).answerGiteaJobs,
		},
	}
}

// endpoints are all calls of users' tokens.
func (s *Server) endpoints() map[string]endpoint {
	out := map[string]endpoint{
		"GET /version":                            {answer: (*Server).answerVersion},
		"GET /repositories/{repository}":          {answer: (*Server).answerRepository},
		"GET /repos/{owner}/{repo}/actions/tasks": {params: append(pages(), "status"), answer: (*Server).answerTasks},
	}
	for route, end := range s.scoped() {
		method, path, _ := strings.Cut(route, " ")
		for _, prefix := range []string{"/repos/{owner}/{repo}", "/orgs/{org}", "/admin"} {
			out[method+" "+prefix+path] = end
		}
	}
	if !s.opts.Forgejo {
		out["GET /repos/{owner}/{repo}/actions/jobs/{id}"] = endpoint{answer: (*Server).answerGiteaJob}
	}
	return out
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	for route, end := range s.endpoints() {
		method, path, _ := strings.Cut(route, " ")
		mux.HandleFunc(method+" /api/v1"+path, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, route, end) })
	}
	s.rpcRoutes(mux)
	mux.HandleFunc("/", s.unknown)
	return mux
}

func (s *Server) unknown(w http.ResponseWriter, r *http.Request) {
	s.core.Mu.Lock()
	s.violate("unknown-path", r, "the simulator does not serve this call")
	s.core.Mu.Unlock()
	send(w, fail(http.StatusNotImplemented, "Not simulated: %s %s", r.Method, r.URL.Path))
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, route string, end endpoint) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		send(w, fail(http.StatusRequestEntityTooLarge, "the body is too large"))
		return
	}
	if made := strings.HasPrefix(route, "POST "); made && !s.core.Sleep(r.Context(), s.delay()) {
		return
	}
	s.lock()
	out := s.answer(&call{r: r}, route, end, raw)
	s.core.Kick()
	s.core.Mu.Unlock()
	send(w, out)
}

func (s *Server) delay() time.Duration {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	return s.core.Faults().JITDelay
}

// answer runs the stages in the servers' order: outages, limits, credentials, scope,
// parameters, the call itself. The lock is held.
func (s *Server) answer(c *call, route string, end endpoint, raw []byte) reply {
	s.core.Requests[route]++
	faults := s.core.Faults()
	switch {
	case s.core.Chance(faults.ServerError):
		return reply{status: http.StatusBadGateway}
	case s.core.Chance(faults.RateLimit), s.core.Chance(faults.SecondaryRateLimit):
		after := max(int64(faults.RetryAfter.Seconds()), 1)
		return reply{status: http.StatusTooManyRequests, header: map[string]string{"Retry-After": strconv.FormatInt(after, 10)}}
	case s.core.Chance(faults.Unauthorized):
		return fail(http.StatusUnauthorized, "user does not exist [uid: 0, name: ]")
	}
	if route != "GET /version" {
		if refused := s.authenticate(c, route); refused != nil {
			return *refused
		}
	}
	if !s.locate(c, route) {
		return notFound()
	}
	if refused := s.readParams(c, end, raw); refused != nil {
		return *refused
	}
	return end.answer(s, c)
}

// authenticate finds the caller by its token and checks the token's scopes
// (models/auth/access_token_scope.go).
func (s *Server) authenticate(c *call, route string) *reply {
	given, found := strings.CutPrefix(c.r.Header.Get("Authorization"), "token ")
	if !found {
		given = strings.TrimPrefix(c.r.Header.Get("Authorization"), "Bearer ")
	}
	token := s.tokens[given]
	if token == nil {
		out := fail(http.StatusUnauthorized, "user does not exist [uid: 0, name: ]")
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
	for _, opens := range []string{"all", level + category, "write:" + category} {
		if slices.Contains(token.Scopes, opens) {
			return nil
		}
	}
	out := fail(http.StatusForbidden, "token does not have at least one of required scope(s), required=[%s%s], token scope=%s",
		level, category, strings.Join(token.Scopes, ","))
	return &out
}

// locate finds the scope of a call; false if there is no such.
func (s *Server) locate(c *call, route string) bool {
	switch {
	case strings.Contains(route, " /repos/"):
		c.place = c.r.PathValue("owner") + "/" + c.r.PathValue("repo")
		c.repo = s.repositoryBy(c.place)
		return c.repo != nil
	case strings.Contains(route, " /orgs/"):
		c.place = c.r.PathValue("org")
		return slices.ContainsFunc(s.repositories, func(r *repository) bool { return strings.EqualFold(r.owner(), c.place) })
	default:
		return true
	}
}

// readParams checks the query and reads the body.
func (s *Server) readParams(c *call, end endpoint, raw []byte) *reply {
	for name := range c.r.URL.Query() {
		if !slices.Contains(end.params, name) {
			s.violate("request", c.r, "parameter "+name+" is not known")
		}
	}
	if len(end.fields) == 0 {
		if len(raw) > 0 {
			s.violate("request", c.r, "a body is not expected")
		}
		return nil
	}
	if media, _, _ := mime.ParseMediaType(c.r.Header.Get("Content-Type")); media != "application/json" {
		s.violate("request", c.r, "the body is not application/json by its Content-Type")
	}
	if err := json.Unmarshal(raw, &c.body); err != nil {
		s.violate("request", c.r, "the body can't be read: "+err.Error())
		out := fail(http.StatusUnprocessableEntity, "[]: Deserialization: %v", err)
		return &out
	}
	for _, name := range slices.Sorted(maps.Keys(c.body)) {
		if !slices.Contains(end.fields, name) {
			s.violate("request", c.r, "field "+name+" is not known")
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

// page cuts the part out of a list that was asked for.
func page[T any](c *call, list []T) []T {
	number := func(name string, otherwise int) int {
		value, err := strconv.Atoi(c.r.URL.Query().Get(name))
		if err != nil || value <= 0 {
			return otherwise
		}
		return value
	}
	size := min(number("limit", defaultItems), mostItems)
	from := min((number("page", 1)-1)*size, len(list))
	return append([]T{}, list[from:min(from+size, len(list))]...)
}

func (s *Server) answerVersion(*call) reply { return ok(map[string]string{"version": s.opts.Version}) }

func (s *Server) answerRepository(c *call) reply {
	for _, r := range s.repositories {
		if strconv.FormatInt(r.id, 10) == c.r.PathValue("repository") {
			return ok(s.repositoryJSON(r))
		}
	}
	return notFound()
}

func (s *Server) repositoryJSON(r *repository) map[string]any {
	_, name, _ := strings.Cut(r.path, "/")
	return map[string]any{
		"id": r.id, "name": name, "full_name": r.path, "html_url": s.base + "/" + r.path, "url": s.base + "/api/v1/repos/" + r.path,
		"owner": map[string]any{"id": 2, "login": r.owner(), "username": r.owner()},
	}
}

func send(w http.ResponseWriter, out reply) {
	for key, value := range out.header {
		w.Header().Set(key, value)
	}
	w.Header().Set("X-Request-Id", engine.Hex(8))
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
