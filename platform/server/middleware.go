// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"runtime/debug"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/hyperfleet/hyperfleet/api/openapi"
)

const (
	// maxBody of a request in bytes, and maxReport of an adapter's report: each adapter
	// of each resource has one that is kept.
	maxBody   = 1 << 20
	maxReport = 256 << 10
	// maxRequest is how long a request may take that does not wait for changes.
	maxRequest = 30 * time.Second
	// maxWaiting is how long one may take that does: the contract's 55 s and the rest.
	maxWaiting = 65 * time.Second

	requestIDHeader = "X-Request-Id"
	tracerName      = "github.com/hyperfleet/hyperfleet/platform/server"
)

type requestKey struct{}

// request is what is known of a request beside the request itself.
type request struct {
	id    string
	route string
	// path is the route with its kinds and without ids, for metrics.
	path    string
	scope   scope
	caller  caller
	tenancy map[string]string
	// quiet is a write that changes nothing anybody would look for: a lease renewed.
	quiet bool
}

func about(ctx context.Context) *request {
	if found, ok := ctx.Value(requestKey{}).(*request); ok {
		return found
	}

	return &request{}
}

func setRoute(ctx context.Context, name string) { about(ctx).route = name }

// recorder notes the status of an answer.
type recorder struct {
	http.ResponseWriter

	status int
}

// WriteHeader notes the status.
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}

	r.ResponseWriter.WriteHeader(status)
}

// Write notes that the status was 200.
func (r *recorder) Write(data []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}

	return r.ResponseWriter.Write(data)
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// ServeHTTP answers a request of the API.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := s.clock.Now()
	info := &request{id: requestID(r)}

	ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	ctx, span := otel.Tracer(tracerName).Start(ctx, "request", trace.WithSpanKind(trace.SpanKindServer))

	defer span.End()

	limit := maxRequest
	if r.URL.Path == BasePath+"/changes" {
		limit = maxWaiting
	}

	ctx, cancel := context.WithTimeout(context.WithValue(ctx, requestKey{}, info), limit)
	defer cancel()

	w.Header().Set(requestIDHeader, info.id)

	out := &recorder{ResponseWriter: w}
	r = r.WithContext(ctx)
	r.Body = http.MaxBytesReader(out, r.Body, maxBody)

	s.metrics.running.Inc()
	defer s.metrics.running.Dec()

	s.guarded(out, r, info)

	span.SetAttributes(attribute.Int("http.response.status_code", out.status))

	if out.status >= http.StatusInternalServerError {
		span.SetStatus(codes.Error, http.StatusText(out.status))
	}

	took := s.clock.Since(start)
	s.metrics.request(info.path, r.Method, out.status, took)
	s.logRequest(ctx, r, out.status, took)
}

func (s *Server) logRequest(ctx context.Context, r *http.Request, status int, took time.Duration) {
	info := about(ctx)
	attrs := []slog.Attr{
		slog.String("method", r.Method), slog.String("route", info.route), slog.String("path", r.URL.Path),
		slog.Int("status", status), slog.Float64("seconds", took.Seconds()), slog.String("requestId", info.id),
	}

	if info.caller.name != "" {
		attrs = append(attrs, slog.String("caller", info.caller.name), slog.Any("roles", info.caller.roles))
	}

	if span := trace.SpanContextFromContext(ctx); span.HasTraceID() {
		attrs = append(attrs, slog.String("traceId", span.TraceID().String()))
	}

	s.log.LogAttrs(ctx, levelOf(r.Method, status, info.quiet), "request", attrs...)
}

// guarded answers, also where the code below panics.
func (s *Server) guarded(w *recorder, r *http.Request, info *request) {
	defer func() {
		what := recover()
		if what == nil {
			return
		}

		s.log.ErrorContext(r.Context(), "a request panicked", slog.String("requestId", info.id),
			slog.String("panic", fmt.Sprint(what)), slog.String("stack", string(debug.Stack())))

		if w.status == 0 {
			writeProblem(w, r, problem(CodeInternal, "request %s", info.id), s.clock.Now().UTC())
		}
	}()

	if s.document(w, r) {
		return
	}

	who, err := s.callerOf(r)
	if err != nil {
		s.fail(w, r, err)

		return
	}

	info.caller = who

	if info.tenancy, err = s.tenancyOf(r, who); err != nil {
		s.fail(w, r, err)

		return
	}

	if len(info.tenancy) > 0 {
		w.Header().Set(openapi.HeaderTenant, "one")
	}

	s.routes.ServeHTTP(w, r)
}

// fail answers with a problem, and logs what the caller is not told.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	what := asProblem(err)

	switch {
	case r.Context().Err() != nil && what.Code == CodeInternal:
		what = &Error{Code: CodeUnavailable, Detail: "the request took too long", Cause: err}
	case what.Code == CodeInternal || what.Code == CodeRule || what.Code == CodeUnavailable:
		s.log.ErrorContext(r.Context(), "a request failed", slog.String("requestId", about(r.Context()).id),
			slog.String("error", what.Error()))
	}

	trace.SpanFromContext(r.Context()).RecordError(err)
	writeProblem(w, r, what, s.clock.Now().UTC())
}

// levelOf has every write in the log at its usual level, and what was refused. Reads, reports
// that say nothing new, and leases that are renewed every few seconds are not.
func levelOf(method string, status int, quiet bool) slog.Level {
	reads := method == http.MethodGet || method == http.MethodHead

	switch {
	case status >= http.StatusInternalServerError:
		return slog.LevelError
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return slog.LevelInfo
	case reads, quiet, method == http.MethodPut && status == http.StatusNoContent:
		return slog.LevelDebug
	default:
		return slog.LevelInfo
	}
}

var requestIDForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// requestID takes the caller's, if it is one that may stand in a log.
func requestID(r *http.Request) string {
	if given := r.Header.Get(requestIDHeader); requestIDForm.MatchString(given) {
		return given
	}

	return uuid.NewString()
}
