// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package stamp

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/hyperfleet/hyperfleet/api/adapter"
)

// Owner is what an object belongs to.
type Owner struct {
	// ResourceID is the ID of the resource in the API. It is a valid label value.
	ResourceID string
	// ResourceName is the name of the entry in the task file.
	ResourceName string
	// Generation is the generation in the event. It is 1 or greater.
	Generation int64
}

// Ownership says who owns an object, as one adapter sees it for one resource of the API.
type Ownership string

// Values of Ownership.
const (
	// Managed is an object that this adapter owns for this resource.
	Managed Ownership = "Managed"
	// Detached is an object that has the annotation of DetachPatch: an adapter has given up its ownership. The
	// adapter never changes it again.
	Detached Ownership = "Detached"
	// Unmarked is an object that has a generation but neither an owner nor the annotation of a
	// detached object. The adapter never changes it, because it can belong to another program.
	Unmarked Ownership = "Unmarked"
	// Foreign is an object without ownership labels, or one that belongs to another adapter or
	// another resource. The adapter never changes it.
	Foreign Ownership = "Foreign"
)

// Stamper writes the ownership labels and annotations of one adapter. Its methods are safe for
// concurrent use.
type Stamper struct {
	adapter string
	keys    *Keys
}

// New returns the stamper of an adapter, whose name is a DNS label. If keys is nil, objects get no
// HMAC, and sweep never deletes them.
func New(adapterName string, keys *Keys) *Stamper { return &Stamper{adapter: adapterName, keys: keys} }

// SetOwnership adds the labels and annotations that the object lacks: hyperfleet.io/adapter,
// /resource-id, /resource-name and /generation. It always overwrites the HMAC. It returns an error
// if the generation is not an integer greater than 0, or if there is no key and the labels in the
// manifest name another adapter or resource.
func (s *Stamper) SetOwnership(object *unstructured.Unstructured, owner Owner) error {
	ownLabels, _, errLabels := unstructured.NestedStringMap(object.Object, "metadata", "labels")
	ownAnnotations, _, errAnnotations := unstructured.NestedStringMap(object.Object, "metadata", "annotations")

	if err := errors.Join(errLabels, errAnnotations); err != nil {
		return fmt.Errorf("%w: quote numbers", err)
	}

	labels := map[string]string{
		adapter.LabelAdapter: s.adapter, adapter.LabelResourceID: owner.ResourceID, adapter.LabelResourceName: owner.ResourceName,
	}
	annotations := map[string]string{adapter.AnnotationGeneration: strconv.FormatInt(owner.Generation, 10)}

	maps.Copy(labels, ownLabels)
	maps.Copy(annotations, ownAnnotations)

	if err := s.validate(labels, annotations, owner); err != nil {
		return err
	}

	if s.keys != nil {
		kind := object.GroupVersionKind().GroupKind()
		annotations[adapter.AnnotationIdentity] = s.keys.Sign(newIdentity(object, kind, s.adapter, owner.ResourceID))
	}

	object.SetLabels(labels)
	object.SetAnnotations(annotations)

	return nil
}

// validate checks the labels and annotations that the object will have.
func (s *Stamper) validate(labels, annotations map[string]string, owner Owner) error {
	for _, key := range []string{adapter.LabelAdapter, adapter.LabelResourceID, adapter.LabelResourceName} {
		if problems := validation.IsValidLabelValue(labels[key]); len(problems) > 0 {
			return fmt.Errorf("label %s: %q is not a valid label value: %s", key, labels[key], strings.Join(problems, "; "))
		}

		if labels[key] == "" {
			return fmt.Errorf("label %s is empty", key)
		}
	}

	if _, err := parseGeneration(annotations[adapter.AnnotationGeneration]); err != nil {
		return err
	}

	if s.keys == nil && (labels[adapter.LabelAdapter] != s.adapter || labels[adapter.LabelResourceID] != owner.ResourceID) {
		return fmt.Errorf("the manifest sets %s and %s to other values than %s and %s: without identity_key_file "+
			"the adapter could not recognize the object: remove them from the manifest",
			adapter.LabelAdapter, adapter.LabelResourceID, s.adapter, owner.ResourceID)
	}

	return nil
}

