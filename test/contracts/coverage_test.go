// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// readCRDs reads the CustomResourceDefinitions by kind.
func readCRDs(t testing.TB) map[string]*apiextensionsv1.CustomResourceDefinition {
	t.Helper()

	files, err := filepath.Glob("../../deploy/crds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("read CustomResourceDefinitions: %d found, error %v", len(files), err)
	}

	found := map[string]*apiextensionsv1.CustomResourceDefinition{}

	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}

		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(raw, crd); err != nil {
			t.Fatalf("%s: %v", file, err)
		}

		found[crd.Spec.Names.Kind] = crd
	}

	return found
}

// walkSchema visits the schema and everything in it. Items of lists have the path path[], and of maps path{}.
func walkSchema(schema *apiextensionsv1.JSONSchemaProps, path string, visit func(string, *apiextensionsv1.JSONSchemaProps)) {
	visit(path, schema)

	for name, property := range schema.Properties {
		walkSchema(&property, strings.TrimPrefix(path+"."+name, "."), visit)
	}

	if schema.Items != nil && schema.Items.Schema != nil {
		walkSchema(schema.Items.Schema, path+".[]", visit)
	}

	if schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil {
		walkSchema(schema.AdditionalProperties.Schema, path+".{}", visit)
	}
}

// Every rule has a message, and a row of the tables that violates it.
func TestEveryRuleHasARow(t *testing.T) {
	t.Parallel()

	wanted := map[string][]string{}

	for base, rows := range listRejections() {
		kind := parseObject(t, base).GetKind()
		for _, row := range rows {
			wanted[kind] = append(wanted[kind], row.want)
		}
	}

	for _, row := range listUpdates() {
		if row.want != "" {
			kind := parseObject(t, row.base).GetKind()
			wanted[kind] = append(wanted[kind], row.want)
		}
	}

	for kind, crd := range readCRDs(t) {
		walkSchema(crd.Spec.Versions[0].Schema.OpenAPIV3Schema, "", func(path string, schema *apiextensionsv1.JSONSchemaProps) {
			for _, rule := range schema.XValidations {
				if rule.Message == "" {
					t.Errorf("%s: the rule at %q has no message: %s", kind, path, rule.Rule)
				}

				if !anyContained(rule.Message, wanted[kind]) {
					t.Errorf("%s: no row of the tables expects the message at %q: %s", kind, path, rule.Message)
				}
			}
		})
	}
}

// barePatterns are the fields of specs that have a pattern and no rule, each with the reason.
func barePatterns() map[string]string {
	return map[string]string{
		"HypervisorCluster spec.allowedNamespaces.[].quota.memory": "before Kubernetes 1.34 the API server ignores the maxLength " +
			"of a quantity, and any rule about 64 quantities exceeds its cost budget",
		"HypervisorCluster spec.libvirt.hosts.[].maxMemory": "the same, with 100 quantities",
	}
}

// The API server answers a violated pattern with the pattern. A rule has a message, which says what to write.
func TestNoSpecHasABarePattern(t *testing.T) {
	t.Parallel()

	allowed := barePatterns()

	for kind, crd := range readCRDs(t) {
		// Only programs write the rest of an object, and users cannot act on what is refused there.
		spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]

		walkSchema(&spec, "spec", func(path string, schema *apiextensionsv1.JSONSchemaProps) {
			if schema.Pattern == "" {
				return
			}

			field := kind + " " + path
			if _, ok := allowed[field]; !ok {
				t.Errorf("%s has the pattern %s: replace Pattern by XValidation with matches and a message (with Schemaless and "+
					"XIntOrString for a quantity)", field, schema.Pattern)
			}

			delete(allowed, field)
		})
	}

	for field := range allowed {
		t.Errorf("barePatterns lists %s, which has no pattern", field)
	}
}

func anyContained(text string, parts []string) bool {
	for _, part := range parts {
		if strings.Contains(text, part) {
			return true
		}
	}

	return false
}

// bound is a limit of the schema and a value just beyond it.
type bound struct {
	path   string
	beyond any
	want   string
}

