// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// Finalize runs the deletion steps of an object and removes the finalizer once every step is done. If
// another finalizer keeps the object, Finalize writes the final status before it removes its own.
// Otherwise removing the finalizer deletes the object, and nobody could read the status. If the object
// does not have the finalizer, its cleanup is complete and Finalize does nothing.
func Finalize[S any](
	ctx context.Context, r *Reconciler, obj Object, finalizer string, steps []Step[S], scope S,
) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(obj, finalizer) {
		return ctrl.Result{}, nil
	}

	patcher, err := newStatusPatcher(r, obj, nil)
	if err != nil {
		return ctrl.Result{}, err
	}

	last := runSteps(ctx, r, obj, steps, scope, patcher)
	hasOtherFinalizers := len(obj.GetFinalizers()) > 1

	if !last.IsDone() || hasOtherFinalizers {
		// Steps that wait, and a write that failed or was deferred, need another run before the finalizer goes.
		if result, err := finishReconcile(ctx, r, patcher, last); !last.IsDone() || err != nil || !result.IsZero() {
			return result, err
		}
	}

	// The patch below replaces obj with the server's response, and so loses the status of this run.
	finalized, ok := obj.DeepCopyObject().(Object)
	if !ok {
		return ctrl.Result{}, fmt.Errorf("copy %T: the copy has no conditions", obj)
	}

	err = patchFinalizer(ctx, r.Client, obj, func() { controllerutil.RemoveFinalizer(obj, finalizer) })

	switch {
	case apierrors.IsNotFound(err):
		return ctrl.Result{}, nil
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: conflictRetryDelay}, nil
	case err != nil:
		return ctrl.Result{}, err
	}

	r.states.deleteState(obj)
	patcher.obj = finalized

	if !hasOtherFinalizers {
		patcher.afterWrite(ctx, patcher.serverConditions())
	}

	runCallbacks(&patcher.onFinalized)

	return ctrl.Result{}, nil
}

// EnsureFinalizer adds the finalizer to the object and patches the object, unless the finalizer is
// present. A controller calls EnsureFinalizer before its first step and returns the error.
func EnsureFinalizer(ctx context.Context, r *Reconciler, obj Object, finalizer string) error {
	if controllerutil.ContainsFinalizer(obj, finalizer) {
		return nil
	}

	return patchFinalizer(ctx, r.Client, obj, func() { controllerutil.AddFinalizer(obj, finalizer) })
}

// patchFinalizer patches the object's finalizers. A merge patch replaces the finalizers as one list, so
// the patch contains the resourceVersion of obj and fails if obj is stale.
func patchFinalizer(ctx context.Context, c client.Client, obj Object, change func()) error {
	base, ok := obj.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("copy %T: the copy is not a client object", obj)
	}

	change()

	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	if err := c.Patch(ctx, obj, patch); err != nil {
		return fmt.Errorf("patch finalizers of %s: %w", client.ObjectKeyFromObject(obj), err)
	}

	return nil
}
