// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package wake

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Source is a source of a controller that any goroutine can wake objects through. Names
// woken before the controller runs are kept. The zero value is ready to use.
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

// Wake asks for a pass over the named object. It does not block.
func (s *Source) Wake(name types.NamespacedName) {
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
