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

type memoryQueue struct {
	waiting []delivery
	// into is nil before the subscription, and at its end.
	into  func(delivery)
	taken bool
}

// queue gives that of a topic; mu is held.
func (m *memory) queue(topic string) *memoryQueue {
	if m.topics[topic] == nil {
		m.topics[topic] = &memoryQueue{}
	}

	return m.topics[topic]
}

func (m *memory) publish(ctx context.Context, topic string, msg message) error {
	if err := ctx.Err(); err != nil {
		return err
	}

	m.mu.Lock()
	defer m.mu.Unlock()

	queue := m.queue(topic)
	// Nobody takes it back.
	d := delivery{body: msg.body, ack: func() error { return nil }, alive: func() bool { return true }}

	switch {
	case queue.into != nil:
		queue.into(d)
	case !queue.taken:
		queue.waiting = append(queue.waiting, d)
	}

	return nil
}

func (m *memory) consume(ctx context.Context, topic, _ string, into func(delivery)) error {
	m.mu.Lock()
	defer m.mu.Unlock()

	queue := m.queue(topic)
	if queue.taken {
		return errTaken
	}

	for _, d := range queue.waiting {
		into(d)
	}

	queue.into, queue.waiting, queue.taken = into, nil, true

	m.mu.Unlock()
	<-ctx.Done()
	m.mu.Lock()

	queue.into = nil

	return nil
}

func (m *memory) health(ctx context.Context) error { return ctx.Err() }

func (m *memory) close() {}
