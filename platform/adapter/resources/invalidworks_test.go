// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport/maestro"
	"github.com/hyperfleet/hyperfleet/sim/ocm"
)

func TestInvalidWorks(t *testing.T) {
	t.Parallel()

	for want, work := range map[string]*unstructured.Unstructured{
		`"x" is not an integer`: newManifestWork("c1", "x", newNestedManifest("one", nil)),
		`manifest 2 (ConfigMap two): annotation hyperfleet.io/generation: "0"`: newManifestWork("c1", "1", newNestedManifest("one", nil),
			newNestedManifest("two", map[string]any{adapter.AnnotationGeneration: "0"})),
		"manifest 1 is not an object": newManifestWork("c1", "1", "text"),
	} {
		if err := maestro.Complete(work); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Complete() = %v, want %q", err, want)
		}
	}
}

// The hub rejects invalid works.
func TestHubValidation(t *testing.T) {
	t.Parallel()

	big, unnamed, generated := newNestedManifest("one", nil), newNestedManifest("", nil), newNestedManifest("x", map[string]any{})
	big["data"] = map[string]any{"a": strings.Repeat("x", 500*1024)}
	generated["metadata"].(map[string]any)["generateName"] = "x-"

	for name, tc := range map[string]struct {
		manifests []any
		want      string
	}{
		"good":          {manifests: []any{newNestedManifest("one", nil)}},
		"empty":         {want: "manifests should not be empty"},
		"no kind":       {manifests: []any{map[string]any{"metadata": map[string]any{"name": "x"}}}, want: "'Kind' is missing"},
		"no name":       {manifests: []any{unnamed}, want: "name must be set in manifest"},
		"generate name": {manifests: []any{generated}, want: "generateName must not be set"},
		"big":           {manifests: []any{big}, want: "exceeds the 512000 limit"},
	} {
		err := ocm.Validate(newManifestWork("c1", "1", tc.manifests...))
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: Validate() = %v, want %q", name, err, tc.want)
		}
	}
}
