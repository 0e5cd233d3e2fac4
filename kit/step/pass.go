// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
)

// Plan lists the steps of a controller.
type Plan[S any] struct {
	// Finalizer keeps an object until all DeletionSteps are done. Required with DeletionSteps.
	Finalizer string
	// Steps run for an object that is not being deleted, DeletionSteps for one that is.
	Steps, DeletionSteps []Step[S]
	// ReadyEvent, if set, is emitted by the Recorder of the Reconciler when an object becomes ready. If
	// it is set, an object that waits also emits an event with the reason, as one that fails does.
	ReadyEvent *ReadyEvent
}

// ReadyEvent is the event for an object that has become ready.
type ReadyEvent struct {
	// Reason is a CamelCase word, Message is for people.
	Reason, Message string
}

// Reconcile reconciles one object. If the object is being deleted, Reconcile calls Finalize with the
// deletion steps. Otherwise it adds the finalizer, runs the steps, and writes the status. If the cache
// has not yet received this process's last write of the object, it runs no step and requeues.
func Reconcile[S any](ctx context.Context, r *Reconciler, obj Object, plan Plan[S], scope S) (ctrl.Result, error) {
	if r.states.isCacheBehind(obj, r.clock().Now()) {
		return ctrl.Result{RequeueAfter: cacheRetryDelay}, nil
	}

	if !obj.GetDeletionTimestamp().IsZero() {
		return Finalize(ctx, r, obj, plan.Finalizer, plan.DeletionSteps, scope)
	}

	if err := EnsureFinalizer(ctx, r, obj, plan.Finalizer); err != nil {
		return ctrl.Result{}, err
	}

	patcher, err := newStatusPatcher(r, obj, plan.ReadyEvent)
	if err != nil {
		return ctrl.Result{}, err
	}

	return finishReconcile(ctx, r, patcher, runSteps(ctx, r, obj, plan.Steps, scope, patcher))
}

// IsReady returns whether the Ready condition of the object is True.
func IsReady(obj Object) bool { return meta.IsStatusConditionTrue(*obj.StatusConditions(), Ready) }

// NotReadyMessage returns the message of the Ready condition of an object that is not ready, or a text that
// says that the object has not been reconciled if there is no message.
func NotReadyMessage(obj Object) string {
	ready := meta.FindStatusCondition(*obj.StatusConditions(), Ready)
	if ready == nil || ready.Message == "" {
		return "it has not been reconciled yet"
	}

	return ready.Message
}
