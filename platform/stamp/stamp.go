// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package stamp

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
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
	// Digest is the digest of what was rendered (Digest).
	Digest string
}

// Ownership says who owns an object, as one adapter sees it for one resource of the API.
type Ownership string

// Values of Ownership.
const (
	// Managed is an object that this adapter owns for this resource.
	Managed Ownership = "Managed"
	// Detached is an object that this adapter has detached for this resource, as the annotations prove. The adapter
	// never changes it again.
	Detached Ownership = "Detached"
	// DetachedUnproven is an object with the annotation of a detached object, but without a proof that it was
	// detached for this resource. An earlier release wrote no proof.
	DetachedUnproven Ownership = "DetachedUnproven"
	// Unproven is an object with labels or a generation of an adapter, which nothing proves. It can be an object of
	// this adapter that somebody has edited, so its deletion must not count as done. The adapter never changes it,
	// because it can also belong to another program.
	Unproven Ownership = "Unproven"
	// Foreign is an object without ownership labels, or one that belongs to another adapter or
	// another resource. The adapter never changes it.
	Foreign Ownership = "Foreign"
)

// Proof says what the marks of a managed object prove. The marks are its labels and annotations of this package.
type Proof string

// Values of Proof.
const (
	// Proven means that the object was applied for the generation, with the content that has the digest.
	Proven Proof = "Proven"
	// Different means that it was applied for another generation or with another content.
	Different Proof = "Different"
	// Unsigned means that an earlier release applied the object for the generation, and recorded no content.
	Unsigned Proof = "Unsigned"
	// Edited means that the marks were changed since the object was applied.
	Edited Proof = "Edited"
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

// Adapter returns the name of the adapter.
func (s *Stamper) Adapter() string { return s.adapter }

// SetOwnership adds the labels and annotations that the object lacks (SetMarks). It always overwrites the HMAC.
func (s *Stamper) SetOwnership(object *unstructured.Unstructured, owner Owner) error {
	if err := s.SetMarks(object, owner); err != nil || s.keys == nil {
		return err
	}

	generation, _ := Generation(object) // SetMarks has checked it
	id := newIdentity(object, object.GroupVersionKind().GroupKind(), s.adapter, owner.ResourceID)

	annotations := object.GetAnnotations()
	annotations[adapter.AnnotationIdentity] = s.keys.Sign(id, generation, owner.Digest)
	object.SetAnnotations(annotations)

	return nil
}

// SetMarks adds the labels and annotations that the object lacks, except for the HMAC: hyperfleet.io/adapter,
// /resource-id, /resource-name and /generation. It returns an error if the generation is not an integer greater than 0,
// or if there is no key and the labels in the manifest name another adapter or resource.
func (s *Stamper) SetMarks(object *unstructured.Unstructured, owner Owner) error {
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

// OwnershipOf returns who owns an object, and the reason if the object is not Managed. If the stamper has keys, an object is
// Managed or Detached only if its HMAC proves it: if labels decided, anyone who can write labels could make the adapter change
// or delete an object that belongs to somebody else, or forget an object of its own. The object may have only its metadata.
func (s *Stamper) OwnershipOf(object metav1.Object, kind schema.GroupKind, resourceID string) (Ownership, string) {
	if s.keys == nil {
		return s.ownershipByLabels(object, resourceID)
	}

	identityErr := s.keys.verifyOwner(object, newIdentity(object, kind, s.adapter, resourceID))
	if identityErr == nil {
		return Managed, "" // whatever its labels say
	}

	ownership, reason := s.ownershipByLabels(object, resourceID)

	switch ownership {
	case Managed:
		return Unproven, fmt.Sprintf("its labels name this adapter and resource, but annotation %s does not prove this: %v",
			adapter.AnnotationIdentity, identityErr)
	case Detached:
		detachedBy, _ := lookUpAnnotation(object, adapter.AnnotationDetached)
		if !s.keys.isSignedDetached(object, newIdentity(object, kind, detachedBy, resourceID)) {
			return DetachedUnproven, fmt.Sprintf("annotation %s names adapter %q, but annotation %s does not prove "+
				"that it was detached for this resource", adapter.AnnotationDetached, detachedBy, adapter.AnnotationIdentity)
		}
	case DetachedUnproven, Unproven, Foreign:
	}

	return ownership, reason
}

// ownershipByLabels returns who owns an object according to its labels and annotations, without the HMAC, and the reason if
// the object is not Managed.
func (s *Stamper) ownershipByLabels(object metav1.Object, resourceID string) (Ownership, string) {
	owner, hasOwnerLabel := lookUpLabel(object, adapter.LabelAdapter)
	labeledID, _ := lookUpLabel(object, adapter.LabelResourceID)
	_, hasGeneration := lookUpAnnotation(object, adapter.AnnotationGeneration)
	detachedBy, _ := lookUpAnnotation(object, adapter.AnnotationDetached)

	switch {
	case !hasOwnerLabel && detachedBy != "":
		return Detached, fmt.Sprintf("adapter %q detached it", detachedBy)
	case !hasOwnerLabel && hasGeneration:
		return Unproven, fmt.Sprintf("it has a generation, but neither label %s nor annotation %s: "+
			"somebody removed the label, or another program created the object",
			adapter.LabelAdapter, adapter.AnnotationDetached)
	case !hasOwnerLabel:
		return Foreign, "it has no label " + adapter.LabelAdapter
	case owner != s.adapter:
		return Foreign, fmt.Sprintf("it belongs to adapter %q", owner)
	case labeledID != resourceID:
		return Foreign, fmt.Sprintf("it belongs to resource %q; if that resource no longer exists, "+
			"for example because the database was restored, hyperfleet-platform sweep deletes the object", labeledID)
	default:
		return Managed, ""
	}
}

// Compare returns what the marks of a managed object prove about desired, an object that SetMarks was called on for the
// owner. The two may have different names. Without keys, only the generation counts.
func (s *Stamper) Compare(live, desired *unstructured.Unstructured, owner Owner) Proof {
	generation, err := Generation(live)
	want, _ := Generation(desired)
	isSame := err == nil && generation == want

	if s.keys == nil {
		if isSame {
			return Proven
		}

		return Different
	}

	id := newIdentity(live, desired.GroupVersionKind().GroupKind(), s.adapter, owner.ResourceID)
	value, errIdentity := s.keys.parseIdentity(live)

	switch {
	case errIdentity != nil || isEdited(live, desired) || !value.isMACValid(id, generation):
		return Edited
	case !isSame || !haveSameLabel(live, desired, adapter.LabelResourceName):
		return Different
	case value.digest == "":
		return Unsigned
	case value.digest != owner.Digest:
		return Different
	default:
		return Proven
	}
}

// isEdited reports whether the labels by which objects are found differ from the desired ones, or somebody has
// added the annotation of a detached object.
func isEdited(live, desired *unstructured.Unstructured) bool {
	detachedBy, _ := lookUpAnnotation(live, adapter.AnnotationDetached)

	return !haveSameLabel(live, desired, adapter.LabelAdapter) || !haveSameLabel(live, desired, adapter.LabelResourceID) ||
		detachedBy != ""
}

// RenewedIdentity returns the HMAC that a managed object should have, and true if the object has
// another one because it is not signed with the first key, or because an earlier release has signed it. It does not
// sign marks that were edited.
func (s *Stamper) RenewedIdentity(
	object metav1.Object, kind schema.GroupKind, resourceID string,
) (identity string, needsRenewal bool) {
	if s.keys == nil {
		return "", false
	}

	id := newIdentity(object, kind, s.adapter, resourceID)

	value, err := s.keys.parseIdentity(object)
	if err != nil || value.version == version && value.key.id == s.keys.keys[0].id {
		return "", false
	}

	generation, err := Generation(object)
	if err != nil || !value.isMACValid(id, generation) {
		return "", false
	}

	return s.keys.Sign(id, generation, value.digest), true
}

// Digest returns the digest of an object as it was rendered, before SetOwnership. It does not cover the name, which
// the HMAC covers, and which differs between the versions of an entry with a retention.
func Digest(object *unstructured.Unstructured) (string, error) {
	content := maps.Clone(object.Object)
	metadata, _ := content["metadata"].(map[string]any)
	metadata = maps.Clone(metadata)
	delete(metadata, "name")
	content["metadata"] = metadata

	// JSON has the keys of maps in a fixed order.
	text, err := json.Marshal(content)
	if err != nil {
		return "", fmt.Errorf("encode object: %w", err)
	}

	sum := sha256.Sum256(text)

	return base64.RawURLEncoding.EncodeToString(sum[:]), nil
}

// Generation returns the generation that a live object was last applied for. It returns 0 if the
// object has no such annotation.
func Generation(object metav1.Object) (int64, error) {
	value, found := lookUpAnnotation(object, adapter.AnnotationGeneration)
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
// cluster, and the adapter no longer owns it. The patch removes the labels that SetOwnership adds, adds an annotation
// with the name of the adapter, and replaces the HMAC with one that proves the detachment. The generation and
// other labels with the prefix hyperfleet.io/ stay, because selectors may need them.
func (s *Stamper) DetachPatch(object metav1.Object, kind schema.GroupKind, resourceID string) map[string]any {
	annotations := map[string]any{adapter.AnnotationIdentity: nil, adapter.AnnotationDetached: s.adapter}
	if s.keys != nil {
		annotations[adapter.AnnotationIdentity] = s.keys.signDetached(newIdentity(object, kind, s.adapter, resourceID))
	}

	return map[string]any{"metadata": map[string]any{
		"labels":      map[string]any{adapter.LabelAdapter: nil, adapter.LabelResourceID: nil, adapter.LabelResourceName: nil},
		"annotations": annotations,
	}}
}

func lookUpLabel(object metav1.Object, name string) (value string, found bool) {
	return lookUp(object, "labels", metav1.Object.GetLabels, name)
}

func lookUpAnnotation(object metav1.Object, name string) (value string, found bool) {
	return lookUp(object, "annotations", metav1.Object.GetAnnotations, name)
}

// lookUp returns one entry of a map in the metadata. It does not copy the map if the object is unstructured.
func lookUp(
	object metav1.Object, field string, get func(metav1.Object) map[string]string, name string,
) (value string, found bool) {
	if direct, ok := object.(*unstructured.Unstructured); ok {
		value, found, _ = unstructured.NestedString(direct.Object, "metadata", field, name)
	} else {
		value, found = get(object)[name]
	}

	return value, found
}

func haveSameLabel(a, b metav1.Object, name string) bool {
	has, _ := lookUpLabel(a, name)
	want, _ := lookUpLabel(b, name)

	return has == want
}
