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

// RootOf is the root span of the trace of an object's whole life, which whoever knows the
// object's uid knows: the trace's id is the uid without its dashes. What is done for the object
// is made a child of the root before that is told (Tell). Whether the trace is sampled is what
// the provider's sampler says of its id, so that it is kept or dropped whole.
func RootOf(uid string) trace.SpanContext {
	return rootIn(traceIDOf(uid))
}

// RootIn is RootOf of a trace by its id, as 32 hexadecimal digits; invalid for other texts.
func RootIn(traceID string) trace.SpanContext {
	id, err := trace.TraceIDFromHex(traceID)
	if err != nil {
		return trace.SpanContext{}
	}

	return rootIn(id)
}

func traceIDOf(uid string) trace.TraceID {
	if id, err := trace.TraceIDFromHex(strings.ToLower(strings.ReplaceAll(uid, "-", ""))); err == nil {
		return id
	}

	sum := sha256.Sum256([]byte(uid))

	return trace.TraceID(sum[:16])
}

func rootIn(id trace.TraceID) trace.SpanContext {
	sum := sha256.Sum256(id[:])
	given := ids{id, trace.SpanID(sum[:8])}

	// A span that never ends is never exported: it is there to ask the sampler.
	//nolint:spancheck // as above
	_, asked := otel.Tracer(tracerName).Start(withIDs(context.Background(), given), "life", trace.WithNewRoot())

	//nolint:spancheck // as above
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: given.trace, SpanID: given.span, TraceFlags: asked.SpanContext().TraceFlags(), Remote: true,
	})
}

// Part is a part of a life, told when it is over.
type Part struct {
	Name       string
	Start, End time.Time
	Attributes []attribute.KeyValue
	// Failed says why it went wrong; empty where it did not.
	Failed string
}

// Tell makes the root span of a life, and those of its parts.
func Tell(root trace.SpanContext, whole Part, parts ...Part) {
	if !root.IsSampled() {
		return
	}

	ctx := withIDs(context.Background(), ids{root.TraceID(), root.SpanID()})
	ctx, end := start(ctx, whole, trace.WithNewRoot())

	for _, part := range parts {
		_, endPart := start(ctx, part)
		endPart()
	}

	end()
}

// Mark makes a span without length of something that was heard of a life.
func Mark(root trace.SpanContext, name string, at time.Time, attributes ...attribute.KeyValue) {
	if root.IsSampled() {
		_, end := start(trace.ContextWithRemoteSpanContext(context.Background(), root), Part{name, at, at, attributes, ""})
		end()
	}
}

func start(ctx context.Context, part Part, options ...trace.SpanStartOption) (context.Context, func()) {
	options = append(options, trace.WithTimestamp(part.Start), trace.WithAttributes(part.Attributes...))
	ctx, span := otel.Tracer(tracerName).Start(ctx, part.Name, options...)

	if part.Failed != "" {
		span.SetStatus(codes.Error, part.Failed)
	}

	return ctx, func() { span.End(trace.WithTimestamp(part.End)) }
}

// Traceparent is the W3C header, or the variable TRACEPARENT, that leads to a sampled span; empty
// for others.
func Traceparent(of trace.SpanContext) string {
	if !of.IsSampled() {
		return ""
	}

	return "00-" + of.TraceID().String() + "-" + of.SpanID().String() + "-" + of.TraceFlags().String()
}

// ids are those that the next root span is to have.
type ids struct {
	trace trace.TraceID
	span  trace.SpanID
}

type idsKey struct{}

func withIDs(ctx context.Context, given ids) context.Context {
	return context.WithValue(ctx, idsKey{}, given)
}

// generator makes random ids, or takes those of the context.
type generator struct{}

// NewIDs are those of a root span.
func (generator) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	if given, ok := ctx.Value(idsKey{}).(ids); ok {
		return given.trace, given.span
	}

	var id trace.TraceID

	_, _ = rand.Read(id[:]) // it never fails

	return id, generator{}.NewSpanID(ctx, id)
}

// NewSpanID is that of another span.
func (generator) NewSpanID(context.Context, trace.TraceID) trace.SpanID {
	var id trace.SpanID

	_, _ = rand.Read(id[:]) // it never fails

	return id
}

// ID is a trace's id in words, empty if there is none.
func ID(of trace.SpanContext) string {
	if !of.HasTraceID() {
		return ""
	}

	id := of.TraceID()

	return hex.EncodeToString(id[:])
}
