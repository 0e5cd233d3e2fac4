// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
)

const (
	defaultParallelism   = 8
	defaultMaxDeliveries = 10
	defaultMinBackoff    = 500 * time.Millisecond
	defaultMaxBackoff    = 30 * time.Second
)

// settings are what the order of events goes by.
type settings struct {
	parallelism, maxDeliveries int
	minBackoff, maxBackoff     time.Duration
}

func settingsOf(conf platform.Broker) settings {
	set := settings{
		parallelism: conf.Parallelism, maxDeliveries: conf.MaxDeliveries,
		minBackoff: conf.MinBackoff, maxBackoff: conf.MaxBackoff,
	}
	if set.parallelism <= 0 {
		set.parallelism = defaultParallelism
	}

	if set.maxDeliveries <= 0 {
		set.maxDeliveries = defaultMaxDeliveries
	}

	if set.minBackoff <= 0 {
		set.minBackoff = defaultMinBackoff
	}

	if set.maxBackoff <= 0 {
		set.maxBackoff = defaultMaxBackoff
	}

	set.maxBackoff = max(set.maxBackoff, set.minBackoff)

	return set
}

// backoff is the pause after so many tries: twice as long each time, give or take a
// tenth.
func (s settings) backoff(tries int) time.Duration {
	const tenth = 0.1

	wait := s.minBackoff
	for range tries - 1 {
		if wait >= s.maxBackoff {
			break
		}

		wait *= 2
	}

	wait = min(wait, s.maxBackoff)

	return wait + time.Duration((2*rand.Float64()-1)*tenth*float64(wait)) //nolint:gosec,mnd // jitter needs no secret
}

// Open connects to the configured broker.
func Open(ctx context.Context, conf platform.Broker, log *slog.Logger, registerer prometheus.Registerer) (Broker, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}

	m, err := newMeters(registerer)
	if err != nil {
		return nil, err
	}

	var over transport

	switch conf.Type {
	case platform.BrokerMemory:
		over = newMemory()
	case platform.BrokerRabbitMQ:
		over, err = dialRabbit(ctx, conf.RabbitMQ, log)
	default:
		return nil, fmt.Errorf("broker.type: %q: write memory or rabbitmq", conf.Type)
	}

	if err != nil {
		return nil, err
	}

	return newCore(over, settingsOf(conf), log, m), nil
}

// NewMemory makes a broker inside the process, with the configuration's numbers. Log and
// registerer may be nil.
func NewMemory(conf platform.Broker, log *slog.Logger, registerer prometheus.Registerer) (Broker, error) {
	conf.Type = platform.BrokerMemory

	return Open(context.Background(), conf, log, registerer)
}

// NewQueue is NewMemory with one subscription that has all that is published, before
// anybody has subscribed, and the dead letters too.
func NewQueue(
	conf platform.Broker, topic, subscriptionID string, log *slog.Logger, registerer prometheus.Registerer,
) (Broker, error) {
	m, err := newMeters(registerer)
	if err != nil {
		return nil, err
	}

	over := newMemory()
	over.queue(topic, subscriptionID)
	over.queue(topic+DeadLetterSuffix, subscriptionID)

	return newCore(over, settingsOf(conf), log, m), nil
}
