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

	"github.com/hyperfleet/hyperfleet/kit/httpbound"
)

const tracerName = "github.com/hyperfleet/hyperfleet/kit/metrics"

// maxOperations bounds the operations of one system.
const maxOperations = 64

// Results of a call that brought no HTTP status.
const (
	codeTimeout  = "timeout"
	codeCanceled = "canceled"
	codeError    = "error"
	codeOK       = "ok"
)

// Calls counts and times calls to other systems.
type Calls struct {
	duration *prometheus.HistogramVec
	limits   *rateLimits
	clock    clock.PassiveClock
}

// NewCalls registers hyperfleet_external_call_duration_seconds with the labels system
// ("proxmox"), operation ("clone"), and code: the class of the HTTP status ("2xx"),
// or timeout, canceled or error when none came; ok for calls that are not HTTP. Its
// count is the number of calls. hyperfleet_external_rate_limit_calls{system,resource} and
// ..._remaining_calls are what the answers' headers say of rate limits. A nil clock is the
// real one.
func NewCalls(registerer prometheus.Registerer, timer clock.PassiveClock) (*Calls, error) {
	if timer == nil {
		timer = clock.RealClock{}
	}

	c := &Calls{clock: timer, limits: newRateLimits(timer), duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: Namespace,
		Subsystem: "external_call",
		Name:      "duration_seconds",
		Help:      "How long calls to other systems took until the head of the answer came, in seconds.",
		Buckets:   CallBuckets(),
	}, []string{"system", "operation", "code"})}

	for _, collector := range []prometheus.Collector{c.duration, c.limits} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics of external calls: %w", err)
		}
	}

	return c, nil
}

// Transport wraps an HTTP transport, nil meaning that of httpbound.Shared; a call that belongs
// to a trace is a span of it. The operation
// of a request should be a name of the call and not its path, which holds names of
// objects; nil means the request's method. At most 64 operations of a system are told
// apart.
func (c *Calls) Transport(system string, operation func(*http.Request) string, next http.RoundTripper) http.RoundTripper {
	if next == nil {
		next = httpbound.Shared()
	}

	if operation == nil {
		operation = func(request *http.Request) string { return request.Method }
	}

	return &transport{
		calls: c, system: system, operation: operation, bounded: NewBounded(maxOperations),
		resources: NewBounded(maxResources), next: next,
	}
}

// Observe notes a call that is not HTTP. The operation has to be out of a fixed set.
func (c *Calls) Observe(system, operation string, took time.Duration, err error) {
	c.duration.WithLabelValues(system, operation, codeOf(nil, err)).Observe(took.Seconds())
}

type transport struct {
	calls     *Calls
	system    string
	operation func(*http.Request) string
	bounded   *Bounded
	resources *Bounded
	next      http.RoundTripper
}

// RoundTrip sends the request and notes how it went.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	operation := t.bounded.Value(t.operation(request))
	start := t.calls.clock.Now()

	request, span := t.begin(request, operation)
	defer span.End()

	response, err := t.next.RoundTrip(request)
	code := codeOf(response, err)
	t.calls.duration.WithLabelValues(t.system, operation, code).Observe(t.calls.clock.Since(start).Seconds())

	if response != nil {
		t.calls.limits.note(t, response.Header)
		span.SetAttributes(attribute.Int("http.response.status_code", response.StatusCode))
	}

	if err != nil || response.StatusCode >= http.StatusBadRequest {
		span.SetStatus(codes.Error, code)
	}

	return response, err
}

// begin makes the span of a call that belongs to a trace; calls that don't, such as those
// that pollers make all day long, begin none. The span's context goes to those alone that
// are sent one anyway: it is not everybody's to know.
func (t *transport) begin(request *http.Request, operation string) (*http.Request, trace.Span) {
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
		// Nobody exports: the request goes on as it is.
		return request, span
	}

	request = request.Clone(ctx)

	if request.Header.Get("Traceparent") != "" {
		propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(request.Header))
	}

	return request, span
}

// CloseIdleConnections lets http.Client.CloseIdleConnections reach the transport below.
func (t *transport) CloseIdleConnections() {
	if closer, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		closer.CloseIdleConnections()
	}
}

// codeOf is the class of an answer.
func codeOf(response *http.Response, err error) string {
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
