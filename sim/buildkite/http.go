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

// maxBody bounds request bodies; chunks of logs are the largest.
const maxBody = 4 << 20

// access is whose token a call needs.
type access int

const (
	byCluster access = iota // the cluster's agent token
	byRegistration
	bySession
	byJob
)

// route is one call. answer runs under the server's lock.
type route struct {
	method, path string
	name         string // in State.Requests
	access       access
	scope        string // of the rate limit; empty: none
	rate         int    // requests a second
	query        []string
	answer       func(*Server, *call) reply
}

// call is one request on its way.
type call struct {
	r     *http.Request
	grant grant
	stack *stack
	job   *job
	body  []byte
	now   time.Time
	// unknown is the first field of the body that is not known. It is passed over.
	unknown string
}

// reply is an answer before it is encoded. A nil body sends none.
type reply struct {
	status int
	body   any
	after  int // seconds of Retry-After
	delay  time.Duration
	// breach is a breach of the contract by the caller.
	breach string
}

func ok(body any) reply { return reply{status: http.StatusOK, body: body} }

// fail is an error as Buildkite answers it.
func fail(status int, message string) reply {
	return reply{status: status, body: map[string]any{"message": message}}
}

// breach is a request that a caller who knows the contract never makes.
func breach(status int, message string) reply {
	out := fail(status, message)
	out.breach = message
	return out
}

// stacks' rates: https://buildkite.com/docs/apis/agent-api/stacks#rate-limiting. That of
// tokens is not published.
func routes() []route {
	return []route{
		{"POST", "/stacks/register", "registerStack", byCluster, "default", 10, nil, (*Server).registerStack},
		{"POST", "/stacks/{key}/deregister", "deregisterStack", byCluster, "default", 10, nil, (*Server).deregisterStack},
		{
			"GET", "/stacks/{key}/scheduled-jobs", "scheduledJobs", byCluster, "list-scheduled-jobs", 10,
			[]string{"queue_key", "limit", "after"}, (*Server).scheduledJobs,
		},
		{
			"PUT", "/stacks/{key}/scheduled-jobs/batch-reserve", "batchReserve", byCluster, "batch-reserve", 10,
			nil, (*Server).batchReserve,
		},
		{"GET", "/stacks/{key}/jobs/{id}", "getJob", byCluster, "show-job", 1000, nil, (*Server).getJob},
		{"POST", "/stacks/{key}/jobs/get-states", "getStates", byCluster, "batch-load-job-states", 20, nil, (*Server).getStates},
		{"POST", "/stacks/{key}/jobs/{id}/finish", "finishByStack", byCluster, "finish-job", 100, nil, (*Server).finishByStack},
		{"POST", "/stacks/{key}/notifications", "notifications", byCluster, "stack-notification", 200, nil, (*Server).notifications},
		{"POST", "/stacks/{key}/job-acquisition-tokens", "acquisitionTokens", byCluster, "", 0, nil, (*Server).acquisitionTokens},
		{"GET", "/metrics", "metrics", byCluster, "", 0, nil, (*Server).metrics},
		{"POST", "/register", "register", byRegistration, "", 0, nil, (*Server).registerAgent},
		{"POST", "/connect", "connect", bySession, "", 0, nil, (*Server).connect},
		{"POST", "/heartbeat", "heartbeat", bySession, "", 0, nil, (*Server).heartbeat},
		{"GET", "/ping", "ping", bySession, "", 0, nil, (*Server).ping},
		{"POST", "/disconnect", "disconnect", bySession, "", 0, nil, (*Server).disconnect},
		{"PUT", "/jobs/{id}/acquire", "acquireJob", bySession, "", 0, nil, (*Server).acquireJob},
		{"PUT", "/jobs/{id}/start", "startJob", byJob, "", 0, nil, (*Server).startJob},
		{"GET", "/jobs/{id}", "jobState", byJob, "", 0, nil, (*Server).jobState},
		{
			"POST", "/jobs/{id}/chunks", "chunks", byJob, "", 0,
			[]string{"sequence", "offset", "size"}, (*Server).chunks,
		},
		{"POST", "/jobs/{id}/data/exists", "metadataExists", byJob, "", 0, nil, (*Server).metadataExists},
		{"POST", "/jobs/{id}/data/get", "getMetadata", byJob, "", 0, nil, (*Server).getMetadata},
		{"POST", "/jobs/{id}/data/set", "setMetadata", byJob, "", 0, nil, (*Server).setMetadata},
		{"POST", "/jobs/{id}/data/keys", "metadataKeys", byJob, "", 0, nil, (*Server).metadataKeys},
		{"PUT", "/jobs/{id}/finish", "finishJob", byJob, "", 0, nil, (*Server).finishJob},
	}
}

const streamPings = "streamPings"

