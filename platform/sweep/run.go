// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"cmp"
	"context"
	"log/slog"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/utils/clock"
)

const tracerName = "github.com/hyperfleet/hyperfleet/platform/sweep"

// Run does one sweep. It returns an error if the sweep could not start. If only parts of it failed,
// the errors are in the report.
func Run(ctx context.Context, options Options) (Report, error) {
	options.Clock = cmp.Or[clock.WithTicker](options.Clock, clock.RealClock{})
	options.Log = cmp.Or(options.Log, slog.Default())

	s, err := newSweeper(options)
	if err != nil {
		return Report{}, err
	}

	ctx, span := otel.Tracer(tracerName).Start(ctx, "sweep run")
	defer span.End()

	err = s.run(ctx)
	report := s.report
	report.DurationSeconds = s.Clock.Since(report.Started).Seconds()
	report.sort()
	setSpanAttributes(span, options, &report, err)

	if err == nil {
		level := slog.LevelInfo
		if report.IsIncomplete() {
			level = slog.LevelWarn
		}

		options.Log.Log(ctx, level, "sweep finished", "dryRun", report.DryRun, "objects", report.Objects, "gone", report.Gone,
			"outcomes", report.Outcomes, "stopped", report.Stopped, "errors", report.Errors)
	}

	return report, err
}

func setSpanAttributes(span trace.Span, options Options, report *Report, err error) {
	span.SetAttributes(
		attribute.Bool("hyperfleet.sweep.delete", options.Config.Delete), attribute.Int("hyperfleet.sweep.objects", report.Objects),
		attribute.Int("hyperfleet.sweep.gone", report.Gone),
	)

	switch {
	case err != nil:
		span.SetStatus(codes.Error, "error")
	case report.Stopped != "":
		span.SetStatus(codes.Error, "stopped")
	case report.IsIncomplete():
		span.SetStatus(codes.Error, "incomplete")
	}
}
