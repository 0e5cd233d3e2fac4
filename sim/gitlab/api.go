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

// maxBody is the maximum size of a request body in bytes.
const maxBody = 4 << 20

// call is one API request while it is handled.
type call struct {
	r      *http.Request
	op     string // method and route
	values map[string]any
	token  *Token
	body   []byte
	now    time.Time
}

// response is a response before it is encoded. A nil body is not sent. A string is sent as plain
// text.
type response struct {
	status int
	body   any
	header map[string]string
}

func newOK(body any) response { return response{status: http.StatusOK, body: body} }

// newError returns GitLab's error response.
func newError(status int, message string) response {
	return response{status: status, body: map[string]any{"message": message}}
}

// newParamError returns the error response of GitLab for an invalid parameter.
func newParamError(format string, args ...any) response {
	return response{status: http.StatusBadRequest, body: map[string]any{"error": fmt.Sprintf(format, args...)}}
}

func newNotFound(kind string) response {
	return newError(http.StatusNotFound, "404 "+kind+" Not Found")
}

func newForbidden(reason string) response {
	return newError(http.StatusForbidden, strings.TrimSuffix("403 Forbidden - "+reason, " - "))
}

// endpoint serves a route. handle is called with the lock held.
type endpoint struct {
	// scopes are scopes of access tokens. One of them is enough. nil is for the calls of runners,
	// which have no access token.
	scopes []string
	// params are the parameters of the query and of the body by name.
	params params
	handle func(*Server, *call) response
	// raw is set if the body is not JSON.
	isRaw bool
}

func (s *Server) newAPIHandler() http.Handler {
	mux := http.NewServeMux()
	all := newAPIEndpoints()
	maps.Copy(all, newRunnerEndpoints())
	for route, ep := range all {
		method, path, _ := strings.Cut(route, " ")
		mux.HandleFunc(method+" /api/v4"+path, func(w http.ResponseWriter, r *http.Request) {
			s.serve(w, r, route, ep)
		})
	}
	mux.HandleFunc("/", s.handleUnknown)
	return mux
}

func (s *Server) handleUnknown(w http.ResponseWriter, r *http.Request) {
	s.core.Mu.Lock()
	s.addViolation("unknown-path", r.Method, r.URL.Path, errors.New("the simulator does not serve this call"))
	s.core.Mu.Unlock()
	writeError(w, http.StatusNotImplemented, "Not simulated: "+r.Method+" "+r.URL.Path)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, route string, ep endpoint) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		writeError(w, http.StatusRequestEntityTooLarge, "413 Request Entity Too Large")
		return
	}
	c := &call{r: r, op: route, body: body}
	out := s.handleCall(c, ep)
	for key, value := range out.header {
		w.Header().Set(key, value)
	}
	w.Header().Set("X-Request-Id", strings.ToUpper(engine.RandomHex(13)))
	switch text := out.body.(type) {
	case nil:
		w.WriteHeader(out.status)
	case string:
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(out.status)
		_, _ = io.WriteString(w, text)
	default:
		writeJSON(w, out.status, out.body)
	}
}

// handleCall runs the stages in GitLab's order: outages, limits, credentials, parameters, and the
// call itself.
func (s *Server) handleCall(c *call, ep endpoint) response {
	rejection, delay := s.admit(c, ep)
	if rejection != nil {
		return *rejection
	}
	if c.op == requestRoute {
		s.holdPoll(c)
	}
	if !s.core.Sleep(c.r.Context(), delay) {
		return newError(http.StatusServiceUnavailable, "503 Service Unavailable")
	}
	s.lock()
	defer s.core.Mu.Unlock()
	c.now = s.now()
	if invalid := s.readParams(c, ep); invalid != nil {
		return *invalid
	}
	if moved := s.redirectMoved(c); moved != nil {
		return *moved
	}
	out := ep.handle(s, c)
	s.core.Wake()
	return out
}

// admit checks faults, limits and credentials. It returns the response that ends the call early, or
// nil and the delay of the call.
func (s *Server) admit(c *call, ep endpoint) (*response, time.Duration) {
	s.lock()
	defer s.core.Mu.Unlock()
	c.now = s.now()
	s.core.Requests[c.op]++
	if !s.hasFixedURL {
		s.baseURL = "http://" + c.r.Host
	}
	if s.core.Occurs(s.core.Faults().ServerError) {
		return &response{status: http.StatusBadGateway, body: "GitLab is not responding"}, 0
	}
	if s.core.Occurs(s.core.Faults().RateLimit) || s.core.Occurs(s.core.Faults().SecondaryRateLimit) {
		return s.newLimitError(c), 0
	}
	if ep.scopes == nil {
		if s.core.Occurs(s.core.Faults().RegistrationRefused) {
			out := newError(http.StatusServiceUnavailable, "503 Service Unavailable")
			return &out, 0
		}
		return nil, 0
	}
	if rejection := s.authenticate(c, ep); rejection != nil {
		return rejection, 0
	}
	if c.op == "POST /user/runners" {
		return nil, s.core.Faults().JITDelay
	}
	return nil, 0
}

// newLimitError returns the response to a call that exceeds a limit. The text and the headers are
// those of GitLab's documentation "Rate limits".
func (s *Server) newLimitError(c *call) *response {
	delay := s.core.Faults().RetryAfter
	if delay <= 0 {
		delay = time.Minute
	}
	seconds := int64((delay + time.Second - 1) / time.Second)
	return &response{status: http.StatusTooManyRequests, body: "Retry later\n", header: map[string]string{
		"Retry-After": strconv.FormatInt(seconds, 10), "RateLimit-Name": "throttle_authenticated_api",
		"RateLimit-Limit": "2000", "RateLimit-Observed": "2001", "RateLimit-Remaining": "0",
		"RateLimit-Reset": strconv.FormatInt(c.now.Unix()+seconds, 10),
	}}
}

// paginate returns the requested page of a list, with the headers for the other pages.
func (c *call) paginate(base string, list []map[string]any) response {
	page, size := max(c.number("page", 1), 1), min(max(c.number("per_page", 20), 1), 100)
	total := int64(len(list))
	start := min((page-1)*size, total)
	end := min(start+size, total)
	pages := max((total+size-1)/size, 1)
	header := map[string]string{
		"X-Page": strconv.FormatInt(page, 10), "X-Per-Page": strconv.FormatInt(size, 10),
		"X-Total": strconv.FormatInt(total, 10), "X-Total-Pages": strconv.FormatInt(pages, 10),
		"X-Next-Page": "", "X-Prev-Page": "",
	}
	var links []string
	link := func(rel string, end int64) {
		query := c.r.URL.Query()
		query.Set("page", strconv.FormatInt(end, 10))
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
	return response{status: http.StatusOK, body: append([]map[string]any{}, list[start:end]...), header: header}
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if text, err := json.Marshal(body); err == nil {
		_, _ = w.Write(text)
	}
}

func writeError(w http.ResponseWriter, status int, message string) {
	writeJSON(w, status, map[string]string{"message": message})
}
