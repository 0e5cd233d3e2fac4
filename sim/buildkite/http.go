// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxBody is the maximum size of a request body in bytes. The chunks of logs are the largest
// bodies.
const maxBody = 4 << 20

// access is the kind of token that a call needs.
type access int

const (
	accessCluster access = iota // the cluster's agent token
	accessRegistration
	accessSession
	accessJob
)

// route is one call. handle is called with the lock held.
type route struct {
	method, path string
	name         string // in State.Requests
	access       access
	scope        string // of the rate limit; empty: none
	rate         int    // requests per second
	query        []string
	handle       func(*Server, *call) response
}

// call is one request while it is handled.
type call struct {
	r     *http.Request
	grant grant
	stack *stack
	job   *job
	body  []byte
	now   time.Time
	// unknownField is the error for the first unknown field of the body, which is ignored.
	unknownField string
}

// response is a response before it is encoded. A nil body is not sent.
type response struct {
	status     int
	body       any
	retryAfter int // seconds of Retry-After
	delay      time.Duration
	// violation is the violation of the contract by the caller, or empty.
	violation string
}

func newOK(body any) response { return response{status: http.StatusOK, body: body} }

// newError returns an error response of Buildkite.
func newError(status int, message string) response {
	return response{status: status, body: map[string]any{"message": message}}
}

// newViolation returns the response to a request that violates the contract.
func newViolation(status int, message string) response {
	out := newError(status, message)
	out.violation = message
	return out
}

// newRoutes returns all calls. The rates of the Stacks API are those of
// https://buildkite.com/docs/apis/agent-api/stacks#rate-limiting. The rate for tokens is not
// published.
func newRoutes() []route {
	return []route{
		{"POST", "/stacks/register", "registerStack", accessCluster, "default", 10, nil, (*Server).registerStack},
		{"POST", "/stacks/{key}/deregister", "deregisterStack", accessCluster, "default", 10, nil, (*Server).deregisterStack},
		{
			"GET", "/stacks/{key}/scheduled-jobs", "scheduledJobs", accessCluster, "list-scheduled-jobs", 10,
			[]string{"queue_key", "limit", "after"}, (*Server).listScheduledJobs,
		},
		{
			"PUT", "/stacks/{key}/scheduled-jobs/batch-reserve", "batchReserve", accessCluster, "batch-reserve", 10,
			nil, (*Server).reserveJobs,
		},
		{"GET", "/stacks/{key}/jobs/{id}", "getJob", accessCluster, "show-job", 1000, nil, (*Server).getJob},
		{"POST", "/stacks/{key}/jobs/get-states", "getStates", accessCluster, "batch-load-job-states", 20, nil, (*Server).getStates},
		{"POST", "/stacks/{key}/jobs/{id}/finish", "finishByStack", accessCluster, "finish-job", 100, nil, (*Server).finishByStack},
		{
			"POST", "/stacks/{key}/notifications", "notifications", accessCluster, "stack-notification", 200,
			nil, (*Server).addNotifications,
		},
		{
			"POST", "/stacks/{key}/job-acquisition-tokens", "acquisitionTokens", accessCluster, "", 0,
			nil, (*Server).createAcquisitionTokens,
		},
		{"GET", "/metrics", "metrics", accessCluster, "", 0, nil, (*Server).getMetrics},
		{"POST", "/register", "register", accessRegistration, "", 0, nil, (*Server).registerAgent},
		{"POST", "/connect", "connect", accessSession, "", 0, nil, (*Server).connect},
		{"POST", "/heartbeat", "heartbeat", accessSession, "", 0, nil, (*Server).heartbeat},
		{"GET", "/ping", "ping", accessSession, "", 0, nil, (*Server).ping},
		{"POST", "/disconnect", "disconnect", accessSession, "", 0, nil, (*Server).disconnect},
		{"PUT", "/jobs/{id}/acquire", "acquireJob", accessSession, "", 0, nil, (*Server).acquireJob},
		{"PUT", "/jobs/{id}/start", "startJob", accessJob, "", 0, nil, (*Server).startJob},
		{"GET", "/jobs/{id}", "jobState", accessJob, "", 0, nil, (*Server).getJobState},
		{
			"POST", "/jobs/{id}/chunks", "chunks", accessJob, "", 0,
			[]string{"sequence", "offset", "size"}, (*Server).uploadChunk,
		},
		{"POST", "/jobs/{id}/data/exists", "metadataExists", accessJob, "", 0, nil, (*Server).hasMetadata},
		{"POST", "/jobs/{id}/data/get", "getMetadata", accessJob, "", 0, nil, (*Server).getMetadata},
		{"POST", "/jobs/{id}/data/set", "setMetadata", accessJob, "", 0, nil, (*Server).setMetadata},
		{"POST", "/jobs/{id}/data/keys", "metadataKeys", accessJob, "", 0, nil, (*Server).listMetadataKeys},
		{"PUT", "/jobs/{id}/finish", "finishJob", accessJob, "", 0, nil, (*Server).finishJob},
	}
}

