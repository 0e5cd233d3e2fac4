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
// every step is done and that is on record. An object without the finalizer is
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

	result, done, err := run(ctx, r, obj, steps, scope, write)
	if err != nil || !done {
		return result, err
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