// agentCalls are the names of the calls that agents make.
func agentCalls() []string {
	out := []string{streamPings}
	for _, route := range routes() {
		if route.access != byCluster {
			out = append(out, route.name)
		}
	}
	return out
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	for _, route := range routes() {
		mux.HandleFunc(route.method+" /v3"+route.path, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, route) })
	}
	// Not every address of Buildkite's agents has streams; an agent asks at each, and polls
	// where there are none.
	mux.HandleFunc("POST /agentedge.v1.AgentEdgeService/StreamPings", func(w http.ResponseWriter, _ *http.Request) {
		s.core.Mu.Lock()
		s.core.Requests[streamPings]++
		s.core.Mu.Unlock()
		s.write(w, fail(http.StatusNotFound, "No endpoint found"))
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.core.Mu.Lock()
		s.core.Violate("unknown-path", r.Method, r.URL.Path, "the simulator does not serve this call")
		s.core.Mu.Unlock()
		s.write(w, fail(http.StatusNotImplemented, "Not simulated: "+r.Method+" "+r.URL.Path))
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
	out := s.answer(c, route, w.Header())
	for _, breach := range []string{c.unknown, out.breach} {
		if breach != "" {
			s.core.Violate("request", r.Method, r.URL.Path, breach)
		}
	}
	s.core.Mu.Unlock()
	s.core.Kick()
	if out.delay > 0 {
		timer := s.opts.Clock.NewTimer(out.delay)
		defer timer.Stop()
		select {
		case <-timer.C():
		case <-r.Context().Done():
		}
	}
	s.write(w, out)
}

// answer runs the stages of a request: outages, credentials, limits, the call itself. The
// lock is held.
func (s *Server) answer(c *call, route route, header http.Header) reply {
	if s.core.Chance(s.core.Faults().ServerError) {
		return reply{status: http.StatusBadGateway}
	}
	if out := s.admit(c, route.access); out != nil {
		return *out
	}
	if route.access == byCluster && (s.core.Chance(s.core.Faults().RateLimit) || s.core.Chance(s.core.Faults().SecondaryRateLimit)) {
		return s.limited(header, route.scope, 0, s.core.Faults().RetryAfter)
	}
	if key := c.r.PathValue("key"); key != "" {
		if c.stack = s.stacks[key]; c.stack == nil {
			return fail(http.StatusNotFound, "No stack found")
		}
		c.stack.seen = c.now
	}
	if route.scope != "" && !s.opts.NoLimits {
		if out := s.limit(c, route, header); out != nil {
			return *out
		}
	}
	for name := range c.r.URL.Query() {
		if !slices.Contains(route.query, name) {
			return breach(http.StatusBadRequest, "unknown query parameter "+name)
		}
	}
	return route.answer(s, c)
}

// admit checks the token: Authorization: Token VALUE.
func (s *Server) admit(c *call, need access) *reply {
	refuse := func(message string) *reply {
		out := fail(http.StatusUnauthorized, message)
		return &out
	}
	token, is := strings.CutPrefix(c.r.Header.Get("Authorization"), "Token ")
	known, found := s.tokens[token]
	if !is || !found || !known.expires.IsZero() && !c.now.Before(known.expires) {
		return refuse("Invalid access token")
	}
	c.grant = known
	id := c.r.PathValue("id")
	switch need {
	case byCluster:
		found = known.cluster
	case byRegistration:
		found = known.cluster || known.acquire
	case bySession:
		found = known.agent != nil
	case byJob:
		// An agent may use its session's token for its own job too.
		if known.agent != nil {
			known.job = known.agent.job
		}
		found = known.job != nil && !known.acquire && known.job.uuid == id
		c.job = known.job
	}
	if !found {
		return refuse("Invalid access token")
	}
	if known.agent != nil {
		known.agent.seen = c.now
	}
	if need == byJob && c.job.agent != nil {
		c.job.agent.seen = c.now
	}
	return nil
}

// limit counts the requests of a stack in the second before. The lock is held.
func (s *Server) limit(c *call, route route, header http.Header) *reply {
	key := route.scope + " " + c.r.PathValue("key")
	window := slices.DeleteFunc(s.windows[key], func(at time.Time) bool { return c.now.Sub(at) >= time.Second })
	s.windows[key] = append(window, c.now)
	left := route.rate - len(s.windows[key])
	header.Set("Ratelimit-Scope", route.scope)
	header.Set("Ratelimit-Limit", strconv.Itoa(route.rate))
	header.Set("Ratelimit-Remaining", strconv.Itoa(max(left, 0)))
	header.Set("Ratelimit-Reset", "1")
	if left >= 0 {
		return nil
	}
	out := s.limited(header, route.scope, route.rate, time.Second)
	return &out
}

func (s *Server) limited(header http.Header, scope string, limit int, after time.Duration) reply {
	if after <= 0 {
		after = time.Minute
	}
	seconds := int(math.Ceil(after.Seconds()))
	header.Set("Ratelimit-Reset", strconv.Itoa(seconds))
	return reply{status: http.StatusTooManyRequests, after: seconds, body: map[string]any{
		"message": fmt.Sprintf("You have exceeded your API rate limit. Please wait %d seconds before making more requests.", seconds),
		"scope":   scope, "limit": limit, "current": limit + 1, "reset": seconds,
	}}
}

func (s *Server) write(w http.ResponseWriter, out reply) {
	if out.after > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(out.after))
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

// read decodes a body; the reply is what to answer if it can't be.
func (c *call) read(into any) *reply {
	if err := json.Unmarshal(c.body, into); err != nil {
		out := breach(http.StatusBadRequest, "Invalid body: "+err.Error())
		return &out
	}
	decoder := json.NewDecoder(bytes.NewReader(c.body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		c.unknown = "Invalid body: " + err.Error()
	}
	if !strings.HasPrefix(c.r.Header.Get("Content-Type"), "application/json") {
		out := breach(http.StatusBadRequest, "the body's Content-Type is not application/json")
		return &out
	}
	return nil
}
