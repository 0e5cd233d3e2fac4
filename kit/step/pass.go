// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
)

// Plan is what a controller does with objects of its kind.
type Plan[S any] struct {
	// Finalizer keeps an object until Deletion is done. Required with Deletion.
	Finalizer string
	// Steps of an object that is wanted, Deletion of one that is not.
	Steps, Deletion []Step[S]
}

// Pass makes one pass over one object: its deletion list if it is being deleted, else
// its list of steps, with the finalizer put on it first.
func Pass[S any](ctx context.Context, r *Runner, obj Object, plan Plan[S], scope S) (ctrl.Result, error) {
	if !obj.GetDeletionTimestamp().IsZero() {
		return Finalize(ctx, r, obj, plan.Finalizer, plan.Deletion, scope)
	}

	if err := EnsureFinalizer(ctx, r, obj, plan.Finalizer); err != nil {
		return ctrl.Result{}, err
	}

	return Run(ctx, r, obj, plan.Steps, scope)
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

// Readiness is an object's condition Ready as it was at some time; nil where there was
// none.
func Readiness(obj Object) *metav1.Condition {
	return meta.FindStatusCondition(*obj.StatusConditions(), Ready).DeepCopy()
}

// Announce emits an event when an object has become ready since before, in the given
// words, or when the reason why it is not has changed.
func Announce(recorder events.EventRecorder, obj Object, before *metav1.Condition, reason, message string) {
	after := Readiness(obj)
	if after == nil || (before != nil && before.Status == after.Status && before.Reason == after.Reason) {
		return
	}

	if after.Status == metav1.ConditionTrue {
		if before == nil || before.Status != metav1.ConditionTrue {
			recorder.Eventf(obj, nil, corev1.EventTypeNormal, reason, "Check", "%s", message)
		}

		return
	}

	recorder.Eventf(obj, nil, corev1.EventTypeWarning, after.Reason, "Check", "%s", after.Message)
}
