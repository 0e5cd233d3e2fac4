// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Reads are the fields of objects that a task file reads. It does not change and is safe for concurrent use.
type Reads struct {
	// byKind has the paths of fields. Those without a kind are of entries whose kind is a template.
	byKind map[schema.GroupKind][][]string
}

// ListReads returns the fields of objects that the task file reads.
func (t *Task) ListReads() *Reads {
	out := &Reads{byKind: map[schema.GroupKind][][]string{}}

	for i := range t.Resources {
		gvk, _ := t.Resources[i].Kind() // has no kind if it is a template
		kind := gvk.GroupKind()

		for _, path := range t.reads {
			switch {
			case len(path) == 0:
				out.byKind[kind] = append(out.byKind[kind], nil)
			case path[0] == t.Resources[i].Name:
				out.byKind[kind] = append(out.byKind[kind], path[1:])
			}
		}
	}

	return out
}

// addReads adds paths below the variable resources that a part of the task file reads. An empty path stands for all objects,
// and the name of an entry for all its objects.
func (l *loader) addReads(paths ...[]string) { l.task.reads = append(l.task.reads, paths...) }

// Differ reports whether two states of an object differ in a field that the task file reads, or in its deletion, on which the
// outcome of each entry depends.
func (r *Reads) Differ(before, after *unstructured.Unstructured) bool {
	if before.GetUID() != after.GetUID() || (before.GetDeletionTimestamp() == nil) != (after.GetDeletionTimestamp() == nil) {
		return true
	}

	for _, kind := range []schema.GroupKind{after.GroupVersionKind().GroupKind(), {}} {
		for _, path := range r.byKind[kind] {
			if !equality.Semantic.DeepEqual(lookUpPath(before, path), lookUpPath(after, path)) {
				return true
			}
		}
	}

	return false
}

// missing is the index of the first key of a path that does not exist. An expression can fail because of one key, and
// be false because of the next one.
type missing int

func lookUpPath(object *unstructured.Unstructured, path []string) any {
	var value any = object.Object

	for i, key := range path {
		fields, isMap := value.(map[string]any)
		if !isMap {
			break
		}

		if value, isMap = fields[key]; !isMap {
			return missing(i)
		}
	}

	return value
}
