// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"sync"
)

var errTaken = errors.New("the topic has had a subscription, and there is one for each within a process")

// memory is a broker inside the process: a queue for each topic, whose one subscription has
// all that is published, before it began as well. What it holds is gone with it.
type memory struct {
	mu     sync.Mutex
	topics map[string]*memoryQueue
}

func newMemory() *memory { return &memory{topics: map[string]*memoryQueue{}} }

type memoryQueue struct {
	mu      sync.Mutex
	waiting []memoryDelivery
	// into is nil before the subscription, and at its end.
	into  sink
	taken bool
}

func (m *memory) queue(topic string) *memoryQueue {
	m.mu.Lock()
	defer m.mu.Unlock()

	if m.topics[topic] == nil {
		m.topics[topic] = &memoryQueue{}
	}

	return m.topics[topic]
}

func (m *memory) publish(ctx context.Context, topic string, msg message) error {
	if err := ctx.Err(); err != nil {
		return err
	}

	queue := m.queue(topic)

	queue.mu.Lock()
	defer queue.mu.Unlock()

	switch d := memoryDelivery(msg.body); {
	case queue.into != nil:
		queue.into(d)
	case !queue.taken:
		queue.waiting = append(queue.waiting, d)
	}

	return nil
}

func (m *memory) consume(_ context.Context, topic, _ string, into sink) (consumer, error) {
	queue := m.queue(topic)

	queue.mu.Lock()
	defer queue.mu.Unlock()

	if queue.taken {
		return nil, errTaken
	}

	for _, d := range queue.waiting {
		into(d)
	}

	queue.into, queue.waiting, queue.taken = into, nil, true

	return queue, nil
}

func (m *memory) health(ctx context.Context) error { return ctx.Err() }

func (m *memory) close() {}

func (q *memoryQueue) quiet() {
	q.mu.Lock()
	defer q.mu.Unlock()

	q.into = nil
}

func (q *memoryQueue) close() {}

// memoryDelivery is an event, which nobody takes back.
type memoryDelivery []byte

func (d memoryDelivery) body() []byte { return d }
func (d memoryDelivery) tries() int   { return 0 }
func (d memoryDelivery) ack() error   { return nil }
func (d memoryDelivery) alive() bool  { return true }
func (d memoryDelivery) release()     {}
