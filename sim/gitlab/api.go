// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
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
	s.core.Mu.Lock()
	s.violate("unknown-path", r.Method, r.URL.Path, errors.New("the simulator does not serve this call"))
	s.core.Mu.Unlock()
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
	w.Header().Set("X-Request-Id", strings.ToUpper(engine.Hex(13)))
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
	if !s.core.Sleep(c.r.Context(), delay) {
		return fail(http.StatusServiceUnavailable, "503 Service Unavailable")
	}
	s.lock()
	defer s.core.Mu.Unlock()
	c.now = s.now()
	if broken := s.readParams(c, end); broken != nil {
		return *broken
	}
	out := end.answer(s, c)
	s.core.Kick()
	return out
}

// admit returns an early answer, or nil and how long the call is held up.
func (s *Server) admit(c *call, end endpoint) (*reply, time.Duration) {
	s.lock()
	defer s.core.Mu.Unlock()
	c.now = s.now()
	s.core.Requests[c.op]++
	if !s.named {
		s.base = "http://" + c.r.Host
	}
	if s.core.Chance(s.core.Faults().ServerError) {
		return &reply{status: http.StatusBadGateway, body: "GitLab is not responding"}, 0
	}
	if s.core.Chance(s.core.Faults().RateLimit) || s.core.Chance(s.core.Faults().SecondaryRateLimit) {
		return s.limited(c), 0
	}
	if end.scopes == nil {
		if s.core.Chance(s.core.Faults().RegistrationRefuse) {
			out := fail(http.StatusServiceUnavailable, "503 Service Unavailable")
			return &out, 0
		}
		return nil, 0
	}
	if refused := s.authenticate(c, end); refused != nil {
		return refused, 0
	}
	if c.op == "POST /user/runners" {
		return nil, s.core.Faults().JITDelay
	}
	return nil, 0
}

// limited: docs "Rate limits", the plain text and the headers of a spent limit.
func (s *Server) limited(c *call) *reply {
	after := s.core.Faults().RetryAfter
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
func (c *call) paginate(base string, list []map[string]any) reply {
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
	var links []string
	link := func(rel string, to int64) {
		query := c.r.URL.Query()
		query.Set("page", strconv.FormatInt(to, 10))
		query.Set("per_page", strconv.FormatInt(size, 10))
		links = append(links, fmt.Sprintf("<%s%s?%s>; rel=%q", base, c.r.URL.EscapedPath(), query.Encode(), rel))
	}
	if page > 1 {
		header["X-Prev-Page"] = strconv.FormatInt(page-1, 10)
		link("prev", page-1)
	}
	if page < pages {
		header["X-Next-Page"] = strconv.FormatInt(page+1, 10)
		link("next", page+1)
	}
	link("first", 1)
	link("last", pages)
	header["Link"] = strings.Join(links, ", ")
	return reply{status: http.StatusOK, body: append([]map[string]any{}, list[from:to]...), header: header}
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
