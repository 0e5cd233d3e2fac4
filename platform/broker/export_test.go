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

// Folded returns how many events of a subscription were folded.
func (m *Metrics) Folded(topic, subscription string) int {
	return int(testutil.ToFloat64(m.consumed.WithLabelValues(topic, subscription, resultFolded)))
}

// Folded returns how many events of a subscription were folded.
func (b *Broker) Folded(topic, subscription string) int { return b.metrics.Folded(topic, subscription) }

// PublishRaw publishes a message that need not be an event.
func (b *Broker) PublishRaw(ctx context.Context, topic string, body []byte) error {
	return b.publish(ctx, topic, amqp.Publishing{MessageId: strconv.Itoa(len(body)), Body: body})
}

// AddRaw adds a message that need not be an event to the queue.
func (q *Queue) AddRaw(body []byte) {
	q.addDelivery(body, 0, func() error { return nil }, func() bool { return true })
}

// Dead returns the body of the dead letter that a broker publishes.
func (l Letter) Dead(subscription string) ([]byte, error) {
	event, _ := l.toDeadLetter(subscription)

	return json.Marshal(event)
}
