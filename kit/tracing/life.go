// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package tracing

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

const tracerName = "github.com/hyperfleet/hyperfleet/kit/tracing"

// RootForUID returns the root span of the trace of an object's whole lifecycle. Every process that
// knows the object's UID can compute it, because the trace id is the UID without its dashes. Spans
// of work for the object become children of the root before EmitTrace emits the root itself. The
// provider's sampler decides by the trace id whether the trace is sampled, so all spans of a trace
// are kept or dropped together.
func RootForUID(uid string) trace.SpanContext {
	return newRoot(traceIDForUID(uid))
}

// RootForTraceID returns the root span of the trace with an id of 32 hexadecimal digits. For any
// other text, it returns an invalid span context.
func RootForTraceID(traceID string) trace.SpanContext {
	id, err := trace.TraceIDFromHex(traceID)
	if err != nil {
		return trace.SpanContext{}
	}

	return newRoot(id)
}

func traceIDForUID(uid string) trace.TraceID {
	if id, err := trace.TraceIDFromHex(strings.ToLower(strings.ReplaceAll(uid, "-", ""))); err == nil {
		return id
	}

	sum := sha256.Sum256([]byte(uid))

	return trace.TraceID(sum[:16])
}

func newRoot(id trace.TraceID) trace.SpanContext {
	sum := sha256.Sum256(id[:])
	root := spanIDs{id, trace.SpanID(sum[:8])}

	// This span only gets the decision of the sampler. It is never ended and therefore never exported.
	//nolint:spancheck // as above
	_, probe := otel.Tracer(tracerName).Start(withIDs(context.Background(), root), "life", trace.WithNewRoot())

	//nolint:spancheck // as above
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: root.trace, SpanID: root.span, TraceFlags: probe.SpanContext().TraceFlags(), Remote: true,
	})
}

// Span describes a span of an object's lifecycle that has ended.
type Span struct {
	Name       string
	Start, End time.Time
	Attributes []attribute.KeyValue
	// Error is the cause of a failure. It is empty if nothing failed.
	Error string
}

// EmitTrace emits the root span of a lifecycle, with a child span for each part. It emits nothing
// if the trace is not sampled.
func EmitTrace(root trace.SpanContext, whole Span, parts ...Span) {
	if !root.IsSampled() {
		return
	}

	ctx := withIDs(context.Background(), spanIDs{root.TraceID(), root.SpanID()})
	ctx, end := startSpan(ctx, whole, trace.WithNewRoot())

	for _, part := range parts {
		_, endPart := startSpan(ctx, part)
		endPart()
	}

	end()
}

// EmitInstant emits a child span of the root whose start and end are the same time. It emits
// nothing if the trace is not sampled.
func EmitInstant(root trace.SpanContext, name string, instant time.Time, attributes ...attribute.KeyValue) {
	if root.IsSampled() {
		ctx := trace.ContextWithRemoteSpanContext(context.Background(), root)
		_, end := startSpan(ctx, Span{name, instant, instant, attributes, ""})
		end()
	}
}

// startSpan starts a span and returns a function that ends it at the end time of part.
func startSpan(ctx context.Context, part Span, options ...trace.SpanStartOption) (context.Context, func()) {
	options = append(options, trace.WithTimestamp(part.Start), trace.WithAttributes(part.Attributes...))
	ctx, span := otel.Tracer(tracerName).Start(ctx, part.Name, options...)

	if part.Error != "" {
		span.SetStatus(codes.Error, part.Error)
	}

	return ctx, func() { span.End(trace.WithTimestamp(part.End)) }
}

// FormatTraceparent returns the value of the W3C header traceparent, or of the environment variable
// TRACEPARENT, for a sampled span. It returns "" if the span is not sampled.
func FormatTraceparent(span trace.SpanContext) string {
	if !span.IsSampled() {
		return ""
	}

	return "00-" + span.TraceID().String() + "-" + span.SpanID().String() + "-" + span.TraceFlags().String()
}

// spanIDs are the trace id and the span id for the next root span.
type spanIDs struct {
	trace trace.TraceID
	span  trace.SpanID
}

type idsKey struct{}

func withIDs(ctx context.Context, root spanIDs) context.Context {
	return context.WithValue(ctx, idsKey{}, root)
}

// idGenerator generates random ids. For root spans, it uses the ids in the context if there are any.
type idGenerator struct{}

// NewIDs returns the ids for a root span.
func (idGenerator) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	if root, ok := ctx.Value(idsKey{}).(spanIDs); ok {
		return root.trace, root.span
	}

	var id trace.TraceID

	_, _ = rand.Read(id[:]) // it never fails

	return id, idGenerator{}.NewSpanID(ctx, id)
}

// NewSpanID returns a random id for a child span.
func (idGenerator) NewSpanID(context.Context, trace.TraceID) trace.SpanID {
	var id trace.SpanID

	_, _ = rand.Read(id[:]) // it never fails

	return id
}

// TraceID returns the trace id of a span as hexadecimal digits, or "" if it has none.
func TraceID(span trace.SpanContext) string {
	if !span.HasTraceID() {
		return ""
	}

	id := span.TraceID()

	return hex.EncodeToString(id[:])
}