// listBounds returns every limit that a spec's schema sets.
func listBounds(crd *apiextensionsv1.CustomResourceDefinition) []bound {
	var found []bound

	add := func(path string, beyond any, want string) { found = append(found, bound{path, beyond, want}) }
	spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]

	walkSchema(&spec, "spec", func(path string, schema *apiextensionsv1.JSONSchemaProps) {
		if schema.Minimum != nil {
			add(path, int64(*schema.Minimum)-1, fmt.Sprintf("greater than or equal to %d", int64(*schema.Minimum)))
		}

		if schema.Maximum != nil {
			add(path, int64(*schema.Maximum)+1, fmt.Sprintf("less than or equal to %d", int64(*schema.Maximum)))
		}

		if schema.MinLength != nil {
			add(path, strings.Repeat("a", int(*schema.MinLength)-1), fmt.Sprintf("at least %d chars", *schema.MinLength))
		}

		if schema.MaxLength != nil && schema.Format != "byte" {
			add(path, strings.Repeat("a", int(*schema.MaxLength)+1), fmt.Sprintf("may not be more than %d", *schema.MaxLength))
		}

		if schema.MaxItems != nil {
			items := newItems(int(*schema.MaxItems)+1, func(i int) string { return fmt.Sprintf("a%d", i) })
			add(path, items, fmt.Sprintf("must have at most %d items", *schema.MaxItems))
		}

		if schema.MaxProperties != nil {
			fields := anyMap{}
			for i := range *schema.MaxProperties + 1 {
				fields[fmt.Sprintf("a%d", i)] = "a"
			}

			add(path, fields, fmt.Sprintf("must have at most %d", *schema.MaxProperties))
		}

		if len(schema.Enum) > 0 {
			add(path, "none-of-them", "Unsupported value")
		}
	})

	return found
}

// The API server rejects a value just beyond each limit, and names the field.
func TestSchemaBounds(t *testing.T) {
	t.Parallel()

	bases := map[string]string{
		"HypervisorCluster": baseCluster, "HypervisorMachineTemplate": baseTemplate,
		"RunnerPool": basePool, "MachineClaim": baseClaim, "RunnerJob": baseJob, "RunnerJobBatch": baseBatch, "RunnerLog": baseLog,
		"DNSRegistration":  baseRegistration,
		"KubevirtNodePool": baseNodePool, "KubevirtMachine": baseMachine, "KubevirtMachineTemplate": baseMachineTemplate,
		"DPFHCPBridge": baseBridge,
		"HostFleet":    baseFleet, "LinuxMachine": baseLinux, "ScalewayAppleSiliconMachine": baseMac,
	}

	for kind, crd := range readCRDs(t) {
		found := listBounds(crd)
		if len(found) == 0 {
			t.Errorf("%s has no bounds", kind)
		}

		for _, row := range found {
			t.Run(kind+"/"+row.path+"/"+row.want, func(t *testing.T) {
				t.Parallel()

				object := parseObject(t, bases[kind])
				object.Object["spec"] = setBeyond(object.Object["spec"], strings.Split(row.path, ".")[1:], row.beyond)

				err := newStrictClient().Create(t.Context(), object, client.DryRunAll)
				if !apierrors.IsInvalid(err) {
					t.Fatalf("want the object to be invalid, got: %v", err)
				}

				if !strings.Contains(err.Error(), row.want) {
					t.Errorf("want %q in:\n%v", row.want, err)
				}
			})
		}
	}
}

// setBeyond sets a value at a path. [] and {} in the path create one item.
func setBeyond(node any, path []string, value any) any {
	if len(path) == 0 {
		return value
	}

	switch path[0] {
	case "[]":
		return list{setBeyond(nil, path[1:], value)}
	case "{}":
		return anyMap{"item": setBeyond(nil, path[1:], value)}
	}

	fields, isMap := node.(anyMap)
	if !isMap {
		fields = anyMap{}
	}

	fields[path[0]] = setBeyond(fields[path[0]], path[1:], value)

	return fields
}

// Every field of a spec has a description, and every text and list has a limit.
func TestEveryFieldIsDescribedAndBounded(t *testing.T) {
	t.Parallel()

	for kind, crd := range readCRDs(t) {
		spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]

		walkSchema(&spec, "spec", func(path string, schema *apiextensionsv1.JSONSchemaProps) {
			inside := strings.HasSuffix(path, "[]") || strings.HasSuffix(path, "{}")
			if !inside && schema.Description == "" {
				t.Errorf("%s: %s has no description", kind, path)
			}

			switch {
			case schema.Type == "array" && schema.MaxItems == nil:
				t.Errorf("%s: %s has no MaxItems", kind, path)
			case schema.Type == "object" && schema.AdditionalProperties != nil && schema.MaxProperties == nil:
				t.Errorf("%s: %s has no MaxProperties", kind, path)
			case schema.Type == "string" && !inside && schema.MaxLength == nil && len(schema.Enum) == 0 && schema.Format == "":
				t.Errorf("%s: %s has no MaxLength", kind, path)
			}

			// Objects of KubeVirt's API may have unknown fields. For them, the API server reports unknown
			// fields itself.
			if schema.XPreserveUnknownFields != nil && !strings.HasSuffix(path, ".virtualMachineTemplate") {
				t.Errorf("%s: %s accepts any field", kind, path)
			}
		})
	}
}

// getNested returns a nested value of an object.
func getNested(t testing.TB, object *unstructured.Unstructured, path string) any {
	t.Helper()

	value, _, err := unstructured.NestedFieldNoCopy(object.Object, strings.Split(path, ".")...)
	if err != nil {
		t.Fatal(err)
	}

	return value
}
