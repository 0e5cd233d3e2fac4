// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ErrOutsideStep is what Save returns to a caller that no Run has called.
var ErrOutsideStep = errors.New("save status: the context is not that of a step")

// writer patches an object's status with the difference to what was last read or
// written.
type writer struct {
	client client.Client
	obj    Object
	base   client.Object
	// tell puts a result of the step that runs into the conditions.
	tell func(Result)
}

type writerKey struct{}

func newWriter(c client.Client, obj Object) (*writer, error) {
	w := &writer{client: c, obj: obj}

	if err := w.rebase(); err != nil {
		return nil, err
	}

	return w, nil
}

// rebase takes the object as it is now as what the server has.
func (w *writer) rebase() error {
	base, ok := w.obj.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("copy %T: the copy is not a client object", w.obj)
	}

	w.base = base

	return nil
}

// save sends the difference, if there is one. The patch carries the resourceVersion
// as read: conditions are one list to a merge patch, and a stale copy must not
// replace it.
func (w *writer) save(ctx context.Context) error {
	diff, err := client.MergeFrom(w.base).Data(w.obj)
	if err != nil {
		return fmt.Errorf("compare status of %s: %w", client.ObjectKeyFromObject(w.obj), err)
	}

	if bytes.Equal(diff, []byte("{}")) {
		return nil
	}

	patch := client.MergeFromWithOptions(w.base, client.MergeFromWithOptimisticLock{})
	if err := w.client.Status().Patch(ctx, w.obj, patch); err != nil {
		return fmt.Errorf("patch status of %s: %w", client.ObjectKeyFromObject(w.obj), err)
	}

	return w.rebase()
}

func withWriter(ctx context.Context, w *writer) context.Context {
	return context.WithValue(ctx, writerKey{}, w)
}

// Save writes the object's status at once, from within a step: for a fact that
// must be on record before the step acts on it, such as the id of a machine about
// to be made. A step that gets an error must not act, and returns Fail(err); a
// conflict then leads to a quiet second run on a fresh copy.
func Save(ctx context.Context) error {
	w, ok := ctx.Value(writerKey{}).(*writer)
	if !ok {
		return ErrOutsideStep
	}

	return w.save(ctx)
}

// SaveAs is Save with the conditions as the result has them, which the step is about to
// return. It is for a step whose act makes its copy of the object stale, such as deleting
// the object: what the step returns after that could not be written any more.
func SaveAs(ctx context.Context, result Result) error {
	w, ok := ctx.Value(writerKey{}).(*writer)
	if !ok {
		return ErrOutsideStep
	}

	w.tell(result)

	return w.save(ctx)
}