const streamPings = "streamPings"

// agentCalls returns the names of the calls that agents make.
func agentCalls() []string {
	out := []string{streamPings}
	for _, route := range newRoutes() {
		if route.access != accessCluster {
			out = append(out, route.name)
		}
	}
	return out
}

func (s *Server) newAPIHandler() http.Handler {
	mux := http.NewServeMux()
	for _, route := range newRoutes() {
		mux.HandleFunc(route.method+" /v3"+route.path, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, route) })
	}
	// Not every endpoint of Buildkite has streams. An agent requests a stream from each endpoint, and
	// polls if the endpoint has none.
	mux.HandleFunc("POST /agentedge.v1.AgentEdgeService/StreamPings", func(w http.ResponseWriter, _ *http.Request) {
		s.core.Mu.Lock()
		s.core.Requests[streamPings]++
		s.core.Mu.Unlock()
		s.writeResponse(w, newError(http.StatusNotFound, "No endpoint found"))
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.core.Mu.Lock()
		s.core.AddViolation("unknown-path", r.Method, r.URL.Path, "the simulator does not serve this call")
		s.core.Mu.Unlock()
		s.writeResponse(w, newError(http.StatusNotImplemented, "Not simulated: "+r.Method+" "+r.URL.Path))
	})
	return mux
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, route route) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, "body too large", http.StatusRequestEntityTooLarge)
		return
	}
	s.lock()
	c := &call{r: r, body: body, now: s.now()}
	s.core.Requests[route.name]++
	out := s.handleCall(c, route, w.Header())
	for _, breach := range []string{c.unknownField, out.violation} {
		if breach != "" {
			s.core.AddViolation("request", r.Method, r.URL.Path, breach)
		}
	}
	s.core.Mu.Unlock()
	s.core.Wake()
	if out.delay > 0 {
		timer := s.opts.Clock.NewTimer(out.delay)
		defer timer.Stop()
		select {
		case <-timer.C():
		case <-r.Context().Done():
		}
	}
	s.writeResponse(w, out)
}

// handleCall runs the stages of a request: outages, credentials, limits, and the call itself. The
// lock is held.
func (s *Server) handleCall(c *call, route route, header http.Header) response {
	if s.core.Occurs(s.core.Faults().ServerError) {
		return response{status: http.StatusBadGateway}
	}
	if out := s.admit(c, route.access); out != nil {
		return *out
	}
	if route.access == accessCluster &&
		(s.core.Occurs(s.core.Faults().RateLimit) || s.core.Occurs(s.core.Faults().SecondaryRateLimit)) {
		return s.newLimitError(header, route.scope, 0, s.core.Faults().RetryAfter)
	}
	if key := c.r.PathValue("key"); key != "" {
		if c.stack = s.stacks[key]; c.stack == nil {
			return newError(http.StatusNotFound, "No stack found")
		}
		c.stack.lastSeen = c.now
	}
	if route.scope != "" && !s.opts.NoLimits {
		if out := s.applyRateLimit(c, route, header); out != nil {
			return *out
		}
	}
	for name := range c.r.URL.Query() {
		if !slices.Contains(route.query, name) {
			return newViolation(http.StatusBadRequest, "unknown query parameter "+name)
		}
	}
	return route.handle(s, c)
}

