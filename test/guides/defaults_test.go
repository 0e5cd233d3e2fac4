// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guides_test

import (
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/test/defaults"
)

// TestDefaultsOfTheOperator checks the defaults of the operator's configuration, and that its page has them.
func TestDefaultsOfTheOperator(t *testing.T) {
	t.Parallel()

	settings := slices.DeleteFunc(defaults.OfStruct(v1alpha1.Default()), func(s defaults.Setting) bool {
		return s.Name == "apiVersion" || s.Name == "kind"
	})

	defaults.Check(t, "config operator", settings)
	defaults.CheckPage(t, readFile(t, "../../docs/reference/config.md"), settings)
}

// TestDefaultsOfCRDs checks the defaults of the fields of all kinds, and that their page has them.
func TestDefaultsOfCRDs(t *testing.T) {
	t.Parallel()

	files, err := filepath.Glob("../../deploy/crds/*_*.yaml")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d CRDs found: %v", len(files), err)
	}

	page := readFile(t, "../../docs/reference/api.md")

	var all []defaults.Setting

	for _, file := range files {
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict([]byte(readFile(t, file)), &crd); err != nil {
			t.Fatal(err)
		}

		kind := crd.Spec.Names.Kind

		for _, version := range crd.Spec.Versions {
			for _, part := range []string{"spec", "status"} {
				schema := version.Schema.OpenAPIV3Schema.Properties[part]
				settings := findDefaults(&schema, "")

				for _, setting := range settings {
					all = append(all, defaults.Setting{Name: kind + " " + part + "." + setting.Name, Default: setting.Default})
				}

				_, section, _ := strings.Cut(page, "\n### "+kind+" "+part+"\n")
				section, _, _ = strings.Cut(section, "\n#")

				// The page shows neither the default of a whole status nor that of an object whose fields have defaults.
				defaults.CheckPage(t, section, slices.DeleteFunc(settings, func(s defaults.Setting) bool {
					return s.Default == "{}" || s.Name == ""
				}))
			}
		}
	}

	defaults.Check(t, "crd", all)
}

// findDefaults returns the defaults in a schema and in the schemas below it.
func findDefaults(schema *apiextensionsv1.JSONSchemaProps, path string) []defaults.Setting {
	var out []defaults.Setting

	if schema.Default != nil && string(schema.Default.Raw) != `""` {
		out = append(out, defaults.Setting{Name: path, Default: defaults.Normalize(strings.Trim(string(schema.Default.Raw), `"`))})
	}

	for name, field := range schema.Properties {
		out = append(out, findDefaults(&field, strings.TrimPrefix(path+"."+name, "."))...)
	}

	if schema.Items != nil && schema.Items.Schema != nil {
		out = append(out, findDefaults(schema.Items.Schema, path+"[]")...)
	}

	if schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil {
		out = append(out, findDefaults(schema.AdditionalProperties.Schema, path+"{}")...)
	}

	return out
}

// TestDefaultsOfCharts checks the values of the charts, and that their comments have the values of the manifests.
func TestDefaultsOfCharts(t *testing.T) {
	t.Parallel()

	// manifests are the files whose values the comments in values.yaml name.
	manifests := map[string]map[string][]string{
		"hyperfleet": {
			"replicas": {"base/deployment.yaml", "base/networking.yaml", "base/hosts.yaml", "bridge/bridge.yaml"},
		},
		"hyperfleet-platform": {"replicas": {"platform/api.yaml"}, "schedule": {"platform/sweep.yaml"}},
	}

	for _, chart := range []string{"hyperfleet", "hyperfleet-crds", "hyperfleet-platform"} {
		text := readFile(t, "../../deploy/charts/"+chart+"/values.yaml")

		var values map[string]any
		if err := yaml.UnmarshalStrict([]byte(text), &values); err != nil {
			t.Fatal(err)
		}

		settings := flattenValues(values, "")

		for key, files := range manifests[chart] {
			for _, file := range files {
				value := findValue(readFile(t, "../../deploy/"+file), key)
				settings = append(settings, defaults.Setting{Name: key + " of " + file, Default: value})

				if !strings.Contains(text, "  #   "+key+": "+value+" ") {
					t.Errorf("the comments in the values of %s do not have %s: %s of %s", chart, key, value, file)
				}
			}
		}

		defaults.Check(t, "chart "+chart, settings)
	}

	// Values of an earlier release have no drain.
	drain := readFile(t, "../../deploy/charts/hyperfleet/templates/drain.yaml")
	if value := findValue(readFile(t, "../../deploy/charts/hyperfleet/values.yaml"), "timeout"); !strings.Contains(drain, `dig "timeout" "`+value+`"`) {
		t.Errorf("drain.yaml does not use %s without the value drain.timeout", value)
	}
}

// findValue returns the value of the first line with the key in a YAML text.
func findValue(text, key string) string {
	for line := range strings.Lines(text) {
		if value, found := strings.CutPrefix(strings.TrimSpace(line), key+": "); found {
			return value
		}
	}

	return ""
}

// flattenValues returns the values that are not empty.
func flattenValues(value any, path string) []defaults.Setting {
	switch value := value.(type) {
	case map[string]any:
		var out []defaults.Setting
		for _, name := range slices.Sorted(maps.Keys(value)) {
			out = append(out, flattenValues(value[name], strings.TrimPrefix(path+"."+name, "."))...)
		}

		return out
	case bool:
		if value {
			return []defaults.Setting{{Name: path, Default: strconv.FormatBool(value)}}
		}
	case string:
		if value != "" {
			return []defaults.Setting{{Name: path, Default: value}}
		}
	}

	return nil
}
