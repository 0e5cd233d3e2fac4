// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"maps"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Covers says whether an object has all that is wanted of it: every field of the wanted
// spec, the labels and the owners. What others have added does not matter, but to the fields
// that are wanted whole.
func Covers(object, want *unstructured.Unstructured) bool {
	for key, value := range want.GetLabels() {
		if object.GetLabels()[key] != value {
			return false
		}
	}

	have, _ := object.Object["spec"].(fields)
	wanted, _ := want.Object["spec"].(fields)

	return covers(have, wanted) && len(wholeDifference(object, have, wanted)) == 0
}

// wholeDifference is a merge patch of those fields of a HostedCluster that are wanted whole: what
// is there and is not wanted goes. None is as good as an empty one.
func wholeDifference(object *unstructured.Unstructured, have, want fields) fields {
	out := fields{}
	if object.GroupVersionKind() != HostedClusterKind() {
		return out
	}

	for _, key := range []string{fieldNodeSelector, fieldTolerations, fieldLabels} {
		switch {
		case empty(have[key]) && empty(want[key]), equality.Semantic.DeepEqual(have[key], want[key]):
		case empty(want[key]):
			out[key] = nil
		default:
			out[key] = without(have[key], want[key])
		}
	}

	return out
}

func empty(value any) bool {
	switch value := value.(type) {
	case fields:
		return len(value) == 0
	case list:
		return len(value) == 0
	default:
		return value == nil
	}
}

// without is what is wanted of a field, with a nil for each key that is there and is not
// wanted: a merge patch takes it away.
func without(have, want any) any {
	wanted, isMap := want.(fields)
	if !isMap {
		return want
	}

	out := maps.Clone(wanted)
	values, _ := have.(fields)

	for key := range values {
		if _, is := wanted[key]; !is {
			out[key] = nil
		}
	}

	return out
}

func covers(have, want any) bool {
	switch want := want.(type) {
	case fields:
		values, isMap := have.(fields)
		if !isMap {
			return false
		}

		for key, value := range want {
			if !covers(values[key], value) {
				return false
			}
		}

		return true
	case list:
		values, isList := have.(list)
		if !isList || len(values) != len(want) {
			return false
		}

		for i := range want {
			if !covers(values[i], want[i]) {
				return false
			}
		}

		return true
	default:
		return have == want
	}
}

// Difference is a merge patch that makes an object what is wanted of it: the labels, and
// those fields of the spec that are not as they are wanted, whole.
func Difference(object, want *unstructured.Unstructured) map[string]any {
	have, _ := object.Object["spec"].(fields)
	wanted, _ := want.Object["spec"].(fields)
	spec := fields{}

	for key, value := range wanted {
		if !covers(have[key], value) {
			spec[key] = value
		}
	}

	maps.Copy(spec, wholeDifference(object, have, wanted))

	labels := fields{}
	for key, value := range want.GetLabels() {
		labels[key] = value
	}

	return fields{"metadata": fields{"labels": labels}, "spec": spec}
}
