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

// DrainTimeout is how long events that are in work may take when the adapter ends.
const DrainTimeout = 30 * time.Second

// Source hands out events: a *broker.Broker, or a feed.Source.
type Source interface {
	Subscribe(ctx context.Context, topic, subscriptionID string, handle broker.Handler) error
	Health(ctx context.Context) error
}

// Options of Run.
type Options struct {
	// Deployment, complete.
	Deployment adapter.Deployment
	// Version of the program, for the metric build_info.
	Version string
	// Events come from it.
	Events Source
	// Handle handles one event: Handle of a pipeline.Pipeline.
	Handle func(context.Context, cloudevents.Event) pipeline.Result
	// Looks have events handled again when objects change. Default: those of nobody.
	Looks *Looks
	// Config answers /config if the deployment says debug_config; it shows no secrets.
	Config http.Handler
	// Registry of the metrics. Default: one of its own.
	Registry *prometheus.Registry
	// Clock. Default: the real one.
	Clock clock.Clock
	// Log. Default: slog.Default.
	Log *slog.Logger
	// Listening, if there, is told the addresses of health and metrics.
	Listening func(health, metrics string)
}

// server is a running adapter.
type server struct {
	Options

	metrics *meters
	ending  atomic.Bool
	// late ends events that are still in work when the time to drain is over.
	late context.Context
}

// Run handles events until ctx ends, and then drains: it is not ready any more, takes no
// more events, and waits for those in work, for DrainTimeout at most. What is not done by
// then is delivered again.
func Run(ctx context.Context, options Options) error {
	s, err := newServer(options)
	if err != nil {
		return err
	}

	probe, err := probes.Listen(ctx, s.probes())
	if err != nil {
		return err
	}
	defer probe.Close(ctx) //nolint:errcheck // the process ends

	if s.Listening != nil {
		s.Listening(probe.Health, probe.Metrics)
	}

	late, endLate := context.WithCancel(context.Background())
	defer endLate()

	s.late = late
	clients := s.Deployment.Clients.Broker
	s.Log.InfoContext(ctx, "adapter starts", "adapter", s.Deployment.Adapter.Name, "topic", clients.Topic,
		"subscription", clients.SubscriptionID, "follows", s.Deployment.Events.ResourceType)
	s.metrics.up.Set(1)

	defer s.metrics.up.Set(0)

	var looks sync.WaitGroup
	defer looks.Wait()

	looking, endLooks := context.WithCancel(ctx)
	defer endLooks()

	looks.Go(func() { s.Looks.run(looking, s.look) })

	subscribed := make(chan error, 1)

	go func() { subscribed <- s.Events.Subscribe(ctx, clients.Topic, clients.SubscriptionID, s.handle) }()

	select {
	case err := <-subscribed:
		s.ending.Store(true)

		if ctx.Err() == nil {
			err = fmt.Errorf("subscribe to events: %w", cmp.Or(err, errors.New("the source has ended the subscription")))
		}

		return err
	case <-ctx.Done():
	}

	s.ending.Store(true)
	s.Log.InfoContext(ctx, "adapter drains")

	defer time.AfterFunc(DrainTimeout, endLate).Stop()

	err = <-subscribed
	if late.Err() != nil {
		err = errors.Join(err, fmt.Errorf("events were still in work after %s", DrainTimeout))
	}

	if err != nil {
		return fmt.Errorf("drain: %w", err)
	}

	s.Log.InfoContext(ctx, "adapter has stopped")

	return nil
}

func newServer(options Options) (*server, error) {
	if options.Events == nil || options.Handle == nil {
		return nil, errors.New("run adapter: it needs a source of events and a pipeline")
	}

	options.Clock = cmp.Or[clock.Clock](options.Clock, clock.RealClock{})
	options.Log = cmp.Or(options.Log, slog.Default())

	options.Registry = cmp.Or(options.Registry, prometheus.NewRegistry())

	// One that is made runs until it is shut down: none is made in vain.
	if options.Looks == nil {
		options.Looks = NewLooks(nil)
	}

	meters, err := newMeters(options.Registry, options.Clock, options.Deployment.Adapter, options.Version)
	if err != nil {
		return nil, err
	}

	return &server{Options: options, metrics: meters}, nil
}

func (s *server) probes() probes.Options {
	options := probes.Options{
		HealthAddress: s.Deployment.HealthAddress, MetricsAddress: s.Deployment.MetricsAddress,
		Ready: s.ready, Gatherer: s.Registry, Log: s.Log,
	}

	if watched, ok := s.Events.(interface {
		Live(ctx context.Context) error
	}); ok {
		options.Live = watched.Live
	}

	if s.Deployment.DebugConfig && s.Config != nil {
		options.Extra = map[string]http.Handler{"GET /config": s.Config}
	}

	return options
}

func (s *server) ready(ctx context.Context) error {
	if s.ending.Load() {
		return errors.New("the adapter is ending")
	}

	if err := s.Events.Health(ctx); err != nil {
		return fmt.Errorf("events: %w", err)
	}

	return nil
}

// handle is the broker's handler.
func (s *server) handle(ctx context.Context, event cloudevents.Event) error {
	begin := s.Clock.Now()
	result := s.work(ctx, event)
	s.metrics.observe(&result, s.Clock.Since(begin))
	s.note(ctx, &result)

	return result.Err
}

// look handles an event again because an object has changed. That it fails is no matter of
// the broker's.
func (s *server) look(ctx context.Context, event cloudevents.Event) {
	result := s.work(pipeline.Look(ctx), event)
	if ctx.Err() != nil {
		return
	}

	s.metrics.look(&result)
	s.note(ctx, &result)
}

func (s *server) work(ctx context.Context, event cloudevents.Event) pipeline.Result {
	// The time of an event is not the injected clock's: it bounds calls to others.
	ctx, cancel := context.WithTimeoutCause(ctx, s.Deployment.EventTimeout,
		fmt.Errorf("the event takes longer than event_timeout, %s: %w", s.Deployment.EventTimeout, context.DeadlineExceeded))
	defer cancel()
	defer context.AfterFunc(s.late, cancel)()

	ended := s.Looks.begin(&event)
	result := s.Handle(ctx, event)
	ended(result.Trace.Result.Reason == pipeline.ReasonGone, result.Deleting)

	return result
}

// note logs what became of an event: one line, and at debug the whole trace.
func (s *server) note(ctx context.Context, result *pipeline.Result) {
	event := result.Trace.Event
	log := s.Log.With("event", event.ID, "resourceId", event.ResourceID, "kind", event.Kind, "generation", event.Generation)

	if span := trace.SpanContextFromContext(ctx); span.HasTraceID() {
		log = log.With("traceId", span.TraceID().String())
	}

	switch {
	case result.Status == pipeline.Failed:
		log.WarnContext(ctx, "event failed", "phase", result.Phase, "error", result.Failure,
			"outcome", result.Trace.Result.Event)
	case changed(result):
		log.InfoContext(ctx, "event handled", "status", result.Status)
	default:
		log.DebugContext(ctx, "event handled, and nothing was to be done", "status", result.Status)
	}

	if log.Enabled(ctx, slog.LevelDebug) {
		log.DebugContext(ctx, "trace of event", "trace", result.Trace)
	}
}

func changed(result *pipeline.Result) bool {
	return slices.ContainsFunc(result.Resources.Outcomes, func(o resources.Outcome) bool {
		return o.Operation != resources.None || len(o.Pruned) > 0
	})
}
