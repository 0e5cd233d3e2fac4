// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Source is a source of a controller through which any goroutine can ask for passes. Names
// that come before the controller runs are kept. The zero value is ready to use.
type Source struct {
	mu      sync.Mutex
	queue   workqueue.TypedRateLimitingInterface[reconcile.Request]
	pending map[types.NamespacedName]struct{}
}

// Start is called by the controller with its queue.
func (s *Source) Start(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.queue = queue
	for name := range s.pending {
		queue.Add(reconcile.Request{NamespacedName: name})
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
func (s *Source) Enqueue(name types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.queue == nil {
		if s.pending == nil {
			s.pending = map[types.NamespacedName]struct{}{}
		}

		s.pending[name] = struct{}{}

		return
	}

	s.queue.Add(reconcile.Request{NamespacedName: name})
}

// For gives a call of Enqueue for one object.
func (s *Source) For(name types.NamespacedName) func() {
	return func() { s.Enqueue(name) }
}
