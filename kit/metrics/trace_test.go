// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

// TestSpansOfCalls sets the provider of the whole process, so it is not parallel.
func TestSpansOfCalls(t *testing.T) {
	calls, err := metrics.NewCallMetrics(prometheus.NewRegistry(), nil)
	if err != nil {
		t.Fatal(err)
	}

	for name, tc := range map[string]struct {
		inTrace, hasTraceparent bool
		status                  int
		err                     error
		want                    codes.Code
		words                   string
	}{
		"in a trace":                      {inTrace: true, status: http.StatusOK, want: codes.Unset},
		"with a propagated trace context": {inTrace: true, hasTraceparent: true, status: http.StatusOK, want: codes.Unset},
		"refused":                         {inTrace: true, status: http.StatusConflict, want: codes.Error, words: "4xx"},
		"without a response":              {inTrace: true, err: errors.New("the secret is x"), want: codes.Error, words: "error"},
		"not in a trace":                  {status: http.StatusOK},
		"traced, without a parent span":   {hasTraceparent: true, status: http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			spans := tracetest.NewInMemoryExporter()
			provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))

			otel.SetTracerProvider(provider)
			defer otel.SetTracerProvider(noop.NewTracerProvider())

			const before = "00-00000000000000000000000000000001-0000000000000002-01"

			sent := ""
			client := calls.WrapTransport("proxmox", func(*http.Request) string { return "clone" }, retry.RoundTripperFunc(
				func(r *http.Request) (*http.Response, error) {
					sent = r.Header.Get("Traceparent")
					if tc.err != nil {
						return nil, tc.err
					}

					return &http.Response{StatusCode: tc.status, Body: http.NoBody}, nil
				}))

			ctx, outer := context.Background(), trace.Span(noop.Span{})
			if tc.inTrace {
				ctx, outer = provider.Tracer("test").Start(ctx, "outer")
			}

			request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://pve.example:8006/secret?token=x", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}

			if tc.hasTraceparent {
				request.Header.Set("Traceparent", before)
			}

			response, err := client.RoundTrip(request)
			if !errors.Is(err, tc.err) {
				t.Fatal(err)
			}

			if response != nil {
				_ = response.Body.Close()
			}

			got := spans.GetSpans()
			if !tc.inTrace {
				if len(got) != 0 || tc.hasTraceparent != (sent == before) {
					t.Errorf("spans %+v, sent %q", got, sent)
				}

				return
			}

			if len(got) != 1 || got[0].Name != "proxmox clone" || got[0].SpanKind != trace.SpanKindClient ||
				got[0].Parent.SpanID() != outer.SpanContext().SpanID() || got[0].Status.Code != tc.want ||
				got[0].Status.Description != tc.words || len(got[0].Events) != 0 {
				t.Fatalf("spans %+v", got)
			}

			want := ""
			if tc.hasTraceparent {
				want = "00-" + got[0].SpanContext.TraceID().String() + "-" + got[0].SpanContext.SpanID().String() + "-01"
			}

			if sent != want {
				t.Errorf("sent %q, want %q", sent, want)
			}

			if kept := request.Header.Get("Traceparent"); tc.hasTraceparent != (kept == before) {
				t.Errorf("the caller's request was changed: %q", kept)
			}
		})
	}
}
