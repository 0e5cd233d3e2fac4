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

// Complete gives each manifest of a work a generation: one that has none has the work's.
func Complete(work *unstructured.Unstructured) error {
	manifests, err := manifestsOf(work)
	if err != nil {
		return err
	}

	own := work.GetAnnotations()[adapter.AnnotationGeneration]

	for i, manifest := range manifests {
		annotations := manifest.GetAnnotations()
		if _, there := annotations[adapter.AnnotationGeneration]; !there {
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

// manifestsOf gives the manifests of a work; they share its memory.
func manifestsOf(work *unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	found, _, err := unstructured.NestedFieldNoCopy(work.Object, "spec", "workload", "manifests")
	if err != nil {
		return nil, fmt.Errorf("read spec.workload.manifests: %w", err)
	}

	list, ok := found.([]any)
	if !ok && found != nil {
		return nil, errors.New("spec.workload.manifests is no list")
	}

	manifests := make([]*unstructured.Unstructured, 0, len(list))

	for i, item := range list {
		object, ok := item.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("manifest %d is no object", i+1)
		}

		manifests = append(manifests, &unstructured.Unstructured{Object: object})
	}

	return manifests, nil
}

// Nested gives the manifest of a live work that is wanted, with what the agent has told of
// it as statusFeedback and conditions: nil if there is none. Of several that match labels,
// the one of the highest generation, then the first by name. It is a copy.
func Nested(work *unstructured.Unstructured, wanted transport.Query) (*unstructured.Unstructured, error) {
	manifests, err := manifestsOf(work)
	if err != nil {
		return nil, err
	}

	var matching []*unstructured.Unstructured

	for _, manifest := range manifests {
		if matches(wanted, manifest) {
			matching = append(matching, manifest)
		}
	}

	if len(matching) == 0 {
		return nil, nil //nolint:nilnil // no manifest is no error
	}

	best := slices.MinFunc(matching, func(a, b *unstructured.Unstructured) int {
		// What is no number counts as none.
		generationA, _ := stamp.Generation(a)
		generationB, _ := stamp.Generation(b)

		return cmp.Or(cmp.Compare(generationB, generationA), cmp.Compare(a.GetName(), b.GetName()))
	})

	return told(work, best.DeepCopy()), nil
}

func matches(w transport.Query, manifest *unstructured.Unstructured) bool {
	if w.Namespace != "" && manifest.GetNamespace() != "" && w.Namespace != manifest.GetNamespace() {
		return false
	}

	if w.Name != "" {
		return w.Name == manifest.GetName()
	}

	return labels.SelectorFromSet(w.Labels).Matches(labels.Set(manifest.GetLabels()))
}

// told adds what status.resourceStatus.manifests has of the manifest.
func told(work, manifest *unstructured.Unstructured) *unstructured.Unstructured {
	statuses, _, _ := unstructured.NestedSlice(work.Object, "status", "resourceStatus", "manifests")

	gvk := manifest.GroupVersionKind()

	for _, item := range statuses {
		status, ok := item.(map[string]any)
		if !ok {
			continue
		}

		is := func(field, want string) bool {
			got, _, _ := unstructured.NestedString(status, "resourceMeta", field)

			return got == want
		}
		if !is("kind", gvk.Kind) || !is("group", gvk.Group) ||
			!is("name", manifest.GetName()) || !is("namespace", manifest.GetNamespace()) {
			continue
		}

		for _, field := range []string{"statusFeedback", "conditions"} {
			if value, there := status[field]; there {
				manifest.Object[field] = value
			}
		}
	}

	return manifest
}
