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
	// maxBodySize is the maximum size of a request in bytes, maxReportSize that of an adapter's
	// report. The limit of reports is lower because one report of each adapter is stored for each
	// resource.
	maxBodySize   = 1 << 20
	maxReportSize = 256 << 10
	// requestTimeout is the timeout of requests that do not wait for changes.
	requestTimeout = 30 * time.Second
	// waitTimeout is the timeout of requests that wait for changes: the 55 s of the OpenAPI
	// document, and some time for the rest of the request.
	waitTimeout = 65 * time.Second

	requestIDHeader = "X-Request-Id"
	tracerName      = "github.com/hyperfleet/hyperfleet/platform/server"
)

type requestKey struct{}

// request has data about a request that is not in the http.Request.
type request struct {
	id    string
	route string
	// path is the route with its kinds but without IDs, for metrics.
	path    string
	scope   scope
	caller  caller
	tenancy map[string]string
	// body is the JSON of a request that has one.
	body []byte
	// ifMatch has the ETags of the header If-Match. It is nil if there is no such header.
	ifMatch []string
	// isQuiet is true for a write that only repeats the previous state, such as the renewal of a
	// lease.
	isQuiet bool
}

func requestFromContext(ctx context.Context) *request {
	if found, ok := ctx.Value(requestKey{}).(*request); ok {
		return found
	}

	return &request{}
}

func setRoute(ctx context.Context, name string) { requestFromContext(ctx).route = name }

// recorder records the status of a response.
type recorder struct {
	http.ResponseWriter

	status int
}

// WriteHeader records the status.
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}

	r.ResponseWriter.WriteHeader(status)
}

// Write records status 200 if WriteHeader was not called.
func (r *recorder) Write(data []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}

	return r.ResponseWriter.Write(data)
}

// Unwrap is called by http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// ServeHTTP handles a request to the API.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := s.clock.Now()
	info := &request{id: requestID(r)}

	ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	ctx, span := otel.Tracer(tracerName).Start(ctx, "request", trace.WithSpanKind(trace.SpanKindServer))

	defer span.End()

	limit := requestTimeout
	if r.URL.Path == BasePath+"/changes" {
		limit = waitTimeout
	}

	ctx, cancel := context.WithTimeout(context.WithValue(ctx, requestKey{}, info), limit)
	defer cancel()

	w.Header().Set(requestIDHeader, info.id)

	out := &recorder{ResponseWriter: w}
	r = r.WithContext(ctx)
	r.Body = http.MaxBytesReader(out, r.Body, maxBodySize)

	s.metrics.inFlight.Inc()
	defer s.metrics.inFlight.Dec()

	s.serveWithRecovery(out, r, info)

	span.SetAttributes(attribute.Int("http.response.status_code", out.status))

	if out.status >= http.StatusInternalServerError {
		span.SetStatus(codes.Error, http.StatusText(out.status))
	}

	took := s.clock.Since(start)
	s.metrics.observeRequest(info.path, r.Method, out.status, took)
	s.logRequest(ctx, r, out.status, took)
}

func (s *Server) logRequest(ctx context.Context, r *http.Request, status int, took time.Duration) {
	info := requestFromContext(ctx)
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

	s.log.LogAttrs(ctx, logLevelFor(r.Method, status, info.isQuiet), "request", attrs...)
}

// serveWithRecovery handles a request, and responds with a problem if the handler panics.
func (s *Server) serveWithRecovery(w *recorder, r *http.Request, info *request) {
	defer s.recoverPanic(w, r, info)

	if s.serveDocument(w, r) {
		return
	}

	if err := s.identifyCaller(r, info); err != nil {
		s.writeError(w, r, err)

		return
	}

	if len(info.tenancy) > 0 {
		w.Header().Set(openapi.HeaderTenant, "one")
	}

	if _, pattern := s.routes.Handler(r); pattern == "" {
		s.writeError(w, r, newProblem(CodeNoRoute, "the API has no route %s", r.URL.Path))

		return
	}

	s.routes.ServeHTTP(w, r)
}

// recoverPanic logs a panic of the handler, and responds with a problem. It must be deferred.
func (s *Server) recoverPanic(w *recorder, r *http.Request, info *request) {
	panicValue := recover()
	if panicValue == nil {
		return
	}

	s.log.ErrorContext(r.Context(), "the handler of a request panicked", slog.String("requestId", info.id),
		slog.String("panic", fmt.Sprint(panicValue)), slog.String("stack", string(debug.Stack())))

	if w.status == 0 {
		writeProblem(w, r, newProblem(CodeInternal, "request %s", info.id), s.clock.Now().UTC())
	}
}

// identifyCaller finds out who sent a request, and for which tenant.
func (s *Server) identifyCaller(r *http.Request, info *request) (err error) {
	if info.caller, err = s.authenticate(r); err != nil {
		return err
	}

	info.tenancy, err = s.resolveTenancy(r, info.caller)

	return err
}

// writeError responds with a problem document (RFC 9457). It logs the details of the server's own errors,
// because the response must not contain them.
func (s *Server) writeError(w http.ResponseWriter, r *http.Request, err error) {
	apiErr := toProblem(err)

	switch {
	case r.Context().Err() != nil && apiErr.Code == CodeInternal:
		apiErr = &Error{Code: CodeUnavailable, Detail: "the request took too long", Cause: err}
	case apiErr.Code == CodeInternal || apiErr.Code == CodeRule || apiErr.Code == CodeUnavailable:
		s.log.ErrorContext(r.Context(), "a request failed", slog.String("requestId", requestFromContext(r.Context()).id),
			slog.String("error", apiErr.Error()))
	}

	trace.SpanFromContext(r.Context()).RecordError(err)
	writeProblem(w, r, apiErr, s.clock.Now().UTC())
}

// logLevelFor returns the level of the log line for a request. Writes and rejected requests are
// logged at the default level. Reads, reports that changed nothing, and renewals of leases are
// logged at debug level, because they are frequent.
func logLevelFor(method string, status int, quiet bool) slog.Level {
	isRead := method == http.MethodGet || method == http.MethodHead

	switch {
	case status >= http.StatusInternalServerError:
		return slog.LevelError
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return slog.LevelInfo
	case isRead, quiet, method == http.MethodPut && status == http.StatusNoContent:
		return slog.LevelDebug
	default:
		return slog.LevelInfo
	}
}

var requestIDPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// requestID returns the request ID that the caller sent if it is safe to log. Otherwise it returns
// a new one.
func requestID(r *http.Request) string {
	if id := r.Header.Get(requestIDHeader); requestIDPattern.MatchString(id) {
		return id
	}

	return uuid.NewString()
}
