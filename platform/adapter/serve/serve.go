// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/platform/adapter/pipeline"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/platform/probes"
)

// DrainTimeout is the time that events in progress get to finish when the adapter stops.
const DrainTimeout = 8 * time.Second

// Source delivers events. It is a *broker.Broker or a feed.Source.
type Source interface {
	Subscribe(ctx context.Context, topic, subscriptionID string, handle broker.Handler) error
	Health(ctx context.Context) error
}

// Options configure Run. Deployment, Events and Handle are required.
type Options struct {
	// Deployment is the complete deployment configuration.
	Deployment adapter.Deployment
	// Version is the version of the program for the metric build_info.
	Version string
	// Events is the source of events.
	Events Source
	// Handle handles one event. It is the method Handle of a pipeline.Pipeline.
	Handle func(context.Context, cloudevents.Event) pipeline.Result
	// Requeuer handles events again when objects change. Default: a Requeuer that gets no changes.
	Requeuer *Requeuer
	// CheckClusters returns why a cluster of the adapter's objects cannot be used. Default: no check.
	CheckClusters func(context.Context) error
	// Config serves /config if the deployment sets debug_config. It must not show secrets.
	Config http.Handler
	// Registry is the registry of the metrics. Default: a new registry.
	Registry *prometheus.Registry
	// Clock is the clock of durations and requeues. Default: the real clock.
	Clock clock.Clock
	// Log is the logger. Default: slog.Default.
	Log *slog.Logger
	// OnListen, if set, is called with the addresses of health and metrics.
	OnListen func(health, metrics string)
}

// server is a running adapter.
type server struct {
	Options

	metrics  *meters
	stopping atomic.Bool
	// drainCtx ends when DrainTimeout is over. Its end cancels the events in progress.
	drainCtx context.Context
}

// Run handles events until ctx ends, and then drains. While Run drains, the adapter is not ready and
// takes no new events, and Run waits at most DrainTimeout for the events in progress. Events that do
// not finish in this time are delivered again.
func Run(ctx context.Context, options Options) error {
	s, err := newServer(options)
	if err != nil {
		return err
	}

	probe, err := probes.Listen(ctx, s.probeOptions())
	if err != nil {
		return err
	}
	defer probe.Close(ctx) //nolint:errcheck // the process ends

	if s.OnListen != nil {
		s.OnListen(probe.HealthAddress, probe.MetricsAddress)
	}

	drainCtx, cancelDrain := context.WithCancel(context.Background())
	defer cancelDrain()

	s.drainCtx = drainCtx
	clients := s.Deployment.Clients.Broker
	s.Log.InfoContext(ctx, "adapter starts", "adapter", s.Deployment.Adapter.Name, "topic", clients.Topic,
		"subscription", clients.SubscriptionID, "follows", s.Deployment.Events.ResourceType)
	s.metrics.up.Set(1)

	defer s.metrics.up.Set(0)

	var requeues sync.WaitGroup
	defer requeues.Wait()

	requeueCtx, cancelRequeues := context.WithCancel(ctx)
	defer cancelRequeues()

	requeues.Go(func() { s.Requeuer.run(requeueCtx, s.handleAgain) })

	subscription := make(chan error, 1)

	go func() { subscription <- s.Events.Subscribe(ctx, clients.Topic, clients.SubscriptionID, s.handle) }()

	select {
	case err := <-subscription:
		s.stopping.Store(true)

		if ctx.Err() == nil {
			err = fmt.Errorf("subscribe to events: %w", cmp.Or(err, errors.New("the source ended the subscription")))
		}

		return err
	case <-ctx.Done():
	}

	s.stopping.Store(true)
	s.Log.InfoContext(ctx, "adapter drains")

	defer time.AfterFunc(DrainTimeout, cancelDrain).Stop()

	err = <-subscription
	if drainCtx.Err() != nil {
		err = errors.Join(err, fmt.Errorf("events were still in progress after %s", DrainTimeout))
	}

	if err != nil {
		return fmt.Errorf("drain: %w", err)
	}

	s.Log.InfoContext(ctx, "adapter has stopped")

	return nil
}

