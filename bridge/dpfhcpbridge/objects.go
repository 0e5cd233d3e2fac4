// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

const kindBridge = "DPFHCPBridge"

// getObject reads an object of another project. It returns nil if the object does not exist or its CRD
// is not installed.
func (r *Reconciler) getObject(
	ctx context.Context, reader client.Reader, kind schema.GroupVersionKind, key client.ObjectKey,
) (*unstructured.Unstructured, error) {
	object := hypershift.NewObject(kind)

	err := reader.Get(ctx, key, object)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return nil, nil //nolint:nilnil // an object that does not exist is no error
	}

	if err != nil {
		return nil, fmt.Errorf("get %s %s: %w", kind.Kind, key, err)
	}

	return object, nil
}

func (s *scope) isOwn(object client.Object) bool { return belongsTo(object, s.bridge) }

// belongsTo returns whether an object belongs to a bridge: by its controller reference, by the bridge's UID in
// its label, or because an earlier object with the bridge's name had it.
func belongsTo(object client.Object, bridge *v1alpha1.DPFHCPBridge) bool {
	return metav1.IsControlledBy(object, bridge) || object.GetLabels()[hypershift.LabelUID] == string(bridge.UID) ||
		isRestored(object, bridge)
}

// isRestored returns whether an object belongs to an earlier object with the bridge's name. This is the case
// after the bridge was restored from a backup, because a restored object has another UID.
func isRestored(object client.Object, bridge *v1alpha1.DPFHCPBridge) bool {
	labels, ref := object.GetLabels(), metav1.GetControllerOf(object)

	return labels[hypershift.LabelNamespace] == bridge.Namespace && labels[hypershift.LabelName] == bridge.Name &&
		labels[hypershift.LabelUID] != "" && labels[hypershift.LabelUID] != string(bridge.UID) &&
		(ref == nil || ref.Kind == kindBridge && ref.Name == bridge.Name && ref.UID != bridge.UID)
}

// takeOver makes the bridge the owner of an object that an earlier object with its name had. Without this,
// the object is deleted together with its earlier owner.
func (s *scope) takeOver(ctx context.Context, object, desired client.Object) error {
	key := client.ObjectKeyFromObject(object)
	before, _ := object.DeepCopyObject().(client.Object)

	labels := maps.Clone(object.GetLabels())
	maps.Copy(labels, desired.GetLabels())
	object.SetLabels(labels)
	object.SetOwnerReferences(desired.GetOwnerReferences())

	var err error

	// The operator may update Secrets and ConfigMaps, and may patch objects of other projects.
	if _, ok := object.(*unstructured.Unstructured); ok {
		patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
		err = s.Client.Patch(ctx, object, patch, client.FieldOwner(fieldOwner))
	} else {
		err = s.Client.Update(ctx, object, client.FieldOwner(fieldOwner))
	}

	if err != nil {
		return fmt.Errorf("take over %s: %w", key, err)
	}

	s.Recorder.Eventf(s.bridge, nil, corev1.EventTypeNormal, "TakenOver", "Reconcile",
		"took over %s, which belonged to the bridge before its restore", key)

	return nil
}

// applyObject creates the object if existing is nil, and otherwise patches the fields of its spec that
// differ from the desired state. It returns the object as it is afterwards. If an object of that name
// belongs to somebody else, applyObject returns an error of class Configuration.
func (s *scope) applyObject(
	ctx context.Context, existing, desired *unstructured.Unstructured, reason string,
) (*unstructured.Unstructured, error) {
	key := client.ObjectKeyFromObject(desired)

	if existing == nil {
		created := desired.DeepCopy()

		err := s.Client.Create(ctx, created, client.FieldOwner(fieldOwner))
		if err == nil {
			return created, nil
		}

		if !apierrors.IsAlreadyExists(err) {
			return nil, s.newWriteError(err, "create", desired, reason)
		}

		// Either the cache does not have the object yet, or the object belongs to somebody else.
		if existing, err = s.getObject(ctx, s.APIReader, desired.GroupVersionKind(), key); err != nil || existing == nil {
			return nil, errclass.New(errclass.Transient, reason, "get existing %s %s: %w", desired.GetKind(), key, err)
		}
	}

	if !s.isOwn(existing) {
		return nil, errclass.New(errclass.Configuration, reason,
			"%s %s exists and does not belong to this bridge: delete it, or create the bridge with another name", desired.GetKind(), key)
	}

	if isRestored(existing, s.bridge) {
		existing = existing.DeepCopy()
		if err := s.takeOver(ctx, existing, desired); err != nil {
			return nil, errclass.Wrap(errclass.Transient, reason, err)
		}
	}

	if hypershift.HasDesiredState(existing, desired) {
		return existing, nil
	}

	patch, err := json.Marshal(hypershift.MergePatch(existing, desired))
	if err != nil {
		return nil, fmt.Errorf("encode patch of %s %s: %w", desired.GetKind(), key, err)
	}

	patched := existing.DeepCopy()
	if err := s.Client.Patch(ctx, patched, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldOwner)); err != nil {
		return nil, s.newWriteError(err, "patch", desired, reason)
	}

	return patched, nil
}

// newWriteError returns the error of a failed write. If the API server rejects the object as invalid or
// forbidden, the class is Configuration, because only a person can fix that. If a quota is used up, the class is
// Resource. Otherwise the class is Transient.
func (s *scope) newWriteError(err error, verb string, object client.Object, reason string) error {
	class := errclass.ClassOf(err)
	if class != errclass.Resource && (apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err)) {
		class = errclass.Configuration
	}

	return errclass.New(class, reason, "%s %s %s: %w",
		verb, object.GetObjectKind().GroupVersionKind().Kind, client.ObjectKeyFromObject(object), err)
}

// deleteObject deletes an object of another project if it belongs to the bridge. It returns the object if something
// still keeps it, and nil if the bridge no longer has such an object. It reads from the API server, because the cache
// may not have the object yet.
func (s *scope) deleteObject(
	ctx context.Context, kind schema.GroupVersionKind, key client.ObjectKey,
) (remaining *unstructured.Unstructured, err error) {
	object, err := s.getObject(ctx, s.APIReader, kind, key)
	if err != nil || object == nil || !s.isOwn(object) {
		return nil, err
	}

	if !object.GetDeletionTimestamp().IsZero() {
		return object, nil
	}

	uid := object.GetUID()

	err = s.Client.Delete(ctx, object, client.Preconditions{UID: &uid})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("delete %s %s: %w", kind.Kind, key, err)
	}

	// A finalizer may keep the object, so read it again.
	remaining, err = s.getObject(ctx, s.APIReader, kind, key)
	if err != nil || remaining == nil || remaining.GetUID() != uid {
		return nil, err
	}

	return remaining, nil
}

// reasonDeleting is the reason while the deletion waits for an object to disappear.
const reasonDeleting = "Deleting"

// deleteAndWait deletes an object and waits until it is gone. The message names the finalizers, because other programs
// than HyperShift and MetalLB may have added one, and may no longer run.
func (s *scope) deleteAndWait(ctx context.Context, kind schema.GroupVersionKind, key client.ObjectKey) step.Result {
	remaining, err := s.deleteObject(ctx, kind, key)
	if err != nil {
		return step.Fail(err)
	}

	if remaining == nil {
		return step.Done()
	}

	message := fmt.Sprintf("%s %s is being deleted", kind.Kind, key)
	if finalizers := remaining.GetFinalizers(); len(finalizers) > 0 {
		message += " and has the finalizers " + strings.Join(finalizers, ", ")
	}

	return step.Wait(pollInterval, reasonDeleting, message)
}
