// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Source is a source of a controller through which any goroutine can ask for passes. Names
// that come before the controller runs are kept. The zero value is ready to use.
type Source struct {
	mu      sync.Mutex
	queue   workqueue.TypedRateLimitingInterface[reconcile.Request]
	pending map[types.NamespacedName]bool // whether it is urgent
}

// first is the priority of what somebody waits for: others have 0.
const first = 1

// Start is called by the controller with its queue.
func (s *Source) Start(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.queue = queue
	for name, urgent := range s.pending {
		s.add(name, urgent)
	}

	s.pending = nil

	return nil
}

// Started tells whether the controller runs: one that does not will look at all objects by
// itself.
func (s *Source) Started() bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.queue != nil
}

// Enqueue asks for a pass over the named object. It does not block.
func (s *Source) Enqueue(name types.NamespacedName) { s.EnqueueFor(name, false) }

// EnqueueFor does as Enqueue. A pass that somebody waits for, which is urgent, comes before those
// of others that are due. The priority is this pass's: a controller that asks for another by its
// result says with which.
func (s *Source) EnqueueFor(name types.NamespacedName, urgent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.queue == nil {
		if s.pending == nil {
			s.pending = map[types.NamespacedName]bool{}
		}

		s.pending[name] = s.pending[name] || urgent

		return
	}

	s.add(name, urgent)
}

func (s *Source) add(name types.NamespacedName, urgent bool) {
	request := reconcile.Request{NamespacedName: name}

	if queue, ok := s.queue.(priorityqueue.PriorityQueue[reconcile.Request]); ok && urgent {
		queue.AddWithOpts(priorityqueue.AddOpts{Priority: new(first)}, request)

		return
	}

	s.queue.Add(request)
}

// For gives a call of Enqueue for one object.
func (s *Source) For(name types.NamespacedName) func() {
	return func() { s.Enqueue(name) }
}
