// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"slices"
	"sync"
)

// memory is a broker inside the process. What it holds is gone with it.
type memory struct {
	mu     sync.Mutex
	topics map[string]map[string]*memoryQueue
}

func newMemory() *memory { return &memory{topics: map[string]map[string]*memoryQueue{}} }

// memoryQueue is a subscription. The first of its consumers is given the messages; when
// it ends, the next one takes over.
type memoryQueue struct {
	mu      sync.Mutex
	waiting []*memoryDelivery
	// returned were given back by the active consumer, which is ending.
	returned  []*memoryDelivery
	consumers []*memoryConsumer
}

func (m *memory) publish(ctx context.Context, topic string, msg message) error {
	if err := ctx.Err(); err != nil {
		return err //nolint:wrapcheck // the caller says what was published
	}

	m.mu.Lock()
	defer m.mu.Unlock()

	for _, queue := range m.topics[topic] {
		queue.push(&memoryDelivery{queue: queue, data: msg.body})
	}

	return nil
}

// queue gives a subscription's queue, which is made if there is none.
func (m *memory) queue(topic, subscription string) *memoryQueue {
	m.mu.Lock()
	defer m.mu.Unlock()

	if m.topics[topic] == nil {
		m.topics[topic] = map[string]*memoryQueue{}
	}

	queue := m.topics[topic][subscription]
	if queue == nil {
		queue = &memoryQueue{}
		m.topics[topic][subscription] = queue
	}

	return queue
}

func (m *memory) consume(_ context.Context, topic, subscription string, into sink) (consumer, error) {
	queue := m.queue(topic, subscription)
	c := &memoryConsumer{queue: queue, into: into}

	queue.mu.Lock()
	defer queue.mu.Unlock()

	queue.consumers = append(queue.consumers, c)
	queue.flush()

	return c, nil
}

func (m *memory) health(ctx context.Context) error { return ctx.Err() }

func (m *memory) close() {}

func (q *memoryQueue) push(d *memoryDelivery) {
	q.mu.Lock()
	defer q.mu.Unlock()

	q.waiting = append(q.waiting, d)
	q.flush()
}

// flush hands out what waits to the consumer that is active, if there is one.
func (q *memoryQueue) flush() {
	if len(q.consumers) == 0 || q.consumers[0].ending {
		return
	}

	out := q.waiting
	q.waiting = nil

	for _, d := range out {
		q.consumers[0].into(d)
	}
}

type memoryConsumer struct {
	queue *memoryQueue
	into  sink
	// ending says that it takes no more; the next one follows when it has closed.
	ending bool
}

func (c *memoryConsumer) quiet() {
	c.queue.mu.Lock()
	defer c.queue.mu.Unlock()

	c.ending = true
}

func (c *memoryConsumer) close() {
	c.queue.mu.Lock()
	defer c.queue.mu.Unlock()

	c.queue.consumers = slices.DeleteFunc(c.queue.consumers, func(other *memoryConsumer) bool { return other == c })
	c.queue.waiting = append(c.queue.returned, c.queue.waiting...)
	c.queue.returned = nil
	c.queue.flush()
}

type memoryDelivery struct {
	queue *memoryQueue
	data  []byte
}

func (d *memoryDelivery) body() []byte { return d.data }
func (d *memoryDelivery) tries() int   { return 0 }
func (d *memoryDelivery) ack() error   { return nil }
func (d *memoryDelivery) alive() bool  { return true }

func (d *memoryDelivery) release() {
	d.queue.mu.Lock()
	defer d.queue.mu.Unlock()

	d.queue.returned = append(d.queue.returned, d)
}
