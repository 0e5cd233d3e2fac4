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

// FlushTimeout is for how long the end of a program waits for its last spans to be taken.
const FlushTimeout = 5 * time.Second

// sayTimeout is how long an export that was ended may take to say what held it up.
const sayTimeout = time.Second

// Options of Start.
type Options struct {
	// Service is the program's name in traces, such as hyperfleet-api; OTEL_SERVICE_NAME
	// and OTEL_RESOURCE_ATTRIBUTES go over it. Required.
	Service string
	// Version of the program.
	Version string
	// Log is told of trouble with the export. Default: slog.Default.
	Log *slog.Logger
	// Output takes spans, a line of JSON each, where no endpoint is named. It is written to
	// from a goroutine of its own. Default: standard error, as programs print their results
	// on standard output.
	Output io.Writer
	// Clock. Default: the real one.
	Clock clock.PassiveClock
}

// Start has OpenTelemetry's global provider export spans, if the environment says so, and
// gives what ends the export: it waits for the last spans, for FlushTimeout at most, and
// is to be called when no more spans are made. Its error is about variables that can't be
// meant, and names them without what they hold.
func Start(ctx context.Context, options Options) (stop func(), err error) {
	on, err := enabled(os.Getenv)
	if err != nil || !on {
		return func() {}, err
	}

	found, err := readSettings(os.Getenv)
	if err != nil {
		return nil, fmt.Errorf("set up tracing: %w", err)
	}

	options = options.complete()
	report := newReporter(options.Log, options.Clock, found.secrets)

	// Before the exporters are made: they tell of variables that they do not understand,
	// with what these hold.
	otel.SetLogger(logr.New(sink{report}))
	otel.SetErrorHandler(report)

	about, err := about(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("set up tracing: %w", report.clean(err))
	}

	made, err := exporter(ctx, found, options.Output)
	if err != nil {
		return nil, fmt.Errorf("set up tracing: make exporter: %w", report.clean(err))
	}

	over, end := context.WithCancel(context.WithoutCancel(ctx))
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(bounded{made, over.Done()}), sdktrace.WithResource(about), sdktrace.WithIDGenerator(generator{}),
	)

	otel.SetTracerProvider(provider)
	otel.SetTextMapPropagator(propagation.TraceContext{})
	options.Log.InfoContext(ctx, "spans are exported", "to", found.to(), "protocol", found.protocol)

	return func() { shutDown(over, end, provider, report) }, nil
}

func (o Options) complete() Options {
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

// about is what is known of the program: it goes with each export. The environment goes
// over what the program says of itself.
func about(ctx context.Context, options Options) (*resource.Resource, error) {
	attributes := []attribute.KeyValue{attribute.String("service.name", options.Service)}
	if options.Version != "" {
		attributes = append(attributes, attribute.String("service.version", options.Version))
	}

	made, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(), resource.WithAttributes(attributes...),
		resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}

	return made, nil
}

// exporter makes the one that the settings ask for. None of them connects yet.
func exporter(ctx context.Context, found settings, output io.Writer) (sdktrace.SpanExporter, error) {
	switch {
	case found.endpoint == "":
		return stdouttrace.New(stdouttrace.WithWriter(output))
	case found.protocol == protocolGRPC:
		return otlptracegrpc.New(ctx)
	default:
		return otlptracehttp.New(ctx)
	}
}

// bounded ends the export that is under way when the time for it is over: the processor
// would else go on with it after its own end.
type bounded struct {
	sdktrace.SpanExporter

	over <-chan struct{}
}

var errOver = errors.New("not taken before the program's end")

// ExportSpans exports until the end.
func (b bounded) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	done := make(chan struct{})
	defer close(done)

	go func() {
		select {
		case <-b.over:
			cancel(errOver)
		case <-done:
		}
	}()

	return b.SpanExporter.ExportSpans(ctx, spans)
}

// shutDown waits for the last spans.
func shutDown(ctx context.Context, end func(), provider *sdktrace.TracerProvider, report *reporter) {
	// What somebody still does is nobody's to export.
	otel.SetTracerProvider(noop.NewTracerProvider())

	defer end()
	defer time.AfterFunc(FlushTimeout, end).Stop()

	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), FlushTimeout+sayTimeout)
	defer cancel()

	report.last(provider.Shutdown(bound))
}
