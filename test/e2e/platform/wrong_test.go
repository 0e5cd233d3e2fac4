// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"fmt"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hyperfleet/hyperfleet/api/adapter"
)

// wrong says what is not as the API says that it is: an object that is missing, too much,
// or of an older generation.
func (w *world) wrong(l lives) string {
	w.t.Helper()

	objects := w.managed()
	generations := map[string]int32{}

	for _, r := range w.list("resources", "") {
		generations[r.Id] = r.Generation
	}

	known := map[string]bool{}

	for _, s := range w.strangers {
		known[string(s.uid)] = true
	}

	for _, one := range l.all() {
		if text := one.wrong(objects, generations); text != "" {
			return text
		}
	}

	for id, left := range objects {
		for i := range left {
			if _, there := generations[id]; !there && !known[string(left[i].GetUID())] {
				return fmt.Sprintf("%s %s is left of a resource that is gone", left[i].GetKind(), left[i].GetName())
			}
		}
	}

	return w.handedOver(l)
}

// wrong says what is wrong with the objects of one cluster that the API has.
func (l *life) wrong(objects map[string][]unstructured.Unstructured, generations map[string]int32) string {
	generation, there := generations[l.id]
	if !there {
		return ""
	}

	fields := map[string][]string{
		"Namespace":     {"metadata", "labels", "example.io/tier"},
		"ResourceQuota": {"spec", "hard", "pods"},
		"Job":           {"metadata", "annotations", adapter.AnnotationGeneration},
		"ManifestWork":  {"metadata", "annotations", adapter.AnnotationGeneration},
	}
	wants := map[string]string{
		"Namespace": l.tier, "ResourceQuota": l.pods,
		"Job": strconv.Itoa(int(generation)), "ManifestWork": strconv.Itoa(int(generation)),
	}

	for kind, path := range fields {
		if !slices.ContainsFunc(objects[l.id], func(o unstructured.Unstructured) bool {
			value, _, _ := unstructured.NestedString(o.Object, path...)

			return o.GetKind() == kind && value == wants[kind] && o.GetName() != "copy-of-"+l.name
		}) {
			return fmt.Sprintf("%s has no %s with %v %s", l.name, kind, path, wants[kind])
		}
	}

	for _, pool := range l.pools {
		found := objects[pool]
		if len(found) != 1 {
			return fmt.Sprintf("%s has a pool with %d objects", l.name, len(found))
		}

		if value, _, _ := unstructured.NestedString(found[0].Object, "data", "replicas"); value != l.replicas {
			return fmt.Sprintf("%s has a pool with replicas %s", l.name, value)
		}
	}

	return ""
}

// handedOver says which cluster that was to leave its objects behind has not, once it was
// deleted.
func (w *world) handedOver(l lives) string {
	jobs := map[string]int{}
	works := map[string]bool{}

	for _, object := range w.objects() {
		switch object.GetKind() {
		case "Job":
			jobs[object.GetNamespace()]++
		case "ManifestWork":
			works[object.GetName()] = true
		}
	}

	for _, one := range l[kept] {
		if !w.gone(one.id) {
			continue
		}

		space := w.namespace(one.name)
		if space == nil || space.DeletionTimestamp != nil {
			return one.name + " has no namespace any more"
		}

		if _, ours := space.Labels[adapter.LabelAdapter]; ours || jobs[space.Name] == 0 || !works["agent-"+one.name] {
			return one.name + " is not handed over"
		}
	}

	return ""
}
