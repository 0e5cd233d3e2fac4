// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/bounds"
)

const tracerName = "github.com/hyperfleet/hyperfleet/kit/metrics"

// maxOperations is the maximum number of distinct operations of one system.
const maxOperations = 64

// Values of the label code for calls without an HTTP status.
const (
	codeTimeout  = "timeout"
	codeCanceled = "canceled"
	codeError    = "error"
	codeOK       = "ok"
)

// CallMetrics counts calls to external systems and measures their duration.
type CallMetrics struct {
	duration   *prometheus.HistogramVec
	rateLimits *rateLimits
	clock      clock.PassiveClock
}

// NewCallMetrics registers hyperfleet_external_call_duration_seconds with the labels system
// ("proxmox"), operation ("clone") and code. The code is the class of the HTTP status ("2xx");
// timeout, canceled or error if no response arrived; or ok for calls that are not HTTP. The count
// of the histogram is the number of calls. NewCallMetrics also registers
// hyperfleet_external_rate_limit_calls{system,resource} and ..._remaining_calls, which report the
// rate limits in response headers. If clk is nil, the real clock is used.
func NewCallMetrics(registerer prometheus.Registerer, clk clock.PassiveClock) (*CallMetrics, error) {
	if clk == nil {
		clk = clock.RealClock{}
	}

	c := &CallMetrics{clock: clk, rateLimits: newRateLimits(clk), duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: Namespace,
		Subsystem: "external_call",
		Name:      "duration_seconds",
		Help:      "Duration of calls to external systems until the response header arrived, in seconds.",
		Buckets:   CallBuckets(),
	}, []string{"system", "operation", "code"})}

	for _, collector := range []prometheus.Collector{c.duration, c.rateLimits} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics of external calls: %w", err)
		}
	}

	return c, nil
}

// WrapTransport returns a transport that measures each request. If next is nil, it wraps
// bounds.SharedTransport. If the context of a request has a span, the request becomes a child
// span. operation returns the name of a request's operation, which should not be the path, because
// paths contain names of objects. If operation is nil, the HTTP method is used. After 64 distinct
// operations, further operations are reported as "other".
func (c *CallMetrics) WrapTransport(
	system string, operation func(*http.Request) string, next http.RoundTripper,
) http.RoundTripper {
	if next == nil {
		next = bounds.SharedTransport()
	}

	if operation == nil {
		operation = func(request *http.Request) string { return request.Method }
	}

	return &transport{
		calls: c, system: system, operation: operation, operations: NewLabelLimiter(maxOperations),
		resources: NewLabelLimiter(maxResources), next: next,
	}
}

// Observe records a call that is not HTTP. The operation must be one of a fixed set.
func (c *CallMetrics) Observe(system, operation string, elapsed time.Duration, err error) {
	c.duration.WithLabelValues(system, operation, resultCode(nil, err)).Observe(elapsed.Seconds())
}

type transport struct {
	calls      *CallMetrics
	system     string
	operation  func(*http.Request) string
	operations *LabelLimiter
	resources  *LabelLimiter
	next       http.RoundTripper
}

// RoundTrip sends the request and records its duration, result and rate limit.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	operation := t.operations.Limit(t.operation(request))
	start := t.calls.clock.Now()

	request, span := t.startSpan(request, operation)
	defer span.End()

	response, err := t.next.RoundTrip(request)
	code := resultCode(response, err)
	t.calls.duration.WithLabelValues(t.system, operation, code).Observe(t.calls.clock.Since(start).Seconds())

	if response != nil {
		t.calls.rateLimits.record(t, response.Header)
		span.SetAttributes(attribute.Int("http.response.status_code", response.StatusCode))
	}

	if err != nil || response.StatusCode >= http.StatusBadRequest {
		span.SetStatus(codes.Error, code)
	}

	return response, err
}

// startSpan starts a span if the context of the request has one. Other requests, such as those of
// pollers, get no span. startSpan updates the header Traceparent of a request that already has this
// header. It never adds the header, because not every server may learn the trace id.
func (t *transport) startSpan(request *http.Request, operation string) (*http.Request, trace.Span) {
	ctx := request.Context()

	parent := trace.SpanContextFromContext(ctx)
	if !parent.IsValid() {
		return request, noop.Span{}
	}

	ctx, span := otel.Tracer(tracerName).Start(ctx, t.system+" "+operation, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(
			attribute.String("hyperfleet.system", t.system), attribute.String("hyperfleet.operation", operation),
			attribute.String("http.request.method", request.Method), attribute.String("server.address", request.URL.Hostname()),
		))
	if span.SpanContext().Equal(parent) {
		// No exporter is configured. Send the request unchanged.
		return request, span
	}

	request = request.Clone(ctx)

	if request.Header.Get("Traceparent") != "" {
		propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(request.Header))
	}

	return request, span
}

// CloseIdleConnections closes the idle connections of the wrapped transport.
// http.Client.CloseIdleConnections calls it.
func (t *transport) CloseIdleConnections() {
	if closer, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		closer.CloseIdleConnections()
	}
}

// resultCode returns the value of the label code.
func resultCode(response *http.Response, err error) string {
	var timeout net.Error

	switch {
	case err == nil && response == nil:
		return codeOK
	case err == nil && response.StatusCode >= 100 && response.StatusCode < 600:
		return strconv.Itoa(response.StatusCode/100) + "xx"
	case errors.Is(err, context.Canceled):
		return codeCanceled
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return codeTimeout
	default:
		return codeError
	}
}
