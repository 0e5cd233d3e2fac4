// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"encoding/json"
	"strconv"

	"github.com/prometheus/client_golang/prometheus/testutil"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Folded is how many events of a subscription were folded into others.
func (m *Metrics) Folded(topic, subscription string) int {
	return int(testutil.ToFloat64(m.consumed.WithLabelValues(topic, subscription, resultFolded)))
}

// Folded is how many events of a subscription were folded into others.
func (b *Broker) Folded(topic, subscription string) int { return b.metrics.Folded(topic, subscription) }

// PublishRaw publishes what need not be an event.
func (b *Broker) PublishRaw(ctx context.Context, topic string, body []byte) error {
	return b.publish(ctx, topic, amqp.Publishing{MessageId: strconv.Itoa(len(body)), Body: body})
}

// AddRaw puts in line what need not be an event.
func (q *Queue) AddRaw(body []byte) {
	q.take(body, 0, func() error { return nil }, func() bool { return true })
}

// Dead is the body of the dead letter that a broker publishes.
func (l Letter) Dead(subscription string) ([]byte, error) {
	event, _ := l.dead(subscription)

	return json.Marshal(event)
}
