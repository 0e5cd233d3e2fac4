// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"strconv"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// Folded is how many events of a subscription were folded into others.
func (b *Broker) Folded(topic, subscription string) int {
	return int(testutil.ToFloat64(b.metrics.consumed.WithLabelValues(topic, subscription, resultFolded)))
}

// PublishRaw publishes what need not be an event.
func (b *Broker) PublishRaw(ctx context.Context, topic string, body []byte) error {
	return b.over.publish(ctx, topic, message{id: strconv.Itoa(len(body)), body: body})
}
