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

// maxBody is the maximum size of a request body in bytes.
const maxBody = 1 << 20

// call is one API request while it is handled.
type call struct {
	op      *operation
	r       *http.Request
	cred    *credential
	scope   scope
	params  map[string]string // unescaped
	body    []byte
	baseURL string // scheme and host of the request
	now     time.Time
}

// response is a response before it is encoded. A nil body is not sent.
type response struct {
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

func newError(status int, message string) response {
	return response{status: status, body: apiError{
		Message: message, DocumentationURL: "https://docs.github.com/rest", Status: strconv.Itoa(status),
	}}
}

func newNotFound() response { return newError(http.StatusNotFound, "Not Found") }

// endpoint serves an operation. access is who may call the operation. handle is called with the
// lock held.
type endpoint struct {
	access access
	handle func(*Server, *call) response
}

func (s *Server) newAPIHandler() http.Handler {
	mux := http.NewServeMux()
	handlers := newEndpoints()
	for _, op := range s.spec.operations {
		ep, ok := handlers[op.id]
		if !ok {
			// The OpenAPI description has all methods of each path, also those that are not simulated.
			// handleUnknown responds to them with 501.
			continue
		}
		mux.HandleFunc(op.method+" "+op.path, func(w http.ResponseWriter, r *http.Request) {
			s.serve(w, r, op, ep)
		})
	}
	mux.HandleFunc("/", s.handleUnknown)
	root := http.NewServeMux()
	s.mountRunnerProtocol(root)
	s.mountScaleSets(root)
	api := s.redirectMoved(mux)
	root.Handle("/api/v3/", http.StripPrefix("/api/v3", api))
	root.Handle("/", api)
	return root
}

func (s *Server) handleUnknown(w http.ResponseWriter, r *http.Request) {
	s.addViolation("unknown-path", r.Method, r.URL.Path, errors.New("the simulator does not serve this call"))
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(http.StatusNotImplemented)
	text, err := json.Marshal(newError(http.StatusNotImplemented, "Not simulated: "+r.Method+" "+r.URL.Path).body)
	if err == nil {
		_, _ = w.Write(text)
	}
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, op *operation, ep endpoint) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		s.addViolation("request", r.Method, r.URL.Path, fmt.Errorf("read body: %w", err))
		http.Error(w, "body too large", http.StatusRequestEntityTooLarge)
		return
	}
	if string(bytes.TrimSpace(body)) == "null" {
		body = nil // GitHub accepts null as an empty body; ghinstallation sends it
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	names := parsePathNames(op.path)
	in := op.newInput(r, escapeParams(names, r.PathValue))
	c := &call{op: op, r: r, body: body, baseURL: requestBaseURL(r), params: map[string]string{}}
	for _, name := range names {
		c.params[name] = r.PathValue(name)
	}
	header := http.Header{}
	out := s.handleCall(c, in, ep, header)
	s.writeResponse(w, in, header, out)
}

// handleCall runs the stages in GitHub's order: outages, credentials, limits, permissions,
// validation, and the call itself.
func (s *Server) handleCall(c *call, input *openapi3filter.RequestValidationInput, ep endpoint, header http.Header) response {
	rejection, delay := s.admit(c, ep, header)
	if rejection != nil {
		return *rejection
	}
	if err := c.op.checkRequest(c.r.Context(), input); err != nil {
		s.addViolation("request", c.r.Method, c.r.URL.Path, err)
		if isBodyError(err) {
			return newValidationError(c.body, err)
		}
	}
	if !s.core.Sleep(c.r.Context(), delay) {
		return newError(http.StatusServiceUnavailable, "The server is shutting down")
	}
	s.lock()
	defer s.core.Mu.Unlock()
	c.now = s.now()
	out := s.applyETag(c, header, ep.handle(s, c))
	s.advance(c.now)
	s.core.Wake()
	return out
}

// admit checks faults, credentials, limits and permissions. It returns the response that ends the
// call early, or nil and the delay of the call.
func (s *Server) admit(c *call, ep endpoint, header http.Header) (*response, time.Duration) {
	s.lock()
	defer s.core.Mu.Unlock()
	c.now = s.now()
	s.core.Requests[c.op.id]++
	if s.core.Occurs(s.core.Faults().ServerError) {
		out := newError(http.StatusBadGateway, "Server Error")
		return &out, 0
	}
	cred, rejection := s.authenticate(c)
	if rejection != nil {
		return rejection, 0
	}
	c.cred = cred
	if rejection := s.applyRateLimit(c, header); rejection != nil {
		return rejection, 0
	}
	if rejection := s.authorize(c, ep.access, header); rejection != nil {
		return rejection, 0
	}
	if strings.Contains(c.op.id, "jitconfig") {
		return nil, s.core.Faults().JITDelay
	}
	return nil, 0
}

// isBodyError reports whether err is about the body. GitHub rejects an invalid body. It ignores
// invalid parameters or responds to them with 404.
func isBodyError(err error) bool {
	var requestErr *openapi3filter.RequestError
	return errors.As(err, &requestErr) && requestErr.RequestBody != nil
}

func newValidationError(body []byte, err error) response {
	if len(body) > 0 && !json.Valid(body) {
		return newError(http.StatusBadRequest, "Problems parsing JSON")
	}
	return newError(http.StatusUnprocessableEntity, "Invalid request.\n\n"+cutFirstLine(err.Error()))
}

func cutFirstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

func (s *Server) writeResponse(
	w http.ResponseWriter, input *openapi3filter.RequestValidationInput, header http.Header, out response,
) {
	var body []byte
	if out.body != nil {
		text, err := json.Marshal(out.body)
		if err != nil {
			s.addViolation("response", input.Request.Method, input.Request.URL.Path, err)
		}
		body = text
		header.Set("Content-Type", "application/json; charset=utf-8")
	}
	header.Set("X-Github-Media-Type", "github.v3; format=json")
	header.Set("X-Github-Request-Id", strings.ToUpper(engine.RandomHex(8)))
	if out.link != "" {
		header.Set("Link", out.link)
	}
	for key, value := range out.header {
		header.Set(key, value)
	}
	input.Request.Body = http.NoBody
	if err := s.spec.checkResponse(input.Request.Context(), input, out.status, header, body); err != nil {
		s.addViolation("response", input.Request.Method, input.Request.URL.Path, err)
	}
	maps.Copy(w.Header(), header)
	w.WriteHeader(out.status)
	_, _ = w.Write(body)
}

func requestBaseURL(r *http.Request) string {
	if r.TLS != nil {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

// decodeJSON decodes JSON into plain values. Numbers become float64, as the schema validator
// expects.
func decodeJSON(text []byte) (any, error) {
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		return nil, fmt.Errorf("parse JSON: %w", err)
	}
	return value, nil
}
