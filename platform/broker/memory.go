// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"sync"
)

var errTaken = errors.New("the topic has a subscription already, and there is one for each within a process")

// memory is a broker inside the process: a queue for each topic, of which one subscription at
// a time has all that is published, before it began as well. What it holds is gone with it.
type memory struct {
	mu     sync.Mutex
	topics map[string]*memoryQueue
}

func newMemory() *memory { return &memory{topics: map[string]*memoryQueue{}} }

type memoryQueue struct {
	mu      sync.Mutex
	waiting []memoryDelivery
	// returned were given back by a subscription that is ending.
	returned []memoryDelivery
	// into is nil while nobody has the queue.
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
		return err //nolint:wrapcheck // the caller says what was published
	}

	queue := m.queue(topic)

	queue.mu.Lock()
	defer queue.mu.Unlock()

	queue.waiting = append(queue.waiting, memoryDelivery{queue: queue, data: msg.body})
	queue.flush()

	return nil
}

func (m *memory) consume(_ context.Context, topic, _ string, into sink) (consumer, error) {
	queue := m.queue(topic)

	queue.mu.Lock()
	defer queue.mu.Unlock()

	if queue.taken {
		return nil, errTaken
	}

	queue.into, queue.taken = into, true
	queue.flush()

	return queue, nil
}

func (m *memory) health(ctx context.Context) error { return ctx.Err() }

func (m *memory) close() {}

// flush hands out what waits; mu is held.
func (q *memoryQueue) flush() {
	if q.into == nil {
		return
	}

	for _, d := range q.waiting {
		q.into(d)
	}

	q.waiting = nil
}

func (q *memoryQueue) quiet() {
	q.mu.Lock()
	defer q.mu.Unlock()

	q.into = nil
}

func (q *memoryQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()

	q.waiting, q.returned, q.taken = append(q.returned, q.waiting...), nil, false
}

type memoryDelivery struct {
	queue *memoryQueue
	data  []byte
}

func (d memoryDelivery) body() []byte { return d.data }
func (d memoryDelivery) tries() int   { return 0 }
func (d memoryDelivery) ack() error   { return nil }
func (d memoryDelivery) alive() bool  { return true }

func (d memoryDelivery) release() {
	d.queue.mu.Lock()
	defer d.queue.mu.Unlock()

	d.queue.returned = append(d.queue.returned, d)
}
