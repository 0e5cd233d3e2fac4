// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/platform/client"
)

// publisherCount is the number of events that are sent at the same time.
const publisherCount = 16

// Options configure New. Conf, API and Broker are required.
type Options struct {
	// Conf is the configuration. Validate has to accept it.
	Conf platform.Sentinel
	// API is the client of the fleet API.
	API *client.Client
	// Broker receives the events. Sentinel does not close it.
	Broker Publisher
	// ShouldResendAll makes Sentinel send an event for each resource when this process becomes the
	// leader. It is needed if events that the previous leader has sent are lost with its process.
	ShouldResendAll bool
	// Drain, if it is not nil, is called after the last event was sent and before another replica
	// can become the leader. It waits until the events have been handled.
	Drain func()
	// Log is the logger. Default: no log.
	Log *slog.Logger
	// Metrics registers the metrics. Default: they are not registered.
	Metrics prometheus.Registerer
	// Clock is the clock. Default: the real clock.
	Clock clock.WithTickerAndDelayedExecution
}

// Publisher accepts events. It is a *broker.Broker, or a *broker.Queue of this process.
type Publisher interface {
	Publish(ctx context.Context, topic string, event cloudevents.Event) error
	Health(ctx context.Context) error
}

// Sentinel watches the resources of one kind.
type Sentinel struct {
	conf            platform.Sentinel
	api             *client.Client
	broker          Publisher
	shouldResendAll bool
	drain           func()
	log             *slog.Logger
	metrics         *sentinelMetrics
	clock           clock.WithTickerAndDelayedExecution

	holder  string
	topic   string
	decider decider
	data    *data
	index   *index
	lease   *lease
	// queue has the resources whose event is due.
	queue workqueue.TypedInterface[string]
	// recheck receives a value when the index may have stale resources.
	recheck chan struct{}

	mu sync.Mutex
	// kind is the kind of the resources. It is empty until a resource was read.
	kind string
	// unseenTypes are condition types that the decision names and that no resource had so far.
	unseenTypes map[string]bool
	// isListed, lastResponse and lastEvaluation are for the probes.
	isListed                     bool
	lastResponse, lastEvaluation time.Time
}

// New returns a Sentinel. It makes no call.
func New(options Options) (*Sentinel, error) {
	if err := Validate(&options.Conf); err != nil {
		return nil, err
	}

	options.Log = cmp.Or(options.Log, slog.New(slog.DiscardHandler))
	options.Clock = cmp.Or[clock.WithTickerAndDelayedExecution](options.Clock, clock.RealClock{})

	if options.Drain == nil {
		options.Drain = func() {}
	}

	decide, err := compileDecision(&options.Conf, options.ShouldResendAll, options.Clock)
	if err != nil {
		return nil, err
	}

	data, err := compileData(options.Conf.MessageData)
	if err != nil {
		return nil, err
	}

	queue := workqueue.NewTyped[string]()

	meters, err := newMeters(options.Metrics, options.Conf.ResourceType,
		formatSelector(options.Conf.ResourceSelector),
		func() float64 { return float64(queue.Len()) })
	if err != nil {
		return nil, err
	}

	host, err := os.Hostname()
	if err != nil {
		host = "sentinel"
	}

	s := &Sentinel{
		conf: options.Conf, api: options.API, broker: options.Broker, shouldResendAll: options.ShouldResendAll, drain: options.Drain,
		metrics: meters, clock: options.Clock,
		log:    options.Log.With("resourceType", options.Conf.ResourceType),
		holder: host + "-" + uuid.NewString(), topic: topicName(&options.Conf),
		decider: decide, data: data, index: newIndex(decide.needsResource() || data.needsResource()),
		queue: queue, unseenTypes: map[string]bool{},
		recheck: make(chan struct{}, 1),
	}
	s.lease = &lease{sentinel: s, name: leaseName(&options.Conf)}

	for _, name := range decide.conditionTypes() {
		s.unseenTypes[name] = true
	}

	return s, nil
}

