// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"maps"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// HasDesiredState returns whether an object has every field of the desired spec and all desired labels.
// Other fields of the object do not count, except those inside the fields that diffReplacedFields compares.
func HasDesiredState(object, desired *unstructured.Unstructured) bool {
	for key, value := range desired.GetLabels() {
		if object.GetLabels()[key] != value {
			return false
		}
	}

	existing, _ := object.Object["spec"].(fields)
	desiredFields, _ := desired.Object["spec"].(fields)

	return hasValues(existing, desiredFields) && len(diffReplacedFields(object, existing, desiredFields)) == 0
}

// diffReplacedFields returns a merge patch for the fields of a HostedCluster that must be exactly as
// desired: nodeSelector, tolerations and labels. The patch removes entries that are not desired. A
// missing field equals an empty field.
func diffReplacedFields(object *unstructured.Unstructured, existing, desired fields) fields {
	out := fields{}
	if object.GroupVersionKind() != HostedClusterKind() {
		return out
	}

	for _, key := range []string{fieldNodeSelector, fieldTolerations, fieldLabels} {
		switch {
		case isEmpty(existing[key]) && isEmpty(desired[key]), equality.Semantic.DeepEqual(existing[key], desired[key]):
		case isEmpty(desired[key]):
			out[key] = nil
		default:
			out[key] = withRemovals(existing[key], desired[key])
		}
	}

	return out
}

// isEmpty returns true for nil, an empty mapping and an empty list, and false for the empty string, 0 and
// false.
func isEmpty(value any) bool {
	switch value := value.(type) {
	case fields:
		return len(value) == 0
	case list:
		return len(value) == 0
	default:
		return value == nil
	}
}

// withRemovals returns the desired value of a field. If the field is a map, the result also has a nil
// for each existing key that is not desired, so that a merge patch removes the key.
func withRemovals(existing, desired any) any {
	desiredFields, isMap := desired.(fields)
	if !isMap {
		return desired
	}

	out := maps.Clone(desiredFields)
	values, _ := existing.(fields)

	for key := range values {
		if _, ok := desiredFields[key]; !ok {
			out[key] = nil
		}
	}

	return out
}

// hasValues returns true if existing has every value of desired. A mapping may have more keys than desired,
// but a list must have the same length.
func hasValues(existing, desired any) bool {
	switch desired := desired.(type) {
	case fields:
		values, isMap := existing.(fields)
		if !isMap {
			return false
		}

		for key, value := range desired {
			if !hasValues(values[key], value) {
				return false
			}
		}

		return true
	case list:
		values, isList := existing.(list)
		if !isList || len(values) != len(desired) {
			return false
		}

		for i := range desired {
			if !hasValues(values[i], desired[i]) {
				return false
			}
		}

		return true
	default:
		return existing == desired
	}
}

// MergePatch returns a merge patch that brings an object to the desired state. It has all desired
// labels, and each field of the spec that differs, as a whole.
func MergePatch(object, desired *unstructured.Unstructured) map[string]any {
	existing, _ := object.Object["spec"].(fields)
	desiredFields, _ := desired.Object["spec"].(fields)
	spec := fields{}

	for key, value := range desiredFields {
		if !hasValues(existing[key], value) {
			spec[key] = value
		}
	}

	maps.Copy(spec, diffReplacedFields(object, existing, desiredFields))

	labels := fields{}
	for key, value := range desired.GetLabels() {
		labels[key] = value
	}

	return fields{"metadata": fields{"labels": labels}, "spec": spec}
}
