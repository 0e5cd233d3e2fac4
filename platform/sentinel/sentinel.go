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
	"runtime/debug"
	"slices"
	"sync"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/platform/lease"
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
	// Fingerprint, if set, identifies what the replicas of the lease do, such as a digest of their configuration. A
	// process with another one is no replica, and stands by as long as the other process runs (Standby).
	Fingerprint string
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
	// CheckPublish returns why events of the topic cannot be published now.
	CheckPublish(ctx context.Context, topic string) error
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

	topic   string
	decider decider
	data    *data
	index   *index
	lease   *lease.Lease
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
	// lastAPIError is why the last call for changes or for the list failed.
	lastAPIError error
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

	s := &Sentinel{
		conf: options.Conf, api: options.API, broker: options.Broker, shouldResendAll: options.ShouldResendAll, drain: options.Drain,
		clock:   options.Clock,
		log:     options.Log.With("resourceType", options.Conf.ResourceType),
		topic:   topicName(&options.Conf),
		decider: decide, data: data, index: newIndex(decide.needsResource() || data.needsResource()),
		queue: workqueue.NewTyped[string](), unseenTypes: map[string]bool{},
		recheck: make(chan struct{}, 1),
	}
	s.metrics, err = newMeters(options.Metrics, options.Conf.ResourceType, formatSelector(options.Conf.ResourceSelector),
		s.countPending)
	if err != nil {
		return nil, err
	}

	for _, name := range decide.conditionTypes() {
		s.unseenTypes[name] = true
	}

	s.lease = lease.New(lease.Options{
		API: s.api, Name: leaseName(&s.conf), Fingerprint: options.Fingerprint, Log: s.log, Clock: s.clock, OnChange: s.setLeader,
		OnConflict: func(exists bool) { setFlag(s.metrics.conflict, exists) },
		OnError:    s.metrics.apiErrors.WithLabelValues(errorLease).Inc,
	})

	return s, nil
}

// setLeader is called when this process becomes the leader or stops being it. A new leader evaluates all resources.
func (s *Sentinel) setLeader(isLeader bool) {
	setFlag(s.metrics.leader, isLeader)

	if !isLeader {
		return
	}

	if s.shouldResendAll {
		s.index.resetAllSent()
	}

	s.enqueueDue(s.index.ids()...)
}

// Run watches resources and sends events until ctx ends. It then finishes sending the current events, for up to
// retry.EndGrace. It always returns nil, because it retries, logs and counts all errors.
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
	leading.Go(func() { s.lease.Run(leaseCtx) })

	sendCtx, cancelSend := retry.WithGrace(ctx, retry.EndGrace)
	defer cancelSend()

	for range publisherCount {
		sending.Go(func() { s.runPublisher(ctx, sendCtx) })
	}

	<-ctx.Done()
	watching.Wait()
	s.queue.ShutDown()
	sending.Wait()
	s.drain()
	cancelLease()
	leading.Wait()

	return nil
}

// countPending returns the number of resources whose event is due and not sent. A replica that is not the
// leader has none.
func (s *Sentinel) countPending() float64 {
	if !s.lease.IsHeld() {
		return 0
	}

	return float64(s.index.countPending())
}

// Standby returns the reason if another process with another Options.Fingerprint has the lease. This process
// then sends no events, although no replica of it sends them. Otherwise Standby returns an empty string.
func (s *Sentinel) Standby() string { return s.lease.Conflict() }

// IsLeader returns true if this process is the one that sends events.
func (s *Sentinel) IsLeader() bool { return s.lease.IsHeld() }

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
	s.index.endRestore()
	s.mu.Lock()
	first := !s.isListed
	s.isListed = true
	unseen := slices.Sorted(maps.Keys(s.unseenTypes))
	s.mu.Unlock()

	if first {
		s.log.Info("listed the resources", "resources", s.index.size())
		// The pages of the first list are read without a pause, and leave much garbage.
		debug.FreeOSMemory()
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

	s.lastResponse, s.lastAPIError = now, nil
}

// recordAPIError records why a call for changes or for the list failed.
func (s *Sentinel) recordAPIError(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.lastAPIError = err
}

var (
	errNotEvaluated = errors.New("the resources were not evaluated for three poll intervals")
	errNotListed    = errors.New("the resources are not listed yet")
	errUnresponsive = errors.New("the fleet API does not respond")
)

// withCause adds the cause to an error, if it is known.
func withCause(err, cause error) error {
	if cause == nil {
		return err
	}

	return fmt.Errorf("%w: %w", err, cause)
}

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
	isListed, silence, cause := s.isListed, s.clock.Since(s.lastResponse), s.lastAPIError
	s.mu.Unlock()

	switch {
	case !isListed:
		return withCause(errNotListed, cause)
	case silence > 2*changesWait+maxRetryDelay:
		return withCause(fmt.Errorf("%w: for %s", errUnresponsive, silence.Round(time.Second)), cause)
	}

	if err := s.lease.Check(); err != nil {
		return err
	}

	if err := s.broker.CheckPublish(ctx, s.topic); err != nil {
		return fmt.Errorf("broker: %w", err)
	}

	return nil
}
