// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Source is a controller's source through which any goroutine can enqueue reconcile requests. Requests
// that are enqueued before the controller starts are kept until it starts. The zero value is ready to
// use.
type Source struct {
	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
	// pending holds the requests that were enqueued before Start, and whether each is urgent.
	pending map[types.NamespacedName]bool
}

// urgentPriority is the priority of urgent requests. Other requests have priority 0.
const urgentPriority = 1

// Start implements source.Source. The controller calls it with its queue.
func (s *Source) Start(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.queue = queue
	for name, isUrgent := range s.pending {
		s.add(name, isUrgent)
	}

	s.pending = nil

	return nil
}

// IsStarted returns whether the controller has started. A controller that has not started reconciles all
// objects when it starts.
func (s *Source) IsStarted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.queue != nil
}

// Enqueue enqueues a reconcile request for the named object. It does not block.
func (s *Source) Enqueue(name types.NamespacedName) { s.EnqueueWithUrgency(name, false) }

// EnqueueWithUrgency enqueues a reconcile request for the named object. It does not block. Urgent
// requests are reconciled before all others that are due. The priority applies to this request
// only: if the controller requeues the object with its result, the result sets the priority.
func (s *Source) EnqueueWithUrgency(name types.NamespacedName, isUrgent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.queue == nil {
		if s.pending == nil {
			s.pending = map[types.NamespacedName]bool{}
		}

		s.pending[name] = s.pending[name] || isUrgent

		return
	}

	s.add(name, isUrgent)
}

func (s *Source) add(name types.NamespacedName, isUrgent bool) {
	request := reconcile.Request{NamespacedName: name}

	if queue, ok := s.queue.(priorityqueue.PriorityQueue[reconcile.Request]); ok && isUrgent {
		queue.AddWithOpts(priorityqueue.AddOpts{Priority: new(urgentPriority)}, request)

		return
	}

	s.queue.Add(request)
}

// EnqueueFunc returns a function that calls Enqueue for the named object.
func (s *Source) EnqueueFunc(name types.NamespacedName) func() {
	return func() { s.Enqueue(name) }
}
