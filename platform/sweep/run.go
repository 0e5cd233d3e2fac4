// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
)

const tracerName = "github.com/hyperfleet/hyperfleet/platform/sweep"

// How leaders are elected: the times that controllers commonly use.
const (
	leaseName     = "hyperfleet-sweep"
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// Run runs once, or with an interval until ctx ends. It gives the last run's report. With
// an interval a run that fails is logged, counted, and followed by the next; without one
// its error is returned.
func Run(ctx context.Context, options Options) (Report, error) {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}

	if options.Log == nil {
		options.Log = slog.Default()
	}

	if options.Kube == nil || options.API == nil || options.Keys == nil {
		return Report{}, errors.New("run sweep: it needs a cluster, the fleet API and the identity keys")
	}

	metrics, err := newMetrics(options.Registry)
	if err != nil {
		return Report{}, err
	}

	if options.Config.Interval <= 0 {
		return observed(ctx, options, metrics)
	}

	var last atomic.Pointer[Report]

	repeat := func(ctx context.Context) {
		for ctx.Err() == nil {
			report, err := observed(ctx, options, metrics)
			last.Store(&report)

			if err != nil {
				options.Log.ErrorContext(ctx, "sweep could not run", "error", err)
			}

			timer := options.Clock.NewTimer(options.Config.Interval)

			select {
			case <-timer.C():
			case <-ctx.Done():
				timer.Stop()
			}
		}
	}

	if options.Config.LeaderElection {
		err = elected(ctx, options, repeat)
	} else {
		repeat(ctx)
	}

	if report := last.Load(); report != nil {
		return *report, err
	}

	return Report{}, err
}

// observed is one run with its log line, metrics and span.
func observed(ctx context.Context, options Options, metrics *runMetrics) (Report, error) {
	ctx, span := otel.Tracer(tracerName).Start(ctx, "sweep run")
	defer span.End()

	report, err := once(ctx, options)
	describe(span, options, &report, err)
	metrics.observe(&report, err, options.Clock.Now())

	if err == nil {
		level := slog.LevelInfo
		if report.Incomplete() {
			level = slog.LevelWarn
		}

		options.Log.Log(ctx, level, "sweep ran", "dryRun", report.DryRun, "objects", report.Objects, "gone", report.Gone,
			"outcomes", report.Outcomes, "stopped", report.Stopped, "errors", report.Errors)

		if options.Done != nil {
			options.Done(report)
		}
	}

	return report, err
}

func describe(span trace.Span, options Options, report *Report, err error) {
	span.SetAttributes(
		attribute.Bool("hyperfleet.sweep.delete", options.Config.Delete), attribute.Int("hyperfleet.sweep.objects", report.Objects),
		attribute.Int("hyperfleet.sweep.gone", report.Gone),
	)

	switch {
	case err != nil:
		span.SetStatus(codes.Error, "error")
	case report.Stopped != "":
		span.SetStatus(codes.Error, "stopped")
	case report.Incomplete():
		span.SetStatus(codes.Error, "incomplete")
	}
}

// elected runs while this replica leads, and stands again when it has lost the lead.
func elected(ctx context.Context, options Options, run func(context.Context)) error {
	cluster, err := kubernetes.NewForConfig(rest.AddUserAgent(rest.CopyConfig(options.Kube), "hyperfleet-sweep"))
	if err != nil {
		return fmt.Errorf("make client of the cluster: %w", err)
	}

	host, err := os.Hostname()
	if err != nil {
		host = "sweep"
	}

	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, options.Config.LeaseNamespace, leaseName,
		cluster.CoreV1(), cluster.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: host + "_" + uuid.NewString()})
	if err != nil {
		return fmt.Errorf("make lease: %w", err)
	}

	for ctx.Err() == nil {
		// The elector starts run in a goroutine of its own and does not wait for it. One
		// that it starts too late finds its context ended.
		running := make(chan struct{}, 1)

		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: lock, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
			// The lease is not given back at the end: the next leader begins when nothing of
			// the last one can be under way.
			Name: leaseName,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) {
					select {
					case running <- struct{}{}:
						run(ctx)
						<-running
					case <-ctx.Done():
					}
				},
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			return fmt.Errorf("make elector: %w", err)
		}

		elector.Run(ctx)
		running <- struct{}{} // there is room when run has ended
	}

	return nil
}
