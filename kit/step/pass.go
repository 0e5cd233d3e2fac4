// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
)

// Plan is what a controller does with objects of its kind.
type Plan[S any] struct {
	// Finalizer keeps an object until Deletion is done. Required with Deletion.
	Finalizer string
	// Steps of an object that is wanted, Deletion of one that is not.
	Steps, Deletion []Step[S]
	// Ready, if set, is emitted by the Runner's Recorder when an object has become ready; and
	// one that waits emits why, as one that fails does.
	Ready *ReadyEvent
}

// ReadyEvent is what is said of an object that has become ready.
type ReadyEvent struct {
	// Reason is a CamelCase word, Message is for people.
	Reason, Message string
}

// Pass makes one pass over one object: its deletion list if it is being deleted, else
// its list of steps, with the finalizer put on it first.
func Pass[S any](ctx context.Context, r *Runner, obj Object, plan Plan[S], scope S) (ctrl.Result, error) {
	if r.memory.behind(obj, r.clock().Now()) {
		return ctrl.Result{RequeueAfter: cacheRetry}, nil
	}

	if !obj.GetDeletionTimestamp().IsZero() {
		return Finalize(ctx, r, obj, plan.Finalizer, plan.Deletion, scope)
	}

	if err := EnsureFinalizer(ctx, r, obj, plan.Finalizer); err != nil {
		return ctrl.Result{}, err
	}

	write, err := newWriter(r, obj, plan.Ready)
	if err != nil {
		return ctrl.Result{}, err
	}

	return finish(ctx, r, write, run(ctx, r, obj, plan.Steps, scope, write))
}

// IsReady says whether an object that another controller reports on is ready.
func IsReady(obj Object) bool { return meta.IsStatusConditionTrue(*obj.StatusConditions(), Ready) }

// WhyNot says in words why an object that another controller reports on is not ready.
func WhyNot(obj Object) string {
	ready := meta.FindStatusCondition(*obj.StatusConditions(), Ready)
	if ready == nil || ready.Message == "" {
		return "it has not been looked at yet"
	}

	return ready.Message
}
