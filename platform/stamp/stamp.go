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

// Mark is what an object is stamped for.
type Mark struct {
	// ResourceID is the id of the API's resource, a valid label value.
	ResourceID string
	// ResourceName is the name of the task file's entry.
	ResourceName string
	// Generation is that of the event, from 1 on.
	Generation int64
}

// Standing is whose an object is, as one adapter sees it for one resource of the API.
type Standing string

// Standings.
const (
	// Managed is an object of this adapter for this resource.
	Managed Standing = "Managed"
	// Detached is an object that was handed over, and says so. It is left alone for good.
	Detached Standing = "Detached"
	// Unmarked is an object with a generation that neither says whose it is nor that it was
	// detached. It is never changed: it may be another program's.
	Unmarked Standing = "Unmarked"
	// Foreign is an object of somebody else: never stamped, of another adapter, or of
	// another resource. It is never changed.
	Foreign Standing = "Foreign"
)

// Stamper stamps for one adapter. Methods may be called at once.
type Stamper struct {
	adapter string
	keys    *Keys
}

// New makes the stamper of an adapter, whose name is a DNS label. Without keys objects
// carry no HMAC, so that sweep will never remove them.
func New(adapterName string, keys *Keys) *Stamper { return &Stamper{adapter: adapterName, keys: keys} }

// Stamp fills the labels and annotations that the object does not have itself:
// hyperfleet.io/adapter, /resource-id, /resource-name, /generation. The HMAC is always
// ours. It refuses a generation that is no whole number from 1 on, and labels that say
// another adapter or resource where there is no key to know the object by.
func (s *Stamper) Stamp(object *unstructured.Unstructured, mark Mark) error {
	ownLabels, _, errLabels := unstructured.NestedStringMap(object.Object, "metadata", "labels")
	ownAnnotations, _, errAnnotations := unstructured.NestedStringMap(object.Object, "metadata", "annotations")

	if err := errors.Join(errLabels, errAnnotations); err != nil {
		return fmt.Errorf("%w: put numbers in quotes", err)
	}

	labels := map[string]string{
		adapter.LabelAdapter: s.adapter, adapter.LabelResourceID: mark.ResourceID, adapter.LabelResourceName: mark.ResourceName,
	}
	annotations := map[string]string{adapter.AnnotationGeneration: strconv.FormatInt(mark.Generation, 10)}

	maps.Copy(labels, ownLabels)
	maps.Copy(annotations, ownAnnotations)

	if err := s.check(labels, annotations, mark); err != nil {
		return err
	}

	if s.keys != nil {
		kind := object.GroupVersionKind().GroupKind()
		annotations[adapter.AnnotationIdentity] = s.keys.Sign(identityOf(object, kind, s.adapter, mark.ResourceID))
	}

	object.SetLabels(labels)
	object.SetAnnotations(annotations)

	return nil
}

// check looks at the marks as they will be.
func (s *Stamper) check(labels, annotations map[string]string, mark Mark) error {
	for _, key := range []string{adapter.LabelAdapter, adapter.LabelResourceID, adapter.LabelResourceName} {
		if problems := validation.IsValidLabelValue(labels[key]); len(problems) > 0 {
			return fmt.Errorf("label %s: %q is no label value: %s", key, labels[key], strings.Join(problems, "; "))
		}

		if labels[key] == "" {
			return fmt.Errorf("label %s is empty", key)
		}
	}

	if _, err := parseGeneration(annotations[adapter.AnnotationGeneration]); err != nil {
		return err
	}

	if s.keys == nil && (labels[adapter.LabelAdapter] != s.adapter || labels[adapter.LabelResourceID] != mark.ResourceID) {
		return fmt.Errorf("the manifest's own %s and %s differ from %s and %s, and without identity_key_file "+
			"the object would not be known again: leave them out",
			adapter.LabelAdapter, adapter.LabelResourceID, s.adapter, mark.ResourceID)
	}

	return nil
}

// Standing says whose an object is, and for one that is not managed why. With keys the
// HMAC decides, and labels alone make nothing ours: who may write labels could else have
// an object changed or deleted that is somebody else's. The object may be its metadata
// alone.
func (s *Stamper) Standing(object metav1.Object, kind schema.GroupKind, resourceID string) (Standing, string) {
	labels, annotations := object.GetLabels(), object.GetAnnotations()
	owner, labelled := labels[adapter.LabelAdapter]
	_, applied := annotations[adapter.AnnotationGeneration]

	switch {
	case !labelled && annotations[adapter.AnnotationDetached] != "":
		return Detached, fmt.Sprintf("adapter %q has detached it", annotations[adapter.AnnotationDetached])
	case !labelled && applied:
		return Unmarked, fmt.Sprintf("it has a generation, but neither label %s nor annotation %s: "+
			"its label was taken off, or another program than this adapter made it",
			adapter.LabelAdapter, adapter.AnnotationDetached)
	case !labelled:
		return Foreign, "it has no label " + adapter.LabelAdapter
	case s.keys != nil && s.proof(object, kind, resourceID) == nil:
		return Managed, ""
	case owner != s.adapter:
		return Foreign, fmt.Sprintf("it is of adapter %q", owner)
	case labels[adapter.LabelResourceID] != resourceID:
		return Foreign, fmt.Sprintf("it is of resource %q", labels[adapter.LabelResourceID])
	case s.keys != nil:
		return Foreign, fmt.Sprintf("its labels say that it is ours, and annotation %s does not prove it: %v",
			adapter.AnnotationIdentity, s.proof(object, kind, resourceID))
	default:
		return Managed, ""
	}
}

// proof is nil if the HMAC names this adapter and resource, whatever the labels say.
func (s *Stamper) proof(object metav1.Object, kind schema.GroupKind, resourceID string) error {
	value := object.GetAnnotations()[adapter.AnnotationIdentity]
	if value == "" {
		return ErrNoIdentity
	}

	return s.keys.check(value, identityOf(object, kind, s.adapter, resourceID))
}

// Renewed gives the HMAC that a managed object should have by now, if it is signed with
// another key than the first one.
func (s *Stamper) Renewed(object metav1.Object, kind schema.GroupKind, resourceID string) (string, bool) {
	if s.keys == nil {
		return "", false
	}

	value := s.keys.Sign(identityOf(object, kind, s.adapter, resourceID))

	return value, value != object.GetAnnotations()[adapter.AnnotationIdentity]
}

// Generation is the generation that a live object was last applied for: 0 if it has none.
func Generation(object metav1.Object) (int64, error) {
	value, there := object.GetAnnotations()[adapter.AnnotationGeneration]
	if !there {
		return 0, nil
	}

	return parseGeneration(value)
}

// parseGeneration reads a value of the annotation hyperfleet.io/generation.
func parseGeneration(value string) (int64, error) {
	generation, err := strconv.ParseInt(value, 10, 64)
	if err != nil || generation < 1 {
		return 0, fmt.Errorf("annotation %s: %q is no whole number from 1 on", adapter.AnnotationGeneration, value)
	}

	return generation, nil
}

// Detachment is the merge patch (RFC 7396) that hands an object over: it takes off what
// Stamp puts on, but for the generation, and says who did it. Labels of hyperfleet.io/ that
// authors have given it stay: selectors may need them.
func (s *Stamper) Detachment() map[string]any {
	return map[string]any{"metadata": map[string]any{
		"labels":      map[string]any{adapter.LabelAdapter: nil, adapter.LabelResourceID: nil, adapter.LabelResourceName: nil},
		"annotations": map[string]any{adapter.AnnotationIdentity: nil, adapter.AnnotationDetached: s.adapter},
	}}
}
