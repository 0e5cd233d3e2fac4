// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/events"
	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/platform/sentinel"
)

// Options of New. Deployment and API are required.
type Options struct {
	// Deployment, checked: its events say what is followed.
	Deployment *adapter.Deployment
	// API is the fleet API.
	API *client.Client
	// PollInterval is the pace of decisions on what is known. Default: Sentinel's.
	PollInterval time.Duration
	// MinBackoff and MaxBackoff are between two tries. Default: the broker's.
	MinBackoff, MaxBackoff time.Duration
	// Log. Default: none.
	Log *slog.Logger
	// Metrics. Default: none.
	Metrics prometheus.Registerer
}

// Source hands an adapter what has to be looked at.
type Source struct {
	watch *sentinel.Sentinel
	queue *broker.Queue
	log   *slog.Logger
	// drained is closed when nothing is in work any more.
	drained chan struct{}
}

// line is the queue as Sentinel's broker.
type line struct{ *broker.Queue }

// Publish implements sentinel.Publisher.
func (l line) Publish(_ context.Context, _ string, event cloudevents.Event) error {
	l.Add(event)

	return nil
}

// Health implements sentinel.Publisher.
func (line) Health(context.Context) error { return nil }

// New makes a source. It makes no call.
func New(options Options) (*Source, error) {
	metrics, err := broker.NewMetrics(options.Metrics)
	if err != nil {
		return nil, err
	}

	options.Log = cmp.Or(options.Log, slog.New(slog.DiscardHandler))
	follows, name := options.Deployment.Events, options.Deployment.Adapter.Name

	s := &Source{log: options.Log, drained: make(chan struct{})}
	s.queue = broker.NewQueue(broker.QueueOptions{
		Conf: platform.Broker{
			Parallelism: follows.Parallelism, MaxDeliveries: follows.MaxTries,
			MinBackoff: options.MinBackoff, MaxBackoff: options.MaxBackoff,
		},
		Topic: follows.ResourceType, Subscription: name, GiveUp: s.setAside, Log: options.Log, Metrics: metrics,
	})

	conf := sentinel.Defaults()
	conf.ResourceType = follows.ResourceType
	conf.MaxAgeNotReconciled, conf.MaxAgeReconciled = follows.MaxAgeNotReconciled, follows.MaxAgeReconciled
	conf.Clients.HyperFleetAPI.BaseURL = options.Deployment.Clients.HyperFleetAPI.BaseURL
	// The fleet API lets an adapter have the leases that begin with its name.
	conf.Lease = "adapter." + name + "." + follows.ResourceType

	if options.PollInterval > 0 {
		conf.PollInterval = options.PollInterval
	}

	for _, label := range slices.Sorted(maps.Keys(follows.ResourceSelector)) {
		conf.ResourceSelector = append(conf.ResourceSelector,
			platform.LabelSelector{Label: label, Value: follows.ResourceSelector[label]})
	}

	s.watch, err = sentinel.New(sentinel.Options{
		Conf: conf, API: options.API, Broker: line{s.queue}, Anew: true, Drain: func() { <-s.drained },
		Log: options.Log, Metrics: options.Metrics,
	})
	if err != nil {
		return nil, fmt.Errorf("follow the fleet API: %w", err)
	}

	return s, nil
}

// Subscribe hands what is due to the handler until ctx ends, and returns when what is in
// work then is handled and another replica may go on. Topic and subscription are those of
// the configuration, whatever is said here. It may be called once.
func (s *Source) Subscribe(ctx context.Context, _, _ string, handle broker.Handler) error {
	var watching sync.WaitGroup

	watching.Go(func() { _ = s.watch.Run(ctx) })

	s.queue.Run(ctx, func(ctx context.Context, event cloudevents.Event) error {
		// Another replica may have gone on, which looks at everything; or this one will.
		if !s.watch.Leads() {
			s.watch.Unsend(event.Subject())

			return nil
		}

		return handle(ctx, event)
	})

	close(s.drained)
	watching.Wait()

	return nil
}

// setAside takes events that were given up. The log has said why. One that was tried often
// comes again at the cadence of what is not reconciled: what it met may be over. One that no
// try fixes does not.
func (s *Source) setAside(given broker.Letter) error {
	if given.Reason == broker.ReasonExhausted {
		return nil
	}

	var said events.Data
	if err := given.Event.DataAs(&said); err != nil {
		return fmt.Errorf("read event: %w", err)
	}

	s.watch.SetAside(said.ID, said.Generation)
	s.log.Warn("the event is set aside until the resource changes", "resourceId", said.ID, "generation", said.Generation)

	return nil
}

// Health says why nothing is handed out; nil if all is well, or another replica works.
func (s *Source) Health(ctx context.Context) error { return s.watch.Ready(ctx) }

// Live says why the process has to be started anew; nil if it need not.
func (s *Source) Live(ctx context.Context) error { return s.watch.Live(ctx) }
