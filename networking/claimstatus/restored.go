// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package claimstatus

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/step"
)

// removeRestored removes the fields and conditions in the patch of newRemovalPatch. hasRemoved is true if there were any.
// current is the object as it was last read or written. If the object has changed since, the API server rejects
// the patch with a conflict.
func (w *Writer) removeRestored(
	ctx context.Context, obj step.Object, current, status map[string]any,
) (hasRemoved bool, err error) {
	removal := w.newRemovalPatch(current, status)
	if len(removal) == 0 {
		return false, nil
	}

	version, _, _ := unstructured.NestedString(current, "metadata", "resourceVersion")

	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": version}, "status": removal})
	if err != nil {
		return false, fmt.Errorf("encode patch of %s: %w", client.ObjectKeyFromObject(obj), err)
	}

	target, ok := obj.DeepCopyObject().(client.Object)
	if !ok {
		return false, fmt.Errorf("copy %T: the copy is not a client object", obj)
	}

	if err := w.Client.Status().Patch(ctx, target, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return false, fmt.Errorf("remove restored status of %s: %w", client.ObjectKeyFromObject(obj), err)
	}

	return true, nil
}

// newRemovalPatch returns a merge patch of the status. It removes those fields and conditions of the field manager
// that the object has and applied does not have. Server-side apply does not remove them if another program owns
// them too.
func (w *Writer) newRemovalPatch(current, applied map[string]any) map[string]any {
	removal := map[string]any{}

	present, _, _ := unstructured.NestedSlice(current, "status", "conditions")
	wanted, _, _ := unstructured.NestedSlice(applied, "conditions")

	kept := slices.DeleteFunc(slices.Clone(present), func(condition any) bool {
		hasSameType := func(other any) bool { return typeOf(other) == typeOf(condition) }

		return slices.Contains(w.Types, typeOf(condition)) && !slices.ContainsFunc(wanted, hasSameType)
	})

	if len(kept) < len(present) {
		removal["conditions"] = kept
	}

	for _, path := range w.Fields {
		_, isPresent, _ := unstructured.NestedFieldNoCopy(current, slices.Concat([]string{"status"}, path)...)
		_, isWanted, _ := unstructured.NestedFieldNoCopy(applied, path...)

		if isPresent && !isWanted {
			_ = unstructured.SetNestedField(removal, nil, path...) // it cannot fail: only this function writes into removal
		}
	}

	return removal
}

// typeOf returns the type of a condition.
func typeOf(condition any) string {
	object, _ := condition.(map[string]any)
	name, _ := object["type"].(string)

	return name
}
