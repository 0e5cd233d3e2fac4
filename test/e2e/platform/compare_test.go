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

// findMismatch compares the objects with the resources of the API. It returns a description of an object
// that is missing, superfluous, or of an older generation, or an empty string.
func (w *fixture) findMismatch(l testClusters) string {
	w.t.Helper()

	objects := w.listManagedObjects()
	generations := map[string]int32{}

	for _, r := range w.listResources("resources", "") {
		generations[r.Id] = r.Generation
	}

	known := map[string]bool{}

	for _, s := range w.foreignObjects {
		known[string(s.uid)] = true
	}

	for _, one := range l.all() {
		if text := one.findMismatch(objects, generations); text != "" {
			return text
		}
	}

	for id, found := range objects {
		for i := range found {
			if _, exists := generations[id]; !exists && !known[string(found[i].GetUID())] {
				return fmt.Sprintf("%s %s belongs to a resource that does not exist", found[i].GetKind(), found[i].GetName())
			}
		}
	}

	return w.findNotHandedOver(l)
}

// findMismatch does the same for the objects of one cluster.
func (l *testCluster) findMismatch(objects map[string][]unstructured.Unstructured, generations map[string]int32) string {
	generation, exists := generations[l.id]
	if !exists {
		return ""
	}

	fields := map[string][]string{
		"Namespace":     {"metadata", "labels", "example.io/tier"},
		"ResourceQuota": {"spec", "hard", "pods"},
		"Job":           {"metadata", "annotations", adapter.AnnotationGeneration},
		"ManifestWork":  {"metadata", "annotations", adapter.AnnotationGeneration},
	}
	wantByKind := map[string]string{
		"Namespace": l.tier, "ResourceQuota": l.pods,
		"Job": strconv.Itoa(int(generation)), "ManifestWork": strconv.Itoa(int(generation)),
	}

	for kind, path := range fields {
		if !slices.ContainsFunc(objects[l.id], func(o unstructured.Unstructured) bool {
			value, _, _ := unstructured.NestedString(o.Object, path...)

			return o.GetKind() == kind && value == wantByKind[kind] && o.GetName() != "copy-of-"+l.name
		}) {
			return fmt.Sprintf("%s has no %s with %v = %s", l.name, kind, path, wantByKind[kind])
		}
	}

	for _, pool := range l.pools {
		found := objects[pool]
		if len(found) != 1 {
			return fmt.Sprintf("%s has a node pool with %d objects, want 1", l.name, len(found))
		}

		if value, _, _ := unstructured.NestedString(found[0].Object, "data", "replicas"); value != l.replicas {
			return fmt.Sprintf("%s has a node pool with replicas %s", l.name, value)
		}
	}

	return ""
}

// findNotHandedOver returns a description of a deleted cluster that should have handed its objects over and
// has not.
func (w *fixture) findNotHandedOver(l testClusters) string {
	jobs := map[string]int{}
	works := map[string]bool{}

	for _, object := range w.listObjects() {
		switch object.GetKind() {
		case "Job":
			jobs[object.GetNamespace()]++
		case "ManifestWork":
			works[object.GetName()] = true
		}
	}

	for _, one := range l[handedOver] {
		if !w.isGone(one.id) {
			continue
		}

		space := w.getNamespace(one.name)
		if space == nil || space.DeletionTimestamp != nil {
			return one.name + " has no namespace"
		}

		if _, ours := space.Labels[adapter.LabelAdapter]; ours || jobs[space.Name] == 0 || !works["agent-"+one.name] {
			return one.name + " has not handed its objects over"
		}
	}

	return ""
}
