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

// TestOneLifeIsOneTrace: what is done for an object, by whichever program and pass, and what is
// told of its life afterwards, are children of one root.
func TestOneLifeIsOneTrace(t *testing.T) {
	receiver := otlp.StartHTTP(t)
	environment(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+receiver.URL)

	program := start(t, nil)
	root := tracing.RootOf(lifeUID)

	if tracing.ID(root) != lifeTrace || !root.Equal(tracing.RootIn(lifeTrace)) || !root.Equal(tracing.RootOf(strings.ToUpper(lifeUID))) {
		t.Fatalf("root %v", root)
	}

	_, step := otel.Tracer("test").Start(trace.ContextWithRemoteSpanContext(context.Background(), root), "step")
	step.End()
	tracing.Mark(root, "guest started", time.Now())
	tracing.Tell(root, tracing.Part{Name: "job", Start: time.Unix(100, 0), End: time.Unix(200, 0), Failed: "JobTimeout"},
		tracing.Part{Name: "job queued", Start: time.Unix(100, 0), End: time.Unix(110, 0), Attributes: []attribute.KeyValue{attribute.String("x", "y")}})
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

	if got := tracing.Traceparent(root); got != "00-"+lifeTrace+"-"+id+"-01" {
		t.Errorf("traceparent %q", got)
	}
}

// TestLivesAreSampledWhole: a ratio keeps or drops a life, whoever makes its spans and when.
func TestLivesAreSampledWhole(t *testing.T) {
	receiver := otlp.StartHTTP(t)
	environment(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+receiver.URL, "OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=0.5")

	program := start(t, nil)

	const lives = 64
	for i := range lives {
		root := tracing.RootOf(string(rune('A' + i)))
		_, step := otel.Tracer("test").Start(trace.ContextWithRemoteSpanContext(context.Background(), root), "step")
		step.End()
		tracing.Tell(root, tracing.Part{Name: "job", Start: time.Now(), End: time.Now()})

		if root.IsSampled() == (tracing.Traceparent(root) == "") {
			t.Errorf("life %d", i)
		}
	}

	program.stop()

	count := map[string]int{}
	for _, span := range receiver.Spans() {
		count[span.TraceID]++
	}

	if len(count) == 0 || len(count) == lives {
		t.Errorf("%d of %d lives are kept", len(count), lives)
	}

	for id, n := range count {
		if n != 2 {
			t.Errorf("life %s has %d spans", id, n)
		}
	}
}

// TestWithoutExport: without an export there are ids for the log, and nothing else.
func TestWithoutExport(t *testing.T) {
	t.Parallel()

	root := tracing.RootOf(lifeUID)
	tracing.Tell(root, tracing.Part{Name: "job"})

	if tracing.ID(root) != lifeTrace || tracing.Traceparent(root) != "" || tracing.RootIn("none").IsValid() || tracing.ID(tracing.RootIn("")) != "" {
		t.Errorf("root %v", root)
	}
}
