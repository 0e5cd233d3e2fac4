// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guides_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// TestLimitsOfCRDs compares the limits of all fields with testdata/limits.txt: the bounds of numbers, texts, lists and
// maps, and the values of enumerations. The tests of package contracts check that the API server enforces them.
func TestLimitsOfCRDs(t *testing.T) {
	t.Parallel()

	files, err := filepath.Glob("../../deploy/crds/*_*.yaml")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d CRDs found: %v", len(files), err)
	}

	var got []string

	for _, file := range files {
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict([]byte(readFile(t, file)), &crd); err != nil {
			t.Fatal(err)
		}

		for _, version := range crd.Spec.Versions {
			for _, part := range []string{"spec", "status"} {
				schema := version.Schema.OpenAPIV3Schema.Properties[part]
				got = append(got, listLimits(&schema, crd.Spec.Names.Kind+" "+part)...)
			}
		}
	}

	slices.Sort(got)

	want := strings.Split(strings.TrimSpace(readFile(t, "testdata/limits.txt")), "\n")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("change test/guides/testdata/limits.txt, and name each limit that becomes stricter in CHANGELOG.md (-want +got):\n%s", diff)
	}
}

// listLimits returns the limits of a schema and of the schemas below it.
func listLimits(schema *apiextensionsv1.JSONSchemaProps, path string) []string {
	var out []string

	for key, limit := range map[string]*int64{
		"minLength": schema.MinLength, "maxLength": schema.MaxLength, "minItems": schema.MinItems, "maxItems": schema.MaxItems,
		"minProperties": schema.MinProperties, "maxProperties": schema.MaxProperties,
	} {
		if limit != nil {
			out = append(out, fmt.Sprintf("%s | %s %d", path, key, *limit))
		}
	}

	for key, limit := range map[string]*float64{"minimum": schema.Minimum, "maximum": schema.Maximum} {
		if limit != nil {
			out = append(out, fmt.Sprintf("%s | %s %.0f", path, key, *limit))
		}
	}

	if len(schema.Enum) > 0 {
		var values []string
		for _, value := range schema.Enum {
			values = append(values, string(value.Raw))
		}

		out = append(out, path+" | enum "+strings.Join(values, " "))
	}

	if len(schema.Required) > 0 {
		out = append(out, path+" | required "+strings.Join(schema.Required, " "))
	}

	for name, field := range schema.Properties {
		out = append(out, listLimits(&field, path+"."+name)...)
	}

	if schema.Items != nil && schema.Items.Schema != nil {
		out = append(out, listLimits(schema.Items.Schema, path+"[]")...)
	}

	if schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil {
		out = append(out, listLimits(schema.AdditionalProperties.Schema, path+"{}")...)
	}

	return out
}
