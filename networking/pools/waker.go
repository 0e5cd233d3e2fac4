// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"context"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Waker is a source of a controller through which the address registry wakes objects. The zero value
// is ready to use.
type Waker struct {
	queue atomic.Pointer[workqueue.TypedRateLimitingInterface[reconcile.Request]]
}

// Start is called by the controller with its queue.
func (w *Waker) Start(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	w.queue.Store(&queue)

	return nil
}

// For gives what wakes one object, for Request.Wake. Before the controller runs it does
// nothing: all objects are looked at then.
func (w *Waker) For(object types.NamespacedName) func() {
	return func() {
		if queue := w.queue.Load(); queue != nil {
			(*queue).Add(reconcile.Request{NamespacedName: object})
		}
	}
}
