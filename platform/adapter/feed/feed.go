// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
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

// Options configure a Source. Deployment and API are required.
type Options struct {
	// Deployment is the validated deployment configuration. Its events section selects the resources.
	Deployment *adapter.Deployment
	// API is the client of the fleet API.
	API *client.Client
	// TaskDigest is the digest of the task file. A process with another one is no replica of this adapter.
	TaskDigest string
	// PollInterval is the interval between decisions on due resources. Default: Sentinel's.
	PollInterval time.Duration
	// MinBackoff and MaxBackoff limit the back-off between two attempts. Default: the broker's.
	MinBackoff, MaxBackoff time.Duration
	// Log is the logger. Default: no logs.
	Log *slog.Logger
	// Metrics is the registry of the metrics. Default: no metrics.
	Metrics prometheus.Registerer
}

// Source delivers the events of due resources to an adapter.
type Source struct {
	sentinel *sentinel.Sentinel
	queue    *broker.Queue
	log      *slog.Logger
	// drained is closed when no event is in progress.
	drained chan struct{}
}

// New creates a source. It sends no requests.
func New(options Options) (*Source, error) {
	metrics, err := broker.NewMetrics(options.Metrics)
	if err != nil {
		return nil, err
	}

	options.Log = cmp.Or(options.Log, slog.New(slog.DiscardHandler))
	config, name := options.Deployment.Events, options.Deployment.Adapter.Name

	s := &Source{log: options.Log, drained: make(chan struct{})}
	s.queue = broker.NewQueue(broker.QueueOptions{
		Conf: platform.Broker{
			Parallelism: config.Parallelism, MaxDeliveries: config.MaxTries,
			MinBackoff: options.MinBackoff, MaxBackoff: options.MaxBackoff,
		},
		Topic: config.ResourceType, Subscription: name, GiveUp: s.handleDeadLetter, Log: options.Log, Metrics: metrics,
	})

	conf := sentinel.Defaults()
	conf.ResourceType = config.ResourceType
	conf.MaxAgeNotReconciled, conf.MaxAgeReconciled = config.MaxAgeNotReconciled, config.MaxAgeReconciled
	conf.Clients.HyperFleetAPI.BaseURL = options.Deployment.Clients.HyperFleetAPI.BaseURL
	// The fleet API permits an adapter to use leases whose name starts with the adapter's name.
	conf.Lease = strings.TrimSuffix("adapter."+name+"."+config.ResourceType+"."+config.Variant, ".")

	if options.PollInterval > 0 {
		conf.PollInterval = options.PollInterval
	}

	for _, label := range slices.Sorted(maps.Keys(config.ResourceSelector)) {
		conf.ResourceSelector = append(conf.ResourceSelector,
			platform.LabelSelector{Label: label, Value: config.ResourceSelector[label]})
	}

	s.sentinel, err = sentinel.New(sentinel.Options{
		Conf: conf, API: options.API, Broker: s.queue, ShouldResendAll: true, Fingerprint: fingerprint(options),
		Drain: func() { <-s.drained }, Log: options.Log, Metrics: options.Metrics,
	})
	if err != nil {
		return nil, fmt.Errorf("follow the fleet API: %w", err)
	}

	return s, nil
}

// fingerprint returns what replicas of an adapter have in common: the task file and the selected resources.
func fingerprint(options Options) string {
	const digits = 16

	// A map is printed in the order of its keys.
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %q", options.TaskDigest, options.Deployment.Events.ResourceSelector))

	return hex.EncodeToString(sum[:])[:digits]
}

// Subscribe delivers due events to the handler until ctx ends. It returns when the events in progress are
// handled and another replica can become the leader. It ignores its topic and subscription, and uses those
// of the configuration. Subscribe can be called only once.
func (s *Source) Subscribe(ctx context.Context, _, _ string, handle broker.Handler) error {
	var group sync.WaitGroup

	group.Go(func() { _ = s.sentinel.Run(ctx) })

	s.queue.Run(ctx, func(ctx context.Context, event cloudevents.Event) error {
		// A replica that is not the leader handles no events. The next leader handles every resource.
		if !s.sentinel.IsLeader() {
			s.sentinel.ResetSent(event.Subject())

			return nil
		}

		return handle(ctx, event)
	})

	close(s.drained)
	group.Wait()

	return nil
}

// handleDeadLetter handles an event that the queue no longer retries. The queue has logged the
// reason. After too many attempts, the event is sent again at the interval of resources that are not
// reconciled, because its error may be transient. After any other reason, the resource is excluded until it
// changes.
func (s *Source) handleDeadLetter(letter broker.Letter) error {
	if letter.Reason == broker.ReasonExhausted {
		return nil
	}

	var data events.Data
	if err := letter.Event.DataAs(&data); err != nil {
		return fmt.Errorf("decode event: %w", err)
	}

	s.sentinel.ExcludeGeneration(data.ID, data.Generation)
	s.log.Warn("resource is excluded until it changes", "resourceId", data.ID, "generation", data.Generation)

	return nil
}

// Health returns why no events are delivered. It returns nil if events are delivered or another replica
// is the leader.
func (s *Source) Health(ctx context.Context) error { return s.sentinel.CheckReady(ctx) }

// Standby returns why this process handles no events although no replica of it handles them, and an empty string
// otherwise.
func (s *Source) Standby() string { return s.sentinel.Standby() }

// Live returns why the process has to be restarted, and nil if a restart is not necessary.
func (s *Source) Live(ctx context.Context) error { return s.sentinel.CheckLive(ctx) }
