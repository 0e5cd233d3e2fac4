// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxBody bounds request bodies.
const maxBody = 4 << 20

// call is one API request on its way through a handler.
type call struct {
	r     *http.Request
	op    string // method and route
	given map[string]any
	token *Token
	body  []byte
	now   time.Time
}

// reply is an answer before it is encoded. A nil body sends none; a string is sent as
// plain text.
type reply struct {
	status int
	body   any
	header map[string]string
}

func ok(body any) reply { return reply{status: http.StatusOK, body: body} }

// fail is GitLab's own error; wrong is one of its parameter checks.
func fail(status int, message string) reply {
	return reply{status: status, body: map[string]any{"message": message}}
}

func wrong(format string, args ...any) reply {
	return reply{status: http.StatusBadRequest, body: map[string]any{"error": fmt.Sprintf(format, args...)}}
}

func notFound(what string) reply { return fail(http.StatusNotFound, "404 "+what+" Not Found") }

func forbidden(why string) reply {
	return fail(http.StatusForbidden, strings.TrimSuffix("403 Forbidden - "+why, " - "))
}

// endpoint is what serves a route. answer runs under the server's lock.
type endpoint struct {
	// scopes of access tokens, any of which will do; nil for the runners' own calls.
	scopes []string
	// params by name, of the query and of the body.
	params params
	answer func(*Server, *call) reply
	// raw bodies are not JSON.
	raw bool
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	all := apiEndpoints()
	maps.Copy(all, runnerEndpoints())
	for route, end := range all {
		method, path, _ := strings.Cut(route, " ")
		mux.HandleFunc(method+" /api/v4"+path, func(w http.ResponseWriter, r *http.Request) {
			s.serve(w, r, route, end)
		})
	}
	mux.HandleFunc("/", s.unknown)
	return mux
}

func (s *Server) unknown(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.violate("unknown-path", r.Method, r.URL.Path, errors.New("the simulator does not serve this call"))
	s.mu.Unlock()
	refuse(w, http.StatusNotImplemented, "Not simulated: "+r.Method+" "+r.URL.Path)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, route string, end endpoint) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		refuse(w, http.StatusRequestEntityTooLarge, "413 Request Entity Too Large")
		return
	}
	c := &call{r: r, op: route, body: body}
	out := s.answer(c, end)
	for key, value := range out.header {
		w.Header().Set(key, value)
	}
	w.Header().Set("X-Request-Id", strings.ToUpper(randomHex(13)))
	switch text := out.body.(type) {
	case nil:
		w.WriteHeader(out.status)
	case string:
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(out.status)
		_, _ = io.WriteString(w, text)
	default:
		sendJSON(w, out.status, out.body)
	}
}

// answer runs the stages in GitLab's order: outages, limits, credentials, parameters, the
// call itself.
func (s *Server) answer(c *call, end endpoint) reply {
	early, delay := s.admit(c, end)
	if early != nil {
		return *early
	}
	if c.op == requestRoute {
		s.hold(c)
	}
	if !s.wait(c.r.Context(), delay) {
		return fail(http.StatusServiceUnavailable, "503 Service Unavailable")
	}
	s.lock()
	defer s.mu.Unlock()
	c.now = s.now()
	if broken := s.readParams(c, end); broken != nil {
		return *broken
	}
	out := end.answer(s, c)
	poke(s.kick)
	return out
}

// admit returns an early answer, or nil and how long the call is held up.
func (s *Server) admit(c *call, end endpoint) (*reply, time.Duration) {
	s.lock()
	defer s.mu.Unlock()
	c.now = s.now()
	s.requests[c.op]++
	if !s.named {
		s.base = "http://" + c.r.Host
	}
	if s.chance(s.faults.ServerError) {
		return &reply{status: http.StatusBadGateway, body: "GitLab is not responding"}, 0
	}
	if s.chance(s.faults.RateLimit) || s.chance(s.faults.SecondaryRateLimit) {
		return s.limited(c), 0
	}
	if end.scopes == nil {
		if s.chance(s.faults.RegistrationRefuse) {
			out := fail(http.StatusServiceUnavailable, "503 Service Unavailable")
			return &out, 0
		}
		return nil, 0
	}
	if refused := s.authenticate(c, end); refused != nil {
		return refused, 0
	}
	if c.op == "POST /user/runners" {
		return nil, s.faults.JITDelay
	}
	return nil, 0
}

// limited: docs "Rate limits", the plain text and the headers of a spent limit.
func (s *Server) limited(c *call) *reply {
	after := s.faults.RetryAfter
	if after <= 0 {
		after = time.Minute
	}
	seconds := int64((after + time.Second - 1) / time.Second)
	return &reply{status: http.StatusTooManyRequests, body: "Retry later\n", header: map[string]string{
		"Retry-After": strconv.FormatInt(seconds, 10), "RateLimit-Name": "throttle_authenticated_api",
		"RateLimit-Limit": "2000", "RateLimit-Observed": "2001", "RateLimit-Remaining": "0",
		"RateLimit-Reset": strconv.FormatInt(c.now.Unix()+seconds, 10),
	}}
}

// paginate cuts a list into the page that was asked for, with the headers that tell the
// others.
func (c *call) paginate(list []map[string]any) reply {
	page, size := max(c.number("page", 1), 1), min(max(c.number("per_page", 20), 1), 100)
	total := int64(len(list))
	from := min((page-1)*size, total)
	to := min(from+size, total)
	pages := max((total+size-1)/size, 1)
	header := map[string]string{
		"X-Page": strconv.FormatInt(page, 10), "X-Per-Page": strconv.FormatInt(size, 10),
		"X-Total": strconv.FormatInt(total, 10), "X-Total-Pages": strconv.FormatInt(pages, 10),
		"X-Next-Page": "", "X-Prev-Page": "",
	}
	if page < pages {
		header["X-Next-Page"] = strconv.FormatInt(page+1, 10)
	}
	if page > 1 {
		header["X-Prev-Page"] = strconv.FormatInt(page-1, 10)
	}
	return reply{status: http.StatusOK, body: append([]map[string]any{}, list[from:to]...), header: header}
}

