// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
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
	queue *broker.Broker
	log   *slog.Logger
	// topic and name are those of the queue.
	topic, name string
	// drained is closed when nothing is in work any more.
	drained chan struct{}
}

// New makes a source. It makes no call.
func New(options Options) (*Source, error) {
	options.Log = cmp.Or(options.Log, slog.New(slog.DiscardHandler))

	events := options.Deployment.Events
	s := &Source{
		log: options.Log, topic: events.ResourceType, name: options.Deployment.Adapter.Name, drained: make(chan struct{}),
	}

	var err error

	s.queue, err = broker.NewMemory(platform.Broker{
		Parallelism: events.Parallelism, MaxDeliveries: events.MaxTries,
		MinBackoff: options.MinBackoff, MaxBackoff: options.MaxBackoff,
	}, options.Log, options.Metrics)
	if err != nil {
		return nil, err
	}

	conf := sentinel.Defaults()
	conf.ResourceType, conf.Topic = events.ResourceType, s.topic
	conf.MaxAgeNotReconciled, conf.MaxAgeReconciled = events.MaxAgeNotReconciled, events.MaxAgeReconciled
	conf.Clients.HyperFleetAPI.BaseURL = options.Deployment.Clients.HyperFleetAPI.BaseURL
	conf.Broker.Type = platform.BrokerMemory
	// The fleet API lets an adapter have the leases that begin with its name.
	conf.Lease = "adapter." + s.name + "." + events.ResourceType

	if options.PollInterval > 0 {
		conf.PollInterval = options.PollInterval
	}

	for _, label := range slices.Sorted(maps.Keys(events.ResourceSelector)) {
		conf.ResourceSelector = append(conf.ResourceSelector,
			platform.LabelSelector{Label: label, Value: events.ResourceSelector[label]})
	}

	s.watch, err = sentinel.New(sentinel.Options{
		Conf: conf, API: options.API, Broker: s.queue, Anew: true, Drain: func() { <-s.drained },
		Log: options.Log, Metrics: options.Metrics,
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("follow the fleet API: %w", err), s.queue.Close(context.Background()))
	}

	return s, nil
}

// Subscribe hands what is due to the handler until ctx ends, and returns when what is in
// work then is handled and another replica may go on. Topic and subscription are those of
// the configuration, whatever is said here. It may be called once.
func (s *Source) Subscribe(ctx context.Context, _, _ string, handle broker.Handler) error {
	ctx, end := context.WithCancel(ctx)
	defer end()

	var asides, watching sync.WaitGroup

	asides.Go(func() { _ = s.queue.Subscribe(ctx, s.topic+broker.DeadLetterSuffix, s.name, s.setAside) })
	watching.Go(func() { _ = s.watch.Run(ctx) })

	err := s.queue.Subscribe(ctx, s.topic, s.name, func(ctx context.Context, event cloudevents.Event) error {
		// Another replica may have gone on, which looks at everything; or this one will.
		if !s.watch.Leads() {
			s.watch.Unsend(event.Subject())

			return nil
		}

		return handle(ctx, event)
	})

	end()
	close(s.drained)
	asides.Wait()
	watching.Wait()

	if err != nil {
		return fmt.Errorf("follow %s of the fleet API: %w", s.topic, err)
	}

	return nil
}

// setAside takes events that were given up. The log has said why. One that was tried often
// comes again at the cadence of what is not reconciled: what it met may be over. One that no
// try fixes does not.
func (s *Source) setAside(_ context.Context, event cloudevents.Event) error {
	if event.Extensions()[broker.ExtensionReason] == broker.ReasonExhausted {
		return nil
	}

	var said struct {
		ID         string `json:"id"`
		Generation int32  `json:"generation"`
	}
	if err := json.Unmarshal(event.Data(), &said); err != nil {
		return broker.Poison(err)
	}

	s.watch.SetAside(said.ID, said.Generation)
	s.log.Warn("the event is set aside until the resource changes", "resourceId", said.ID, "generation", said.Generation)

	return nil
}

// Health says why nothing is handed out; nil if all is well, or another replica works.
func (s *Source) Health(ctx context.Context) error { return s.watch.Ready(ctx) }

// Live says why the process has to be started anew; nil if it need not.
func (s *Source) Live(ctx context.Context) error { return s.watch.Live(ctx) }

// Close ends the queue, and waits for what is in work until ctx ends.
func (s *Source) Close(ctx context.Context) error { return s.queue.Close(ctx) }
