// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"cmp"
	"context"
	"log/slog"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/platform/lease"
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

// Repeat sweeps at each Config.Interval until ctx ends, and calls handle with each result. Of several replicas with the
// same Config.Lease, only the one that has this lease of the fleet API sweeps. A replica that loses the lease ends its run.
func Repeat(ctx context.Context, options Options, handle func(Report, error)) {
	options.Clock = cmp.Or[clock.WithTicker](options.Clock, clock.RealClock{})

	l := lease.New(lease.Options{API: options.API, Name: options.Config.Lease, Log: options.Log, Clock: options.Clock})

	// The lease is held until the last run has ended.
	leaseCtx, stop := context.WithCancel(context.WithoutCancel(ctx))

	var renewing sync.WaitGroup
	defer renewing.Wait()
	defer stop()

	renewing.Go(func() { l.Run(leaseCtx) })

	for ctx.Err() == nil {
		leading, cancel := l.Lead(ctx)

		for leading.Err() == nil {
			report, err := Run(leading, options)
			if leading.Err() == nil {
				handle(report, err)
			}

			_ = retry.Sleep(leading, options.Clock, options.Config.Interval)
		}

		cancel()
	}
}
