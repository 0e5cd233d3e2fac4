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

// Finalize runs the deletion list of an object and takes the finalizer off once
// every step is done. That is put on record first where somebody else's finalizer keeps the
// object; else it is gone, and nobody could read it. An object without the finalizer is
// left alone: its cleanup is over.
func Finalize[S any](
	ctx context.Context, r *Runner, obj Object, finalizer string, steps []Step[S], scope S,
) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(obj, finalizer) {
		return ctrl.Result{}, nil
	}

	write, err := newWriter(r, obj, nil)
	if err != nil {
		return ctrl.Result{}, err
	}

	last := run(ctx, r, obj, steps, scope, write)
	kept := len(obj.GetFinalizers()) > 1

	if !last.IsDone() || kept {
		if result, err := finish(ctx, r, write, last); !last.IsDone() || err != nil || !result.IsZero() {
			return result, err
		}
	}

	// The answer to the patch has the status that the server has.
	end, ok := obj.DeepCopyObject().(Object)
	if !ok {
		return ctrl.Result{}, fmt.Errorf("copy %T: the copy has no conditions", obj)
	}

	err = patchFinalizer(ctx, r.Client, obj, func() { controllerutil.RemoveFinalizer(obj, finalizer) })

	switch {
	case apierrors.IsNotFound(err):
		return ctrl.Result{}, nil
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: conflictRetry}, nil
	case err != nil:
		return ctrl.Result{}, err
	}

	r.memory.forget(obj)
	write.obj = end

	if !kept {
		write.written(ctx, write.conditions())
	}

	runAll(&write.onFinalized)

	return ctrl.Result{}, nil
}

// EnsureFinalizer puts the finalizer on the object and writes it, if it isn't
// there. A controller calls it before its first step, and returns its error.
func EnsureFinalizer(ctx context.Context, r *Runner, obj Object, finalizer string) error {
	if controllerutil.ContainsFinalizer(obj, finalizer) {
		return nil
	}

	return patchFinalizer(ctx, r.Client, obj, func() { controllerutil.AddFinalizer(obj, finalizer) })
}

// patchFinalizer writes a change of the object's finalizers, which are one list to
// a merge patch: hence the resourceVersion as read goes with it.
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
