// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
)

// Silence is after what silence of a process OpenQuickly has NATS give its part to another one.
const Silence = 4500 * time.Millisecond

// OpenQuickly is Open with short waits. What was subscribed with it may not outlive a kill of
// RabbitMQ that comes at once.
func OpenQuickly(ctx context.Context, conf platform.Broker, log *slog.Logger, registerer prometheus.Registerer) (Broker, error) {
	return open(ctx, conf, pace{settle: 50 * time.Millisecond, pinned: Silence}, log, registerer)
}

// Folded is how many events of a subscription were folded into others.
func Folded(b Broker, topic, subscription string) int {
	c, ok := b.(*core)
	if !ok {
		return 0
	}

	return int(testutil.ToFloat64(c.metrics.consumed.WithLabelValues(topic, subscription, resultFolded)))
}

// PublishRaw publishes what need not be an event.
func PublishRaw(ctx context.Context, b Broker, topic string, body []byte) error {
	c, ok := b.(*core)
	if !ok {
		return errors.ErrUnsupported
	}

	return c.over.publish(ctx, topic, message{id: strconv.Itoa(len(body)), key: "raw", body: body})
}

// LastPartKey is a key of the part that a subscription consumes last.
func LastPartKey() string {
	for i := 0; ; i++ {
		if key := "warm-up-" + strconv.Itoa(i); partition(key) == partitionCount-1 {
			return key
		}
	}
}

// PartKeys is a key of each part.
func PartKeys() []string {
	out := make([]string, partitionCount)

	for i, found := 0, 0; found < partitionCount; i++ {
		key := "part-" + strconv.Itoa(i)
		if part := partition(key); out[part] == "" {
			out[part] = key
			found++
		}
	}

	return out
}
