// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ocm

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// record writes what is on the spoke into the book, and removes from there what the work
// no longer has.
func (a *Agent) record(ctx context.Context, book *unstructured.Unstructured, results []brought) error {
	var (
		kept []resource
		errs []error
	)

	for _, result := range results {
		if result.err == nil {
			kept = append(kept, result.resource)
		}
	}

	for _, old := range resourcesOf(book) {
		if slices.ContainsFunc(results, func(r brought) bool { return r.same(old) }) {
			if !slices.ContainsFunc(kept, old.same) {
				kept = append(kept, old)
			}

			continue
		}

		if gone, err := a.delete(ctx, book, old); err != nil || !gone {
			kept, errs = append(kept, old), append(errs, err)
		}
	}

	return errors.Join(append(errs, a.writeBook(ctx, book, kept))...)
}

func resourcesOf(book *unstructured.Unstructured) []resource {
	list, _, _ := unstructured.NestedSlice(book.Object, "status", "appliedResources")

	resources := make([]resource, 0, len(list))

	for _, item := range list {
		entry, _ := item.(map[string]any)
		get := func(field string) string {
			value, _ := entry[field].(string)

			return value
		}

		resources = append(resources, resource{
			gvr:       schema.GroupVersionResource{Group: get("group"), Version: get("version"), Resource: get("resource")},
			namespace: get("namespace"), name: get("name"),
		})
	}

	return resources
}

func (a *Agent) writeBook(ctx context.Context, book *unstructured.Unstructured, resources []resource) error {
	list := make([]any, 0, len(resources))

	for _, r := range resources {
		list = append(list, map[string]any{
			"group": r.gvr.Group, "version": r.gvr.Version, "resource": r.gvr.Resource, "namespace": r.namespace, "name": r.name,
		})
	}

	before, _, _ := unstructured.NestedSlice(book.Object, "status", "appliedResources")
	if reflect.DeepEqual(before, list) || len(before)+len(list) == 0 {
		return nil
	}

	if err := unstructured.SetNestedSlice(book.Object, list, "status", "appliedResources"); err != nil {
		return fmt.Errorf("write book: %w", err)
	}

	updated, err := a.applied.UpdateStatus(ctx, book, metav1.UpdateOptions{FieldManager: fieldManager})
	if err != nil {
		return fmt.Errorf("write book: %w", err)
	}

	*book = *updated

	return nil
}

// delete removes an object of the book's from the spoke, in the foreground, and says
// whether it is gone. One that has other owners or none of ours only loses ours.
func (a *Agent) delete(ctx context.Context, book *unstructured.Unstructured, at resource) (bool, error) {
	object, err := a.calls(at).Get(ctx, at.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}

	if err != nil {
		return false, fmt.Errorf("look at %s: %w", at.name, err)
	}

	others := slices.DeleteFunc(object.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.UID == book.GetUID() })

	switch {
	case len(others) == len(object.GetOwnerReferences()):
		return true, nil
	case len(others) > 0:
		object.SetOwnerReferences(others)

		_, err = a.calls(at).Update(ctx, object, metav1.UpdateOptions{FieldManager: fieldManager})

		return err == nil, err
	case object.GetDeletionTimestamp() != nil:
		return false, nil
	}

	uid, foreground := object.GetUID(), metav1.DeletePropagationForeground

	err = a.calls(at).Delete(ctx, at.name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &foreground,
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("delete %s: %w", at.name, err)
	}

	// The next look tells whether it has gone.
	return false, nil
}

// remove ends a work that is being deleted: first what is on the spoke, then the book,
// then the finalizer.
func (a *Agent) remove(ctx context.Context, work *unstructured.Unstructured) error {
	finalizers := work.GetFinalizers()
	if !slices.Contains(finalizers, workFinalizer) {
		return nil
	}

	gone, err := a.closeBook(ctx, work)
	if err != nil || !gone {
		a.soon(err == nil)

		return err
	}

	work.SetFinalizers(slices.DeleteFunc(finalizers, func(f string) bool { return f == workFinalizer }))

	if _, err := a.works.Update(ctx, work, metav1.UpdateOptions{FieldManager: fieldManager}); err != nil {
		return fmt.Errorf("remove finalizer: %w", err)
	}

	return nil
}

// soon has the agent look again without waiting for its interval.
func (a *Agent) soon(again bool) {
	if again {
		a.nudge()
	}
}

func (a *Agent) closeBook(ctx context.Context, work *unstructured.Unstructured) (bool, error) {
	book, err := a.applied.Get(ctx, a.bookName(work), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}

	if err != nil {
		return false, fmt.Errorf("read book: %w", err)
	}

	pending := []resource{}

	for _, at := range resourcesOf(book) {
		if !owned(work, at) {
			if err := a.disown(ctx, book, at); err != nil {
				return false, err
			}

			continue
		}

		gone, err := a.delete(ctx, book, at)
		if err != nil {
			return false, err
		}

		if !gone {
			pending = append(pending, at)
		}
	}

	if len(pending) > 0 {
		return false, a.writeBook(ctx, book, pending)
	}

	if err := a.applied.Delete(ctx, book.GetName(), metav1.DeleteOptions{}); err != nil {
		return false, fmt.Errorf("delete book: %w", err)
	}

	_, err = a.applied.Patch(ctx, book.GetName(), "application/merge-patch+json",
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("remove finalizer of book: %w", err)
	}

	return true, nil
}

// disown leaves an object on the spoke without its owner, so that it stays.
func (a *Agent) disown(ctx context.Context, book *unstructured.Unstructured, at resource) error {
	object, err := a.calls(at).Get(ctx, at.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("look at %s: %w", at.name, err)
	}

	owners := object.GetOwnerReferences()
	others := slices.DeleteFunc(slices.Clone(owners), func(o metav1.OwnerReference) bool { return o.UID == book.GetUID() })

	if len(others) == len(owners) {
		return nil
	}

	object.SetOwnerReferences(others)

	if _, err = a.calls(at).Update(ctx, object, metav1.UpdateOptions{FieldManager: fieldManager}); err != nil {
		return fmt.Errorf("leave %s: %w", at.name, err)
	}

	return nil
}
