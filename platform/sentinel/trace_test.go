// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sentinel_test

import (
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/hyperfleet/hyperfleet/api/events"
)

// The tests of this file set the provider of the whole process, so they are not parallel.

func record(t *testing.T, sampler sdktrace.Sampler) *tracetest.InMemoryExporter {
	t.Helper()

	spans := tracetest.NewInMemoryExporter()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans), sdktrace.WithSampler(sampler)))
	t.Cleanup(func() { otel.SetTracerProvider(noop.NewTracerProvider()) })

	return spans
}

// sendings are the spans of Sentinel; the API of these tests is in the same process.
func sendings(spans *tracetest.InMemoryExporter) tracetest.SpanStubs {
	return slices.DeleteFunc(spans.GetSpans(), func(one tracetest.SpanStub) bool { return one.Name != "send event" })
}

// sendTwo has Sentinel send two events, and gives their trace contexts.
func sendTwo(t *testing.T) (*replica, []string) {
	t.Helper()

	a, to := serve(t), newAdapter(t)
	r := run(t, conf(a.url), to).ready(t)

	var parents []string

	for _, name := range []string{"one", "two"} {
		made := a.create("/clusters", name, nil)
		to.await(made.Id, 1)

		parent, _ := to.of(made.Id)[0].Extensions()[events.ExtensionTraceParent].(string)
		parents = append(parents, parent)
	}

	r.end()

	return r, parents
}

func TestTheTraceOfEvents(t *testing.T) {
	for name, tc := range map[string]struct {
		sampler  sdktrace.Sampler
		flags    string
		exported int
	}{
		"off":         {nil, "-01", 0},
		"sampled":     {sdktrace.AlwaysSample(), "-01", 2},
		"not sampled": {sdktrace.NeverSample(), "-00", 0},
	} {
		t.Run(name, func(t *testing.T) {
			spans := tracetest.NewInMemoryExporter()
			if tc.sampler != nil {
				spans = record(t, tc.sampler)
			}

			r, parents := sendTwo(t)

			for i, parent := range parents {
				if len(parent) != 55 || !strings.HasPrefix(parent, "00-") || !strings.HasSuffix(parent, tc.flags) {
					t.Fatalf("trace context %q", parent)
				}

				if parent[3:35] == parents[1-i][3:35] {
					t.Errorf("two events in one trace: %q", parents)
				}

				if !strings.Contains(r.log.String(), "traceId="+parent[3:35]) {
					t.Errorf("no line of the log has the trace %s", parent[3:35])
				}
			}

			got := sendings(spans)
			if len(got) != tc.exported {
				t.Fatalf("%d spans", len(got))
			}

			for i := range got {
				in := got[i].SpanContext
				if got[i].SpanKind != trace.SpanKindProducer || got[i].Status.Code != codes.Unset ||
					parents[i] != "00-"+in.TraceID().String()+"-"+in.SpanID().String()+"-01" {
					t.Errorf("span %+v of the event with %s", got[i], parents[i])
				}
			}
		})
	}
}

// TestASpanOfAnEventThatIsNotTaken says that it failed, and nothing of what the broker
// said: there may be its address in that.
func TestASpanOfAnEventThatIsNotTaken(t *testing.T) {
	spans := record(t, sdktrace.AlwaysSample())
	a, to := serve(t), newAdapter(t)
	made := a.create("/clusters", "refused", nil)
	to.set(made.Id, true)

	r := run(t, conf(a.url), to).ready(t)
	eventually(t, "the event is refused", func() bool { return strings.Contains(r.log.String(), errRefused.Error()) })
	to.set(made.Id, false)
	to.await(made.Id, 1)
	r.end()

	got := sendings(spans)
	if len(got) < 2 || got[0].Status.Code != codes.Error || got[0].Status.Description != "publish" || len(got[0].Events) != 0 ||
		got[len(got)-1].Status.Code != codes.Unset {
		t.Errorf("spans %+v", got)
	}
}
