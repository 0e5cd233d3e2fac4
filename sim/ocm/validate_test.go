// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ocm_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hyperfleet/hyperfleet/sim/ocm"
)

func object(apiVersion, kind, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": name, "namespace": "home"}}}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)

	return o
}

func configMap(value string) map[string]any {
	o := object("v1", "ConfigMap", "one")
	o.Object["data"] = map[string]any{"a": value}

	return o.Object
}

// What the hub refuses. The agent's life is tested where works are written, in
// platform/adapter/resources.
func TestValidate(t *testing.T) {
	t.Parallel()

	generated := object("v1", "ConfigMap", "x")
	generated.SetGenerateName("x-")

	cases := map[string]struct {
		manifests []any
		want      string
	}{
		"good":          {manifests: []any{configMap("1")}},
		"empty":         {want: "manifests should not be empty"},
		"no kind":       {manifests: []any{map[string]any{"metadata": map[string]any{"name": "x"}}}, want: "'Kind' is missing"},
		"no name":       {manifests: []any{object("v1", "ConfigMap", "").Object}, want: "name must be set in manifest"},
		"generate name": {manifests: []any{generated.Object}, want: "generateName must not be set"},
		"big":           {manifests: []any{configMap(strings.Repeat("x", 500*1024))}, want: "exceeds the 512000 limit"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			work := object("work.open-cluster-management.io/v1", "ManifestWork", "app")
			work.Object["spec"] = map[string]any{"workload": map[string]any{"manifests": tc.manifests}}

			err := ocm.Validate(work)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("Validate() = %v, want %q", err, tc.want)
			}
		})
	}
}
