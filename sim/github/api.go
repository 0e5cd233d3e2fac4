// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/getkin/kin-openapi/openapi3filter"

	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
)

// maxBody bounds request bodies.
const maxBody = 1 << 20

// call is one API request on its way through a handler.
type call struct {
	op     *operation
	r      *http.Request
	cred   *credential
	scope  scope
	params map[string]string // unescaped
	body   []byte
	host   string // scheme and host the caller used
	now    time.Time
}

// reply is an answer before it is encoded. A nil body sends none.
type reply struct {
	status int
	body   any
	link   string
	header map[string]string
}

// apiError is GitHub's error body.
type apiError struct {
	Message          string   `json:"message"`
	Errors           []string `json:"errors,omitempty"`
	DocumentationURL string   `json:"documentation_url"`
	Status           string   `json:"status"`
}

func fail(status int, message string) reply {
	return reply{status: status, body: apiError{
		Message: message, DocumentationURL: "https://docs.github.com/rest", Status: strconv.Itoa(status),
	}}
}

func notFound() reply { return fail(http.StatusNotFound, "Not Found") }

// endpoint is what serves an operation: who may call it, and how it answers.
// answer runs under the server's lock.
type endpoint struct {
	access access
	answer func(*Server, *call) reply
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	served := endpoints()
	for _, op := range s.spec.operations {
		end, ok := served[op.id]
		if !ok {
			continue // described, since it shares a path with a served one, but not simulated: 501
		}
		mux.HandleFunc(op.method+" "+op.path, func(w http.ResponseWriter, r *http.Request) {
			s.serve(w, r, op, end)
		})
	}
	mux.HandleFunc("/", s.unknown)
	root := http.NewServeMux()
	s.runnerRoutes(root)
	s.scaleSetRoutes(root)
	root.Handle("/api/v3/", http.StripPrefix("/api/v3", mux))
	root.Handle("/", mux)
	return root
}

func (s *Server) unknown(w http.ResponseWriter, r *http.Request) {
	s.violate("unknown-path", r.Method, r.URL.Path, errors.New("the simulator does not serve this call"))
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(http.StatusNotImplemented)
	text, err := json.Marshal(fail(http.StatusNotImplemented, "Not simulated: "+r.Method+" "+r.URL.Path).body)
	if err == nil {
		_, _ = w.Write(text)
	}
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, op *operation, end endpoint) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		s.violate("request", r.Method, r.URL.Path, fmt.Errorf("read body: %w", err))
		http.Error(w, "body too large", http.StatusRequestEntityTooLarge)
		return
	}
	if string(bytes.TrimSpace(body)) == "null" {
		body = nil // GitHub takes null for no body; ghinstallation sends it
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	names := pathNames(op.path)
	in := op.input(r, escapeParams(names, r.PathValue))
	c := &call{op: op, r: r, body: body, host: hostOf(r), params: map[string]string{}}
	for _, name := range names {
		c.params[name] = r.PathValue(name)
	}
	header := http.Header{}
	out := s.answer(c, in, end, header)
	s.write(w, in, header, out)
}

// answer runs the stages in GitHub's order: outages, credentials, limits,
// permissions, validation, and the call itself.
func (s *Server) answer(c *call, in *openapi3filter.RequestValidationInput, end endpoint, header http.Header) reply {
	early, delay := s.admit(c, end, header)
	if early != nil {
		return *early
	}
	if err := c.op.checkRequest(c.r.Context(), in); err != nil {
		s.violate("request", c.r.Method, c.r.URL.Path, err)
		if aboutBody(err) {
			return refuseInvalid(c.body, err)
		}
	}
	if !s.core.Sleep(c.r.Context(), delay) {
		return fail(http.StatusServiceUnavailable, "The server is shutting down")
	}
	s.lock()
	defer s.core.Mu.Unlock()
	c.now = s.now()
	out := s.condition(c, header, end.answer(s, c))
	s.advance(c.now)
	s.core.Kick()
	return out
}

// admit returns an early answer, or nil and how long the call is held up.
func (s *Server) admit(c *call, end endpoint, header http.Header) (*reply, time.Duration) {
	s.lock()
	defer s.core.Mu.Unlock()
	c.now = s.now()
	s.core.Requests[c.op.id]++
	if s.core.Chance(s.core.Faults().ServerError) {
		out := fail(http.StatusBadGateway, "Server Error")
		return &out, 0
	}
	cred, refused := s.authenticate(c)
	if refused != nil {
		return refused, 0
	}
	c.cred = cred
	if limited := s.limit(c, header); limited != nil {
		return limited, 0
	}
	if refused := s.authorize(c, end.access, header); refused != nil {
		return refused, 0
	}
	if strings.Contains(c.op.id, "jitconfig") {
		return nil, s.core.Faults().JITDelay
	}
	return nil, 0
}

// aboutBody tells breaches of the body, which GitHub refuses, from those of
// parameters, which it ignores or answers 404.
func aboutBody(err error) bool {
	var broken *openapi3filter.RequestError
	return errors.As(err, &broken) && broken.RequestBody != nil
}

func refuseInvalid(body []byte, err error) reply {
	if len(body) > 0 && !json.Valid(body) {
		return fail(http.StatusBadRequest, "Problems parsing JSON")
	}
	return fail(http.StatusUnprocessableEntity, "Invalid request.\n\n"+firstLine(err.Error()))
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

func (s *Server) write(w http.ResponseWriter, in *openapi3filter.RequestValidationInput, header http.Header, out reply) {
	var body []byte
	if out.body != nil {
		text, err := json.Marshal(out.body)
		if err != nil {
			s.violate("response", in.Request.Method, in.Request.URL.Path, err)
		}
		body = text
		header.Set("Content-Type", "application/json; charset=utf-8")
	}
	header.Set("X-Github-Media-Type", "github.v3; format=json")
	header.Set("X-Github-Request-Id", strings.ToUpper(engine.Hex(8)))
	if out.link != "" {
		header.Set("Link", out.link)
	}
	for key, value := range out.header {
		header.Set(key, value)
	}
	in.Request.Body = http.NoBody
	if err := s.spec.checkReply(in.Request.Context(), in, out.status, header, body); err != nil {
		s.violate("response", in.Request.Method, in.Request.URL.Path, err)
	}
	maps.Copy(w.Header(), header)
	w.WriteHeader(out.status)
	_, _ = w.Write(body)
}

func hostOf(r *http.Request) string {
	if r.TLS != nil {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

// decodeAny parses JSON into plain values. Numbers become float64, as the
// schema checker expects.
func decodeAny(text []byte) (any, error) {
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		return nil, fmt.Errorf("parse JSON: %w", err)
	}
	return value, nil
}
