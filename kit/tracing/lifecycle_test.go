// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package tracing_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/hyperfleet/hyperfleet/kit/tracing"
	"github.com/hyperfleet/hyperfleet/test/otlp"
)

const (
	lifeUID   = "9f8b7c6d-5e4f-4a3b-8c2d-1e0f9a8b7c6d"
	lifeTrace = "9f8b7c6d5e4f4a3b8c2d1e0f9a8b7c6d"
)

// TestLifecycleIsOneTrace checks that spans of all programs and reconciles for an object, and the spans that are
// emitted after its lifecycle, are children of one root.
func TestLifecycleIsOneTrace(t *testing.T) {
	receiver := otlp.StartHTTP(t)
	setEnvironment(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+receiver.URL)

	program := startSpan(t, nil)
	root := tracing.RootForUID(lifeUID)

	if tracing.TraceID(root) != lifeTrace || !root.Equal(tracing.RootForTraceID(lifeTrace)) || !root.Equal(tracing.RootForUID(strings.ToUpper(lifeUID))) {
		t.Fatalf("root %v", root)
	}

	_, step := otel.Tracer("test").Start(trace.ContextWithRemoteSpanContext(context.Background(), root), "step")
	step.End()
	tracing.EmitInstant(root, "guest started", time.Now())
	tracing.EmitTrace(root, tracing.Span{Name: "job", Start: time.Unix(100, 0), End: time.Unix(200, 0), Error: "JobTimeout"},
		tracing.Span{Name: "job queued", Start: time.Unix(100, 0), End: time.Unix(110, 0), Attributes: []attribute.KeyValue{attribute.String("x", "y")}})
	program.stop()

	parents := map[string]string{}

	for _, span := range receiver.Spans() {
		if span.TraceID != lifeTrace {
			t.Errorf("%s is of trace %s", span.Name, span.TraceID)
		}

		parents[span.Name] = span.Parent

		if span.Name == "job" && (span.ID != root.SpanID().String() || !span.Failed || !strings.Contains(span.Text, `"100000000000"`)) {
			t.Errorf("the root is %s", span.Text)
		}
	}

	id := root.SpanID().String()
	if len(parents) != 4 || parents["job"] != "" || parents["step"] != id || parents["guest started"] != id || parents["job queued"] != id {
		t.Errorf("spans with their parents: %v; the root is %s", parents, id)
	}

	if got := tracing.FormatTraceparent(root); got != "00-"+lifeTrace+"-"+id+"-01" {
		t.Errorf("traceparent %q", got)
	}
}

// TestLifecyclesAreSampledCompletely checks that a sampling ratio keeps or drops all spans of a lifecycle.
func TestLifecyclesAreSampledCompletely(t *testing.T) {
	receiver := otlp.StartHTTP(t)
	setEnvironment(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+receiver.URL, "OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=0.5")

	program := startSpan(t, nil)

	const lives = 64
	for i := range lives {
		root := tracing.RootForUID(string(rune('A' + i)))
		_, step := otel.Tracer("test").Start(trace.ContextWithRemoteSpanContext(context.Background(), root), "step")
		step.End()
		tracing.EmitTrace(root, tracing.Span{Name: "job", Start: time.Now(), End: time.Now()})

		if root.IsSampled() == (tracing.FormatTraceparent(root) == "") {
			t.Errorf("lifecycle %d", i)
		}
	}

	program.stop()

	count := map[string]int{}
	for _, span := range receiver.Spans() {
		count[span.TraceID]++
	}

	if len(count) == 0 || len(count) == lives {
		t.Errorf("%d of %d lifecycles are kept", len(count), lives)
	}

	for id, n := range count {
		if n != 2 {
			t.Errorf("lifecycle %s has %d spans", id, n)
		}
	}
}

// TestWithoutExport checks that without an exporter, trace ids exist for the log, but no span is sampled.
func TestWithoutExport(t *testing.T) {
	t.Parallel()

	root := tracing.RootForUID(lifeUID)
	tracing.EmitTrace(root, tracing.Span{Name: "job"})

	if tracing.TraceID(root) != lifeTrace || tracing.FormatTraceparent(root) != "" || tracing.RootForTraceID("none").IsValid() || tracing.TraceID(tracing.RootForTraceID("")) != "" {
		t.Errorf("root %v", root)
	}
}