func newServer(options Options) (*server, error) {
	if options.Events == nil || options.Handle == nil {
		return nil, errors.New("run adapter: Options.Events and Options.Handle are required")
	}

	options.Clock = cmp.Or[clock.Clock](options.Clock, clock.RealClock{})
	options.Log = cmp.Or(options.Log, slog.Default())

	options.Registry = cmp.Or(options.Registry, prometheus.NewRegistry())

	// Create a Requeuer only if none is given, because its queue runs until it is shut down.
	if options.Requeuer == nil {
		options.Requeuer = NewRequeuer()
	}

	meters, err := newMeters(options.Registry, options.Clock, options.Deployment.Adapter, options.Version)
	if err != nil {
		return nil, err
	}

	return &server{Options: options, metrics: meters}, nil
}

func (s *server) probeOptions() probes.Options {
	options := probes.Options{
		HealthAddress: s.Deployment.HealthAddress, MetricsAddress: s.Deployment.MetricsAddress,
		CheckReady: s.checkReady, Gatherer: s.Registry, Log: s.Log,
	}

	if source, ok := s.Events.(interface {
		Live(ctx context.Context) error
	}); ok {
		options.CheckLive = source.Live
	}

	if source, ok := s.Events.(interface{ Standby() string }); ok {
		options.DescribeReady = source.Standby
	}

	if s.Deployment.DebugConfig && s.Config != nil {
		options.Extra = map[string]http.Handler{"GET /config": s.Config}
	}

	return options
}

func (s *server) checkReady(ctx context.Context) error {
	if s.stopping.Load() {
		return errors.New("the adapter is stopping")
	}

	if err := s.Events.Health(ctx); err != nil {
		return fmt.Errorf("events: %w", err)
	}

	if s.CheckClusters == nil {
		return nil
	}

	return s.CheckClusters(ctx)
}

func (s *server) handle(ctx context.Context, event cloudevents.Event) error {
	start := s.Clock.Now()
	result := s.runPipeline(ctx, event, s.Requeuer.beginEvent(&event))
	s.metrics.observeEvent(&result, s.Clock.Since(start))
	s.logResult(ctx, &result)

	return result.Err
}

// handleAgain handles an event again because an object has changed. The source does not get its error.
func (s *server) handleAgain(ctx context.Context, again requeue) {
	result := s.runPipeline(pipeline.WithRequeue(ctx, again.earlier), again.event, again.end)
	if ctx.Err() != nil {
		return
	}

	s.metrics.observeRequeue(&result)
	s.logResult(ctx, &result)
}

// runPipeline handles an event, whose start the Requeuer has recorded.
func (s *server) runPipeline(ctx context.Context, event cloudevents.Event, end func(*pipeline.Result)) pipeline.Result {
	// The timeout of an event uses the real clock, because it limits calls to other servers.
	ctx, cancel := context.WithTimeoutCause(ctx, s.Deployment.EventTimeout,
		fmt.Errorf("the event takes longer than event_timeout, %s: %w", s.Deployment.EventTimeout, context.DeadlineExceeded))
	defer cancel()
	defer context.AfterFunc(s.drainCtx, cancel)()

	result := s.Handle(ctx, event)
	end(&result)

	return result
}

// logResult logs the result of an event in one line, and the whole trace at level debug.
func (s *server) logResult(ctx context.Context, result *pipeline.Result) {
	if result.Status != pipeline.Failed && !hasChanges(result) && !s.Log.Enabled(ctx, slog.LevelDebug) {
		return
	}

	event := result.Trace.Event
	log := s.Log.With("event", event.ID, "resourceId", event.ResourceID, "kind", event.Kind, "generation", event.Generation)

	if span := trace.SpanContextFromContext(ctx); span.HasTraceID() {
		log = log.With("traceId", span.TraceID().String())
	}

	switch {
	case result.Status == pipeline.Failed:
		log.WarnContext(ctx, "event failed", "phase", result.Phase, "error", result.Failure,
			"outcome", result.Trace.Result.Event)
	case hasChanges(result):
		log.InfoContext(ctx, "event handled", "status", result.Status)
	default:
		log.DebugContext(ctx, "event handled without changes", "status", result.Status)
	}

	if log.Enabled(ctx, slog.LevelDebug) {
		log.DebugContext(ctx, "trace of event", "trace", result.Trace)
	}
}

func hasChanges(result *pipeline.Result) bool {
	return slices.ContainsFunc(result.Resources.Outcomes, func(o resources.Outcome) bool {
		return o.Operation != resources.None || len(o.Pruned) > 0
	})
}
