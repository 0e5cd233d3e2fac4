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

// recordApplied writes the applied objects into the status of the AppliedManifestWork. It deletes objects
// from the spoke that are no longer in the ManifestWork.
func (a *Agent) recordApplied(ctx context.Context, appliedWork *unstructured.Unstructured, results []applyResult) error {
	var (
		kept []resource
		errs []error
	)

	for _, result := range results {
		if result.err == nil {
			kept = append(kept, result.resource)
		}
	}

	for _, old := range resourcesOf(appliedWork) {
		if slices.ContainsFunc(results, func(r applyResult) bool { return r.isSameObject(old) }) {
			if !slices.ContainsFunc(kept, old.isSameObject) {
				kept = append(kept, old)
			}

			continue
		}

		if isGone, err := a.deleteObject(ctx, appliedWork, old); err != nil || !isGone {
			kept, errs = append(kept, old), append(errs, err)
		}
	}

	return errors.Join(append(errs, a.writeAppliedResources(ctx, appliedWork, kept))...)
}

func resourcesOf(appliedWork *unstructured.Unstructured) []resource {
	list, _, _ := unstructured.NestedSlice(appliedWork.Object, "status", "appliedResources")

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

func (a *Agent) writeAppliedResources(ctx context.Context, appliedWork *unstructured.Unstructured, resources []resource) error {
	list := make([]any, 0, len(resources))

	for _, r := range resources {
		list = append(list, map[string]any{
			"group": r.gvr.Group, "version": r.gvr.Version, "resource": r.gvr.Resource, "namespace": r.namespace, "name": r.name,
		})
	}

	before, _, _ := unstructured.NestedSlice(appliedWork.Object, "status", "appliedResources")
	if reflect.DeepEqual(before, list) || len(before)+len(list) == 0 {
		return nil
	}

	if err := unstructured.SetNestedSlice(appliedWork.Object, list, "status", "appliedResources"); err != nil {
		return fmt.Errorf("update AppliedManifestWork: %w", err)
	}

	updated, err := a.applied.UpdateStatus(ctx, appliedWork, metav1.UpdateOptions{FieldManager: fieldManager})
	if err != nil {
		return fmt.Errorf("update AppliedManifestWork: %w", err)
	}

	*appliedWork = *updated

	return nil
}

// deleteObject deletes an object of the AppliedManifestWork from the spoke with foreground propagation.
// It returns true if the object no longer exists. If the object has other owners, deleteObject only
// removes the owner reference to the AppliedManifestWork and returns true. It does not touch an object
// without that reference.
func (a *Agent) deleteObject(
	ctx context.Context, appliedWork *unstructured.Unstructured, target resource,
) (isGone bool, err error) {
	object, err := a.resourceClient(target).Get(ctx, target.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}

	if err != nil {
		return false, fmt.Errorf("get %s: %w", target.name, err)
	}

	otherOwners := slices.DeleteFunc(object.GetOwnerReferences(),
		func(o metav1.OwnerReference) bool { return o.UID == appliedWork.GetUID() })

	switch {
	case len(otherOwners) == len(object.GetOwnerReferences()):
		return true, nil
	case len(otherOwners) > 0:
		object.SetOwnerReferences(otherOwners)

		_, err = a.resourceClient(target).Update(ctx, object, metav1.UpdateOptions{FieldManager: fieldManager})

		return err == nil, err
	case object.GetDeletionTimestamp() != nil:
		return false, nil
	}

	uid, foreground := object.GetUID(), metav1.DeletePropagationForeground

	err = a.resourceClient(target).Delete(ctx, target.name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &foreground,
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("delete %s: %w", target.name, err)
	}

	// The next reconcile checks whether the object is deleted.
	return false, nil
}

// finalizeWork deletes the objects of a ManifestWork that is being deleted, then its AppliedManifestWork,
// and then removes the finalizer.
func (a *Agent) finalizeWork(ctx context.Context, work *unstructured.Unstructured) error {
	finalizers := work.GetFinalizers()
	if !slices.Contains(finalizers, workFinalizer) {
		return nil
	}

	isGone, err := a.deleteAppliedWork(ctx, work)
	if err != nil || !isGone {
		a.requeueIf(err == nil)

		return err
	}

	work.SetFinalizers(slices.DeleteFunc(finalizers, func(f string) bool { return f == workFinalizer }))

	if _, err := a.works.Update(ctx, work, metav1.UpdateOptions{FieldManager: fieldManager}); err != nil {
		return fmt.Errorf("remove finalizer: %w", err)
	}

	return nil
}

// requeueIf triggers another reconcile before the interval is over, if shouldRequeue is true.
func (a *Agent) requeueIf(shouldRequeue bool) {
	if shouldRequeue {
		a.wakeUp()
	}
}

func (a *Agent) deleteAppliedWork(ctx context.Context, work *unstructured.Unstructured) (isGone bool, err error) {
	appliedWork, err := a.applied.Get(ctx, a.appliedWorkName(work), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}

	if err != nil {
		return false, fmt.Errorf("get AppliedManifestWork: %w", err)
	}

	pending := []resource{}

	for _, target := range resourcesOf(appliedWork) {
		if !shouldDelete(work, target) {
			if err := a.removeOwner(ctx, appliedWork, target); err != nil {
				return false, err
			}

			continue
		}

		isObjectGone, err := a.deleteObject(ctx, appliedWork, target)
		if err != nil {
			return false, err
		}

		if !isObjectGone {
			pending = append(pending, target)
		}
	}

	if len(pending) > 0 {
		return false, a.writeAppliedResources(ctx, appliedWork, pending)
	}

	if err := a.applied.Delete(ctx, appliedWork.GetName(), metav1.DeleteOptions{}); err != nil {
		return false, fmt.Errorf("delete AppliedManifestWork: %w", err)
	}

	_, err = a.applied.Patch(ctx, appliedWork.GetName(), "application/merge-patch+json",
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("remove finalizer of AppliedManifestWork: %w", err)
	}

	return true, nil
}

// removeOwner removes the owner reference to the AppliedManifestWork from an object, so that the object
// stays on the spoke.
func (a *Agent) removeOwner(ctx context.Context, appliedWork *unstructured.Unstructured, target resource) error {
	object, err := a.resourceClient(target).Get(ctx, target.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("get %s: %w", target.name, err)
	}

	owners := object.GetOwnerReferences()
	otherOwners := slices.DeleteFunc(slices.Clone(owners),
		func(o metav1.OwnerReference) bool { return o.UID == appliedWork.GetUID() })

	if len(otherOwners) == len(owners) {
		return nil
	}

	object.SetOwnerReferences(otherOwners)

	if _, err = a.resourceClient(target).Update(ctx, object, metav1.UpdateOptions{FieldManager: fieldManager}); err != nil {
		return fmt.Errorf("remove owner reference of %s: %w", target.name, err)
	}

	return nil
}