// Run watches resources and sends events until ctx ends. It finishes sending the current events. It
// always returns nil, because it retries, logs and counts all errors.
func (s *Sentinel) Run(ctx context.Context) error {
	s.recordEvaluation()

	var watching, leading, sending sync.WaitGroup

	// The lease is held until the last event has been sent.
	leaseCtx, cancelLease := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelLease()

	watching.Go(func() { s.follow(ctx) })
	watching.Go(func() { s.relistPeriodically(ctx) })
	watching.Go(func() { s.verifyDue(ctx) })
	watching.Go(func() { s.evaluatePeriodically(ctx) })
	leading.Go(func() { s.lease.run(leaseCtx) })

	for range publisherCount {
		sending.Go(func() { s.runPublisher(ctx) })
	}

	<-ctx.Done()
	watching.Wait()
	s.queue.ShutDown()
	sending.Wait()
	s.drain()
	cancelLease()
	leading.Wait()
	s.lease.release()

	return nil
}

// IsLeader returns true if this process is the one that sends events.
func (s *Sentinel) IsLeader() bool { return s.lease.isHeld() }

// ResetSent tells Sentinel that the last event of a resource was not handled. Sentinel then behaves
// as if it had not sent the event.
func (s *Sentinel) ResetSent(id string) { s.index.update(id, (*entry).resetSent) }

// ExcludeGeneration tells Sentinel that no adapter can handle the event of a resource's generation.
// The resource then counts as reconciled until it changes, so its events use the longer interval.
func (s *Sentinel) ExcludeGeneration(id string, generation int32) {
	s.index.update(id, func(e *entry) { e.excludedGeneration = generation })
}

// finishListing is called after all resources have been listed. It evaluates them all. After the
// first list it also warns about condition types that no resource has.
func (s *Sentinel) finishListing() {
	s.mu.Lock()
	first := !s.isListed
	s.isListed = true
	unseen := slices.Sorted(maps.Keys(s.unseenTypes))
	s.mu.Unlock()

	if first {
		s.log.Info("listed the resources", "resources", s.index.size())
	}

	if first && len(unseen) > 0 && s.index.size() > 0 {
		s.log.Warn("the decision names conditions that no resource has: check their names", "conditions", unseen)
	}

	s.enqueueDue(s.index.ids()...)
}

// evaluatePeriodically evaluates all resources at each poll interval.
func (s *Sentinel) evaluatePeriodically(ctx context.Context) {
	ticker := s.clock.NewTicker(s.conf.PollInterval)
	defer ticker.Stop()

	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			start := s.clock.Now()
			s.enqueueDue(s.index.ids()...)
			s.metrics.pollDuration.Observe(s.clock.Since(start).Seconds())
			s.recordEvaluation()
		}
	}
}

func (s *Sentinel) recordEvaluation() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.lastEvaluation = s.clock.Now()
}

// recordResponse records that the API responded.
func (s *Sentinel) recordResponse() {
	now := s.clock.Now()
	s.metrics.lastPoll.Set(float64(now.UnixMilli()) / 1000) //nolint:mnd // milliseconds

	s.mu.Lock()
	defer s.mu.Unlock()

	s.lastResponse = now
}

var (
	errNotEvaluated = errors.New("the resources were not evaluated for three poll intervals")
	errNotListed    = errors.New("the resources are not listed yet")
	errUnresponsive = errors.New("the fleet API does not respond")
)

// CheckLive returns an error if the process has to be restarted.
func (s *Sentinel) CheckLive(context.Context) error {
	const maxMissedIntervals = 3

	s.mu.Lock()
	defer s.mu.Unlock()

	if s.clock.Since(s.lastEvaluation) > maxMissedIntervals*s.conf.PollInterval+time.Second {
		return errNotEvaluated
	}

	return nil
}

// CheckReady returns why no events are sent. It returns nil if this or another replica sends them.
func (s *Sentinel) CheckReady(ctx context.Context) error {
	s.mu.Lock()
	isListed, silence := s.isListed, s.clock.Since(s.lastResponse)
	s.mu.Unlock()

	switch {
	case !isListed:
		return errNotListed
	case silence > 2*changesWait+maxRetryDelay:
		return fmt.Errorf("%w: for %s", errUnresponsive, silence.Round(time.Second))
	}

	if err := s.broker.Health(ctx); err != nil {
		return fmt.Errorf("broker: %w", err)
	}

	return nil
}
