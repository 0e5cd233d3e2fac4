// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package maestro

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
)

// Complete adds the annotation that each manifest of a work needs: a manifest without a generation gets the
// generation of the work. It returns an error if a manifest has an invalid generation.
func Complete(work *unstructured.Unstructured) error {
	manifests, err := listManifests(work)
	if err != nil {
		return err
	}

	own := work.GetAnnotations()[adapter.AnnotationGeneration]

	for i, manifest := range manifests {
		annotations := manifest.GetAnnotations()
		if _, ok := annotations[adapter.AnnotationGeneration]; !ok {
			if annotations == nil {
				annotations = map[string]string{}
			}

			annotations[adapter.AnnotationGeneration] = own
			manifest.SetAnnotations(annotations)
		}

		if _, err := stamp.Generation(manifest); err != nil {
			return fmt.Errorf("manifest %d (%s %s): %w", i+1, manifest.GetKind(), manifest.GetName(), err)
		}
	}

	return nil
}

// listManifests returns the manifests of a work, without copying them.
func listManifests(work *unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	found, _, err := unstructured.NestedFieldNoCopy(work.Object, "spec", "workload", "manifests")
	if err != nil {
		return nil, fmt.Errorf("read spec.workload.manifests: %w", err)
	}

	list, ok := found.([]any)
	if !ok && found != nil {
		return nil, errors.New("spec.workload.manifests is not a list")
	}

	manifests := make([]*unstructured.Unstructured, 0, len(list))

	for i, item := range list {
		object, ok := item.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("manifest %d is not an object", i+1)
		}

		manifests = append(manifests, &unstructured.Unstructured{Object: object})
	}

	return manifests, nil
}

// FindNested returns a copy of the manifest of a live work that matches the query, and nil if no manifest
// matches. It adds the manifest's statusFeedback and conditions from the work's status. If several
// manifests match, it returns the manifest with the highest generation, or else the first by name.
func FindNested(work *unstructured.Unstructured, query transport.Query) (*unstructured.Unstructured, error) {
	manifests, err := listManifests(work)
	if err != nil {
		return nil, err
	}

	var matching []*unstructured.Unstructured

	for _, manifest := range manifests {
		if matchesQuery(query, manifest) {
			matching = append(matching, manifest)
		}
	}

	if len(matching) == 0 {
		return nil, nil //nolint:nilnil // a missing manifest is not an error
	}

	best := slices.MinFunc(matching, func(a, b *unstructured.Unstructured) int {
		// A generation that is not a number counts as 0.
		generationA, _ := stamp.Generation(a)
		generationB, _ := stamp.Generation(b)

		return cmp.Or(cmp.Compare(generationB, generationA), cmp.Compare(a.GetName(), b.GetName()))
	})

	return addStatus(work, best.DeepCopy()), nil
}

func matchesQuery(query transport.Query, manifest *unstructured.Unstructured) bool {
	if query.Namespace != "" && manifest.GetNamespace() != "" && query.Namespace != manifest.GetNamespace() {
		return false
	}

	if query.Name != "" {
		return query.Name == manifest.GetName()
	}

	return labels.SelectorFromSet(query.Labels).Matches(labels.Set(manifest.GetLabels()))
}

// addStatus adds the manifest's statusFeedback and conditions from status.resourceStatus.manifests. It adds nothing
// while the agent has not applied the current spec of the work, because the status is that of an earlier manifest.
func addStatus(work, manifest *unstructured.Unstructured) *unstructured.Unstructured {
	statuses, _, _ := unstructured.NestedSlice(work.Object, "status", "resourceStatus", "manifests")

	gvk := manifest.GroupVersionKind()

	for _, item := range statuses {
		status, ok := item.(map[string]any)
		if !ok {
			continue
		}

		hasField := func(field, want string) bool {
			got, _, _ := unstructured.NestedString(status, "resourceMeta", field)

			return got == want
		}
		if !hasField("kind", gvk.Kind) || !hasField("group", gvk.Group) ||
			!hasField("name", manifest.GetName()) || !hasField("namespace", manifest.GetNamespace()) {
			continue
		}

		if isOfEarlierSpec(work, status) {
			continue
		}

		for _, field := range []string{"statusFeedback", "conditions"} {
			if value, ok := status[field]; ok {
				manifest.Object[field] = value
			}
		}
	}

	return manifest
}

// isOfEarlierSpec reports whether the status of a manifest is from before the last change of the work's spec. Of its
// conditions, only Applied has an observedGeneration.
func isOfEarlierSpec(work *unstructured.Unstructured, status map[string]any) bool {
	conditions, _ := status["conditions"].([]any)

	return slices.ContainsFunc(conditions, func(item any) bool {
		condition, _ := item.(map[string]any)
		observed, hasGeneration := condition["observedGeneration"].(int64)

		return condition["type"] == "Applied" && hasGeneration && observed < work.GetGeneration()
	})
}
