// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/platform/broker"
)

// bus is what tests publish to and subscribe to: a broker, or queues alone.
type bus interface {
	Publish(ctx context.Context, topic string, event cloudevents.Event) error
	PublishRaw(ctx context.Context, topic string, body []byte) error
	Subscribe(ctx context.Context, topic, id string, handle broker.Handler) error
	Folded(topic, id string) int
}

// local are queues of this process, one for each topic, for one subscription each. What one
// gives up goes to the queue of its dead letters, as a broker publishes it.
type local struct {
	conf    platform.Broker
	metrics *broker.Metrics

	mu     sync.Mutex
	queues map[string]*broker.Queue
}

func newLocal(t *testing.T, conf platform.Broker) *local {
	t.Helper()

	metrics, err := broker.NewMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}

	return &local{conf: conf, metrics: metrics, queues: map[string]*broker.Queue{}}
}

func (l *local) queue(topic string) *broker.Queue {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.queues[topic] == nil {
		options := broker.QueueOptions{Conf: l.conf, Topic: topic, Subscription: "adapter", Metrics: l.metrics}

		if !strings.HasSuffix(topic, broker.DeadLetterSuffix) {
			options.GiveUp = func(given broker.Letter) error {
				body, err := given.Dead("adapter")
				if err == nil {
					l.queue(topic + broker.DeadLetterSuffix).AddRaw(body)
				}

				return err
			}
		}

		l.queues[topic] = broker.NewQueue(options)
	}

	return l.queues[topic]
}

func (l *local) Publish(_ context.Context, topic string, event cloudevents.Event) error {
	l.queue(topic).Add(event)

	return nil
}

func (l *local) PublishRaw(_ context.Context, topic string, body []byte) error {
	l.queue(topic).AddRaw(body)

	return nil
}

func (l *local) Subscribe(ctx context.Context, topic, _ string, handle broker.Handler) error {
	l.queue(topic).Run(ctx, handle)

	return nil
}

func (l *local) Folded(topic, id string) int { return l.metrics.Folded(topic, id) }
