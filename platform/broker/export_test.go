// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"strconv"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

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

	return c.over.publish(ctx, topic, message{id: strconv.Itoa(len(body)), body: body})
}