// admit checks the token in the header "Authorization: Token VALUE". It returns the error response,
// or nil.
func (s *Server) admit(c *call, required access) *response {
	newRefusal := func(message string) *response {
		out := newError(http.StatusUnauthorized, message)
		return &out
	}
	token, is := strings.CutPrefix(c.r.Header.Get("Authorization"), "Token ")
	entry, found := s.tokens[token]
	if !is || !found || !entry.expiresAt.IsZero() && !c.now.Before(entry.expiresAt) {
		return newRefusal("Invalid access token")
	}
	c.grant = entry
	id := c.r.PathValue("id")
	switch required {
	case accessCluster:
		found = entry.isCluster
	case accessRegistration:
		found = entry.isCluster || entry.isAcquisition
	case accessSession:
		found = entry.agent != nil
	case accessJob:
		// An agent can also use the token of its session for its own job.
		if entry.agent != nil {
			entry.job = entry.agent.job
		}
		found = entry.job != nil && !entry.isAcquisition && entry.job.uuid == id
		c.job = entry.job
	}
	if !found {
		return newRefusal("Invalid access token")
	}
	if entry.agent != nil {
		entry.agent.lastSeen = c.now
	}
	if required == accessJob && c.job.agent != nil {
		c.job.agent.lastSeen = c.now
	}
	return nil
}

// applyRateLimit counts the requests of a stack in the last second. It returns the response to a
// request that exceeds the limit, or nil.
func (s *Server) applyRateLimit(c *call, route route, header http.Header) *response {
	key := route.scope + " " + c.r.PathValue("key")
	window := slices.DeleteFunc(s.windows[key], func(start time.Time) bool { return c.now.Sub(start) >= time.Second })
	s.windows[key] = append(window, c.now)
	remaining := route.rate - len(s.windows[key])
	header.Set("Ratelimit-Scope", route.scope)
	header.Set("Ratelimit-Limit", strconv.Itoa(route.rate))
	header.Set("Ratelimit-Remaining", strconv.Itoa(max(remaining, 0)))
	header.Set("Ratelimit-Reset", "1")
	if remaining >= 0 {
		return nil
	}
	out := s.newLimitError(header, route.scope, route.rate, time.Second)
	return &out
}

func (s *Server) newLimitError(header http.Header, scope string, limit int, delay time.Duration) response {
	if delay <= 0 {
		delay = time.Minute
	}
	seconds := int(math.Ceil(delay.Seconds()))
	header.Set("Ratelimit-Reset", strconv.Itoa(seconds))
	return response{status: http.StatusTooManyRequests, retryAfter: seconds, body: map[string]any{
		"message": fmt.Sprintf("You have exceeded your API rate limit. Please wait %d seconds before making more requests.", seconds),
		"scope":   scope, "limit": limit, "current": limit + 1, "reset": seconds,
	}}
}

func (s *Server) writeResponse(w http.ResponseWriter, out response) {
	if out.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(out.retryAfter))
	}
	if out.body == nil {
		w.WriteHeader(out.status)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(out.status)
	if text, err := json.Marshal(out.body); err == nil {
		_, _ = w.Write(text)
	}
}

// decodeBody decodes a body. If the body is invalid, decodeBody returns the error response.
func (c *call) decodeBody(target any) *response {
	if err := json.Unmarshal(c.body, target); err != nil {
		out := newViolation(http.StatusBadRequest, "Invalid body: "+err.Error())
		return &out
	}
	decoder := json.NewDecoder(bytes.NewReader(c.body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(target); err != nil {
		c.unknownField = "Invalid body: " + err.Error()
	}
	if !strings.HasPrefix(c.r.Header.Get("Content-Type"), "application/json") {
		out := newViolation(http.StatusBadRequest, "the Content-Type of the body is not application/json")
		return &out
	}
	return nil
}