// OwnershipOf returns who owns an object, and the reason if the object is not Managed. If the
// stamper has keys, the HMAC decides and the labels alone are not enough. Otherwise anyone who can
// write labels could make the adapter change or delete an object that belongs to somebody else. The
// object may have only its metadata.
func (s *Stamper) OwnershipOf(object metav1.Object, kind schema.GroupKind, resourceID string) (Ownership, string) {
	labels, annotations := object.GetLabels(), object.GetAnnotations()
	owner, hasOwnerLabel := labels[adapter.LabelAdapter]
	_, hasGeneration := annotations[adapter.AnnotationGeneration]

	switch {
	case !hasOwnerLabel && annotations[adapter.AnnotationDetached] != "":
		return Detached, fmt.Sprintf("adapter %q detached it", annotations[adapter.AnnotationDetached])
	case !hasOwnerLabel && hasGeneration:
		return Unmarked, fmt.Sprintf("it has a generation, but neither label %s nor annotation %s: "+
			"somebody removed the label, or another program created the object",
			adapter.LabelAdapter, adapter.AnnotationDetached)
	case !hasOwnerLabel:
		return Foreign, "it has no label " + adapter.LabelAdapter
	case s.keys != nil && s.verifyIdentity(object, kind, resourceID) == nil:
		return Managed, ""
	case owner != s.adapter:
		return Foreign, fmt.Sprintf("it belongs to adapter %q", owner)
	case labels[adapter.LabelResourceID] != resourceID:
		return Foreign, fmt.Sprintf("it belongs to resource %q", labels[adapter.LabelResourceID])
	case s.keys != nil:
		return Foreign, fmt.Sprintf("its labels name this adapter and resource, but annotation %s does not prove this: %v",
			adapter.AnnotationIdentity, s.verifyIdentity(object, kind, resourceID))
	default:
		return Managed, ""
	}
}

// verifyIdentity returns nil if the HMAC was made for this adapter and resource. It ignores the
// labels.
func (s *Stamper) verifyIdentity(object metav1.Object, kind schema.GroupKind, resourceID string) error {
	value := object.GetAnnotations()[adapter.AnnotationIdentity]
	if value == "" {
		return ErrNoIdentity
	}

	return s.keys.verifyValue(value, newIdentity(object, kind, s.adapter, resourceID))
}

// RenewedIdentity returns the HMAC that a managed object should have, and true if the object has
// another one because it is not signed with the first key.
func (s *Stamper) RenewedIdentity(object metav1.Object, kind schema.GroupKind, resourceID string) (string, bool) {
	if s.keys == nil {
		return "", false
	}

	value := s.keys.Sign(newIdentity(object, kind, s.adapter, resourceID))

	return value, value != object.GetAnnotations()[adapter.AnnotationIdentity]
}

// Generation returns the generation that a live object was last applied for. It returns 0 if the
// object has no such annotation.
func Generation(object metav1.Object) (int64, error) {
	value, found := object.GetAnnotations()[adapter.AnnotationGeneration]
	if !found {
		return 0, nil
	}

	return parseGeneration(value)
}

// parseGeneration parses the value of the annotation hyperfleet.io/generation.
func parseGeneration(value string) (int64, error) {
	generation, err := strconv.ParseInt(value, 10, 64)
	if err != nil || generation < 1 {
		return 0, fmt.Errorf("annotation %s: %q is not an integer greater than 0", adapter.AnnotationGeneration, value)
	}

	return generation, nil
}

// DetachPatch returns the merge patch (RFC 7396) that detaches an object: the object stays in the
// cluster, and the adapter no longer owns it. The patch removes the labels and the annotations that
// SetOwnership adds, except the generation, and adds an annotation with the name of the adapter. Other
// labels with the prefix hyperfleet.io/ stay, because selectors may need them.
func (s *Stamper) DetachPatch() map[string]any {
	return map[string]any{"metadata": map[string]any{
		"labels":      map[string]any{adapter.LabelAdapter: nil, adapter.LabelResourceID: nil, adapter.LabelResourceName: nil},
		"annotations": map[string]any{adapter.AnnotationIdentity: nil, adapter.AnnotationDetached: s.adapter},
	}}
}
