// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
)

// wakers hands news of hosted clusters to the controller, and never holds up who brings them.
type wakers struct {
	out chan<- event.GenericEvent
	// some is there when the set is not empty.
	some chan struct{}

	mu  sync.Mutex
	set map[types.NamespacedName]bool
}

func newWakers(out chan<- event.GenericEvent) *wakers {
	return &wakers{out: out, some: make(chan struct{}, 1), set: map[types.NamespacedName]bool{}}
}

func (w *wakers) wake(bridge types.NamespacedName) {
	w.mu.Lock()
	w.set[bridge] = true
	w.mu.Unlock()

	select {
	case w.some <- struct{}{}:
	default:
	}
}

func (w *wakers) take() []types.NamespacedName {
	w.mu.Lock()
	defer w.mu.Unlock()

	out := make([]types.NamespacedName, 0, len(w.set))
	for bridge := range w.set {
		out = append(out, bridge)
	}

	clear(w.set)

	return out
}

// Start hands on until the process ends; it is a manager.Runnable.
func (w *wakers) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.some:
		}

		for _, bridge := range w.take() {
			object := &v1alpha1.DPFHCPBridge{}
			object.Namespace, object.Name = bridge.Namespace, bridge.Name

			select {
			case <-ctx.Done():
				return nil
			case w.out <- event.GenericEvent{Object: object}:
			}
		}
	}
}
