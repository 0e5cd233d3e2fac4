// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package tracing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"k8s.io/utils/clock"
)

// FlushTimeout is how long a program waits at its end until its last spans are exported.
const FlushTimeout = 5 * time.Second

// shutdownErrorTimeout is how long a canceled export may take to return its error.
const shutdownErrorTimeout = time.Second

// Options of Start.
type Options struct {
	// Service is the program's name in traces, such as hyperfleet-api. OTEL_SERVICE_NAME and
	// OTEL_RESOURCE_ATTRIBUTES override it. Required.
	Service string
	// Version is the version of the program.
	Version string
	// Log receives errors of the export. Default: slog.Default.
	Log *slog.Logger
	// Output receives the spans, one line of JSON each, if no endpoint is configured. A separate
	// goroutine writes to it. Default: standard error, because programs print their results on
	// standard output.
	Output io.Writer
	// Clock returns the current time. Default: the real clock.
	Clock clock.PassiveClock
}

// Start sets up OpenTelemetry's global provider to export spans if tracing is enabled. The returned
// stop function ends the export and waits up to FlushTimeout for the last spans. Call stop after
// the last span has ended. If a variable is invalid, Start returns an error that names the variable
// but not its value.
func Start(ctx context.Context, options Options) (stop func(), err error) {
	isOn, err := isEnabled(os.Getenv)
	if err != nil || !isOn {
		return func() {}, err
	}

	exportSettings, err := parseSettings(os.Getenv)
	if err != nil {
		return nil, fmt.Errorf("set up tracing: %w", err)
	}

	options = options.withDefaults()
	report := newReporter(options.Log, options.Clock, exportSettings.secrets)

	// Set the logger before creating the exporters, because they log the values of variables that they
	// cannot parse.
	otel.SetLogger(logr.New(logSink{report}))
	otel.SetErrorHandler(report)

	res, err := newResource(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("set up tracing: %w", report.redactError(err))
	}

	spanExporter, err := newExporter(ctx, exportSettings, options.Output)
	if err != nil {
		return nil, fmt.Errorf("set up tracing: create exporter: %w", report.redactError(err))
	}

	exportCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(cancelingExporter{spanExporter, exportCtx.Done()}), sdktrace.WithResource(res),
		sdktrace.WithIDGenerator(idGenerator{}),
	)

	otel.SetTracerProvider(provider)
	otel.SetTextMapPropagator(propagation.TraceContext{})
	options.Log.InfoContext(ctx, "spans are exported", "to", exportSettings.target(), "protocol", exportSettings.protocol)

	return func() { shutdown(exportCtx, cancel, provider, report) }, nil
}

func (o Options) withDefaults() Options {
	if o.Log == nil {
		o.Log = slog.Default()
	}

	if o.Output == nil {
		o.Output = os.Stderr
	}

	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}

	return o
}

// newResource returns the attributes of the program, which each export contains. The environment
// overrides the program's own attributes.
func newResource(ctx context.Context, options Options) (*resource.Resource, error) {
	attributes := []attribute.KeyValue{attribute.String("service.name", options.Service)}
	if options.Version != "" {
		attributes = append(attributes, attribute.String("service.version", options.Version))
	}

	merged, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(), resource.WithAttributes(attributes...),
		resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}

	return merged, nil
}

// newExporter returns the exporter for the settings. It does not connect yet. The OTLP exporters read the endpoint and all
// other settings from their environment variables themselves.
func newExporter(ctx context.Context, s settings, output io.Writer) (sdktrace.SpanExporter, error) {
	switch {
	case s.endpoint == "":
		return stdouttrace.New(stdouttrace.WithWriter(output))
	case s.protocol == protocolGRPC:
		return otlptracegrpc.New(ctx)
	default:
		return otlptracehttp.New(ctx)
	}
}

// cancelingExporter cancels the running export when stop is closed. Otherwise the span processor
// would continue the export after its own shutdown.
type cancelingExporter struct {
	sdktrace.SpanExporter

	stop <-chan struct{}
}

var errShutdown = errors.New("spans were not exported before the program stopped")

// ExportSpans exports the spans until stop is closed.
func (b cancelingExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	done := make(chan struct{})
	defer close(done)

	go func() {
		select {
		case <-b.stop:
			cancel(errShutdown)
		case <-done:
		}
	}()

	return b.SpanExporter.ExportSpans(ctx, spans)
}

// shutdown waits up to FlushTimeout until the last spans are exported, and then calls cancel, which
// ends ctx.
func shutdown(ctx context.Context, cancel func(), provider *sdktrace.TracerProvider, report *reporter) {
	// Spans that start from now on are not exported.
	otel.SetTracerProvider(noop.NewTracerProvider())

	defer cancel()
	defer time.AfterFunc(FlushTimeout, cancel).Stop()

	shutdownCtx, cancelShutdown := context.WithTimeout(context.WithoutCancel(ctx), FlushTimeout+shutdownErrorTimeout)
	defer cancelShutdown()

	report.reportShutdown(provider.Shutdown(shutdownCtx))
}
