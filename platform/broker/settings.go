// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"cmp"
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

// completed has the defaults in the place of what is not said.
func completed(conf platform.Broker) platform.Broker {
	conf.Parallelism = cmp.Or(max(conf.Parallelism, 0), defaultParallelism)
	conf.MaxDeliveries = cmp.Or(max(conf.MaxDeliveries, 0), defaultMaxDeliveries)
	conf.MinBackoff = cmp.Or(max(conf.MinBackoff, 0), defaultMinBackoff)
	conf.MaxBackoff = max(cmp.Or(max(conf.MaxBackoff, 0), defaultMaxBackoff), conf.MinBackoff)

	return conf
}

// backoff is the pause after so many tries: twice as long each time, give or take a
// tenth.
func (c *core) backoff(tries int) time.Duration {
	const tenth = 0.1

	wait := c.conf.MinBackoff
	for range tries - 1 {
		if wait >= c.conf.MaxBackoff {
			break
		}

		wait *= 2
	}

	wait = min(wait, c.conf.MaxBackoff)

	return wait + time.Duration((2*rand.Float64()-1)*tenth*float64(wait)) //nolint:gosec,mnd // jitter needs no secret
}

// Open connects to the configured broker. Log and registerer may be nil.
func Open(ctx context.Context, conf platform.Broker, log *slog.Logger, registerer prometheus.Registerer) (Broker, error) {
	c, err := newCore(conf, log, registerer)
	if err != nil {
		return nil, err
	}

	switch conf.Type {
	case platform.BrokerMemory:
		c.over = newMemory()
	case platform.BrokerRabbitMQ:
		c.over, err = dialRabbit(ctx, conf.RabbitMQ, c.log)
	default:
		err = fmt.Errorf("broker.type: %q: write memory or rabbitmq", conf.Type)
	}

	if err != nil {
		return nil, err
	}

	return c, nil
}

// NewMemory makes a broker inside the process, with the configuration's numbers: a topic has
// one subscription, which has all that is published, before anybody has subscribed as well.
func NewMemory(conf platform.Broker, log *slog.Logger, registerer prometheus.Registerer) (Broker, error) {
	conf.Type = platform.BrokerMemory

	return Open(context.Background(), conf, log, registerer)
}
