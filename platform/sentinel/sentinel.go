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

// publishers send events at once.
const publishers = 16

// Options of New. Conf, API and Broker are needed.
type Options struct {
	// Conf is checked by Validate, over Defaults.
	Conf platform.Sentinel
	// API is the fleet API.
	API *client.Client
	// Broker is where events go; it is not closed.
	Broker Publisher
	// Anew has an event sent for each resource when this process begins to send: what the
	// one before it has sent and nobody has handled is lost with it.
	Anew bool
	// Drain, if there, is called when no more is sent, and before another may begin to: it
	// waits for the events in work.
	Drain func()
	// Log. Default: none.
	Log *slog.Logger
	// Metrics. Default: none.
	Metrics prometheus.Registerer
	// Clock. Default: the real one.
	Clock clock.WithTickerAndDelayedExecution
}

// Publisher takes events: a *broker.Broker, or a queue of the process.
type Publisher interface {
	Publish(ctx context.Context, topic string, event cloudevents.Event) error
	Health(ctx context.Context) error
}

// Sentinel watches one kind of resource.
type Sentinel struct {
	conf   platform.Sentinel
	api    *client.Client
	broker Publisher
	anew   bool
	drain  func()
	log    *slog.Logger
	meters *meters
	clock  clock.WithTickerAndDelayedExecution

	holder string
	topic  string
	decide decider
	data   *data
	index  *index
	lease  *lease
	// queue has the resources whose event is due.
	queue workqueue.TypedInterface[string]
	// doubts is told when the index may have resources to be read again.
	doubts chan struct{}

	mu sync.Mutex
	// kind of the resources, once one was seen.
	kind string
	// unseen are types of conditions that the decision asks for and no resource had yet.
	unseen map[string]bool
	// listed, answered and passed: for the probes.
	listed           bool
	answered, passed time.Time
}

// New makes a Sentinel. It makes no call.
func New(options Options) (*Sentinel, error) {
	if err := Validate(&options.Conf); err != nil {
		return nil, err
	}

	options.Log = cmp.Or(options.Log, slog.New(slog.DiscardHandler))
	options.Clock = cmp.Or[clock.WithTickerAndDelayedExecution](options.Clock, clock.RealClock{})

	if options.Drain == nil {
		options.Drain = func() {}
	}

	decide, err := compileDecision(&options.Conf, options.Anew, options.Clock)
	if err != nil {
		return nil, err
	}

	data, err := compileData(options.Conf.MessageData)
	if err != nil {
		return nil, err
	}

	queue := workqueue.NewTyped[string]()

	meters, err := newMeters(options.Metrics, options.Conf.ResourceType, selectorText(options.Conf.ResourceSelector),
		func() float64 { return float64(queue.Len()) })
	if err != nil {
		return nil, err
	}

	host, err := os.Hostname()
	if err != nil {
		host = "sentinel"
	}

	s := &Sentinel{
		conf: options.Conf, api: options.API, broker: options.Broker, anew: options.Anew, drain: options.Drain,
		meters: meters, clock: options.Clock,
		log:    options.Log.With("resourceType", options.Conf.ResourceType),
		holder: host + "-" + uuid.NewString(), topic: topicOf(&options.Conf),
		decide: decide, data: data, index: newIndex(decide.whole() || data.whole()), queue: queue, unseen: map[string]bool{},
		doubts: make(chan struct{}, 1),
	}
	s.lease = &lease{s: s, name: leaseOf(&options.Conf)}

	for _, name := range decide.types() {
		s.unseen[name] = true
	}

	return s, nil
}

// Run watches and sends until ctx ends; what is being sent then is sent. It always
// returns nil: what goes wrong is tried again, logged and counted.
func (s *Sentinel) Run(ctx context.Context) error {
	s.touch()

	var watching, leading, sending sync.WaitGroup

	// The lease is kept until nothing is in work any more.
	led, letGo := context.WithCancel(context.WithoutCancel(ctx))
	defer letGo()

	watching.Go(func() { s.follow(ctx) })
	watching.Go(func() { s.relist(ctx) })
	watching.Go(func() { s.verify(ctx) })
	watching.Go(func() { s.pace(ctx) })
	leading.Go(func() { s.lease.run(led) })

	for range publishers {
		sending.Go(func() { s.send(ctx) })
	}

	<-ctx.Done()
	watching.Wait()
	s.queue.ShutDown()
	sending.Wait()
	s.drain()
	letGo()
	leading.Wait()
	s.lease.release()

	return nil
}

// Leads says whether this process is the one that sends.
func (s *Sentinel) Leads() bool { return s.lease.holds() }

// Unsend says that the last event of a resource was not handled, as if it had not been sent.
func (s *Sentinel) Unsend(id string) { s.index.with(id, (*entry).unsend) }

// SetAside says that nobody can handle the event of a resource's generation: it counts as
// reconciled, so that it is sent again at that cadence, until it changes.
func (s *Sentinel) SetAside(id string, generation int32) {
	s.index.with(id, func(e *entry) { e.aside = generation })
}

// begin follows the first list.
func (s *Sentinel) begin() {
	s.mu.Lock()
	first := !s.listed
	s.listed = true
	unseen := slices.Sorted(maps.Keys(s.unseen))
	s.mu.Unlock()

	if first {
		s.log.Info("listed", "resources", s.index.size())
	}

	if first && len(unseen) > 0 && s.index.size() > 0 {
		s.log.Warn("the decision asks for conditions that no resource has: are their names right?", "conditions", unseen)
	}

	s.consider(s.index.ids()...)
}

// pace looks at everything each poll interval.
func (s *Sentinel) pace(ctx context.Context) {
	ticker := s.clock.NewTicker(s.conf.PollInterval)
	defer ticker.Stop()

	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			begin := s.clock.Now()
			s.consider(s.index.ids()...)
			s.meters.pass.Observe(s.clock.Since(begin).Seconds())
			s.touch()
		}
	}
}

func (s *Sentinel) touch() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.passed = s.clock.Now()
}

// polled notes that the API answered.
func (s *Sentinel) polled() {
	now := s.clock.Now()
	s.meters.lastPoll.Set(float64(now.UnixMilli()) / 1000) //nolint:mnd // milliseconds

	s.mu.Lock()
	defer s.mu.Unlock()

	s.answered = now
}

var (
	errStuck     = errors.New("no pass over the resources for three poll intervals")
	errNotListed = errors.New("the resources are not listed yet")
	errSilent    = errors.New("the fleet API does not answer")
)

// Live says why the process has to be started anew; nil if it need not.
func (s *Sentinel) Live(context.Context) error {
	const patience = 3

	s.mu.Lock()
	defer s.mu.Unlock()

	if s.clock.Since(s.passed) > patience*s.conf.PollInterval+time.Second {
		return errStuck
	}

	return nil
}

// Ready says why events don't flow; nil if they do, or another replica sends them.
func (s *Sentinel) Ready(ctx context.Context) error {
	s.mu.Lock()
	listed, silent := s.listed, s.clock.Since(s.answered)
	s.mu.Unlock()

	switch {
	case !listed:
		return errNotListed
	case silent > 2*changesWait+maxPause:
		return fmt.Errorf("%w: for %s", errSilent, silent.Round(time.Second))
	}

	if err := s.broker.Health(ctx); err != nil {
		return fmt.Errorf("broker: %w", err)
	}

	return nil
}
