// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// read gets an object of another project; nil if there is none, or no such kind.
func (r *Reconciler) read(
	ctx context.Context, from client.Reader, kind schema.GroupVersionKind, key client.ObjectKey,
) (*unstructured.Unstructured, error) {
	object := hypershift.New(kind)

	err := from.Get(ctx, key, object)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return nil, nil //nolint:nilnil // nothing there is no error
	}

	if err != nil {
		return nil, fmt.Errorf("get %s %s: %w", kind.Kind, key, err)
	}

	return object, nil
}

// ours says whether an object was made for this very bridge.
func (s *scope) ours(object client.Object) bool {
	return metav1.IsControlledBy(object, s.bridge) || object.GetLabels()[hypershift.LabelUID] == string(s.bridge.UID)
}

// ensure makes an object that is not there, and fixes one that is not as it is wanted: only
// those fields of its spec that differ are sent. It gives the object as it is then. An object
// of that name that belongs to somebody else is an error of class Configuration.
func (s *scope) ensure(
	ctx context.Context, have, want *unstructured.Unstructured, reason string,
) (*unstructured.Unstructured, error) {
	key := client.ObjectKeyFromObject(want)

	if have == nil {
		made := want.DeepCopy()

		err := s.Client.Create(ctx, made, client.FieldOwner(fieldOwner))
		if err == nil {
			return made, nil
		}

		if !apierrors.IsAlreadyExists(err) {
			return nil, s.refused(err, "create", want, reason)
		}

		// The cache does not have it yet, or it is another's.
		if have, err = s.read(ctx, s.Live, want.GroupVersionKind(), key); err != nil || have == nil {
			return nil, errclass.New(errclass.Transient, reason, "read %s %s that is there: %w", want.GetKind(), key, err)
		}
	}

	if !s.ours(have) {
		return nil, errclass.New(errclass.Configuration, reason,
			"%s %s is there and does not belong to this bridge: remove it, or give the bridge another name", want.GetKind(), key)
	}

	if hypershift.Covers(have, want) {
		return have, nil
	}

	patch, err := json.Marshal(hypershift.Difference(have, want))
	if err != nil {
		return nil, fmt.Errorf("write patch of %s %s: %w", want.GetKind(), key, err)
	}

	fixed := have.DeepCopy()
	if err := s.Client.Patch(ctx, fixed, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldOwner)); err != nil {
		return nil, s.refused(err, "patch", want, reason)
	}

	return fixed, nil
}

// refused is an error of writing an object: what the API server finds invalid or forbids
// stays so until a person acts.
func (s *scope) refused(err error, verb string, object client.Object, reason string) error {
	class := errclass.Transient
	if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) {
		class = errclass.Configuration
	}

	return errclass.New(class, reason, "%s %s %s: %w",
		verb, object.GetObjectKind().GroupVersionKind().Kind, client.ObjectKeyFromObject(object), err)
}

// gone deletes an object of another project that is the bridge's, and says whether there
// is none. The word of the cache that there is none is not enough.
func (s *scope) gone(ctx context.Context, kind schema.GroupVersionKind, key client.ObjectKey) (bool, error) {
	object, err := s.read(ctx, s.Live, kind, key)
	if err != nil {
		return false, err
	}

	if object == nil || !s.ours(object) {
		return true, nil
	}

	if !object.GetDeletionTimestamp().IsZero() {
		return false, nil
	}

	uid := object.GetUID()

	err = s.Client.Delete(ctx, object, client.Preconditions{UID: &uid})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("delete %s %s: %w", kind.Kind, key, err)
	}

	after, err := s.read(ctx, s.Live, kind, key)

	return err == nil && (after == nil || after.GetUID() != uid), err
}