// Kinds of parameters.
type kind string

const (
	text    kind = "String"
	number  kind = "Integer"
	boolean kind = "Boolean"
	texts   kind = "Array"
	hash    kind = "Hash"
)

// param is one parameter of a call.
type param struct {
	kind     kind
	required bool
	values   []string // of a text, or of the items of texts
}

type params map[string]param

func (p params) and(more params) params {
	out := maps.Clone(p)
	maps.Copy(out, more)
	return out
}

// readParams reads query and body into c.given. An unknown name is a breach, though GitLab
// lets it pass; a wrong value is refused, as GitLab does. The lock is held.
func (s *Server) readParams(c *call, end endpoint) *reply {
	c.given = map[string]any{}
	if broken := s.readQuery(c, end.params); broken != nil {
		return broken
	}
	if len(c.body) > 0 && !end.raw {
		if broken := s.readBody(c, end.params); broken != nil {
			return broken
		}
	}
	for name, p := range end.params {
		if _, given := c.given[name]; p.required && !given {
			s.violate("request", c.r.Method, c.r.URL.Path, fmt.Errorf("%s is missing", name))
			out := wrong("%s is missing", name)
			return &out
		}
	}
	return nil
}

func (s *Server) readQuery(c *call, known params) *reply {
	query, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		s.violate("request", c.r.Method, c.r.URL.Path, err)
	}
	for name, values := range query {
		name, list := strings.CutSuffix(name, "[]")
		p, found := known[name]
		switch {
		case !found:
			s.violate("request", c.r.Method, c.r.URL.Path, fmt.Errorf("unknown parameter %s", name))
			continue
		case p.kind == texts && !list:
			values = strings.Split(values[0], ",")
		}
		value, good := p.fromQuery(values)
		if !good {
			return s.invalid(c, name, p)
		}
		c.given[name] = value
	}
	return nil
}

func (p param) fromQuery(values []string) (any, bool) {
	switch p.kind {
	case number:
		n, err := strconv.ParseInt(values[0], 10, 64)
		return n, err == nil
	case boolean:
		b, err := strconv.ParseBool(values[0])
		return b, err == nil
	case texts:
		return values, p.allows(values...)
	default:
		return values[0], p.allows(values[0])
	}
}

func (p param) allows(values ...string) bool {
	for _, value := range values {
		if len(p.values) > 0 && !slices.Contains(p.values, value) {
			return false
		}
	}
	return true
}

func (s *Server) invalid(c *call, name string, p param) *reply {
	message := name + " is invalid"
	if len(p.values) > 0 {
		message = name + " does not have a valid value"
	}
	s.violate("request", c.r.Method, c.r.URL.Path, errors.New(message))
	out := wrong("%s", message)
	return &out
}

func (s *Server) readBody(c *call, known params) *reply {
	media, _, _ := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	if media != "application/json" {
		s.violate("request", c.r.Method, c.r.URL.Path, fmt.Errorf("content type %q", media))
		return &reply{status: http.StatusUnsupportedMediaType, body: map[string]any{
			"error": fmt.Sprintf("The provided content-type '%s' is not supported.", media),
		}}
	}
	var body map[string]any
	if err := json.Unmarshal(c.body, &body); err != nil {
		s.violate("request", c.r.Method, c.r.URL.Path, err)
		out := wrong("Problems parsing JSON")
		return &out
	}
	for name, value := range body {
		p, found := known[name]
		if !found {
			s.violate("request", c.r.Method, c.r.URL.Path, fmt.Errorf("unknown parameter %s", name))
			continue
		}
		if value == nil {
			continue
		}
		read, good := p.fromJSON(value)
		if !good {
			return s.invalid(c, name, p)
		}
		c.given[name] = read
	}
	return nil
}

func (p param) fromJSON(value any) (any, bool) {
	switch p.kind {
	case number:
		n, good := value.(float64)
		return int64(n), good && n == float64(int64(n))
	case boolean:
		b, good := value.(bool)
		return b, good
	case texts:
		list, good := value.([]any)
		out := make([]string, 0, len(list))
		for _, item := range list {
			one, isText := item.(string)
			good = good && isText
			out = append(out, one)
		}
		return out, good && p.allows(out...)
	case hash:
		h, good := value.(map[string]any)
		return h, good
	default:
		t, good := value.(string)
		return t, good && p.allows(t)
	}
}

func (c *call) text(name string) string { out, _ := c.given[name].(string); return out }

func (c *call) list(name string) []string { out, _ := c.given[name].([]string); return out }

func (c *call) flag(name string, unset bool) bool {
	if value, given := c.given[name].(bool); given {
		return value
	}
	return unset
}

func (c *call) number(name string, unset int64) int64 {
	if value, given := c.given[name].(int64); given {
		return value
	}
	return unset
}

// pathID reads a numeric part of the path.
func (c *call) pathID(name string) int64 {
	id, err := strconv.ParseInt(c.r.PathValue(name), 10, 64)
	if err != nil {
		return 0
	}
	return id
}

func sendJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if text, err := json.Marshal(body); err == nil {
		_, _ = w.Write(text)
	}
}

func refuse(w http.ResponseWriter, status int, message string) {
	sendJSON(w, status, map[string]string{"message": message})
}
