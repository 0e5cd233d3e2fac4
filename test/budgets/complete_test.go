// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package budgets_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// longLimit is the limit, in characters, up to which a text is not measured.
const longLimit = 4 << 10

// quantityPattern is the pattern of every Quantity. Without it, reading one of 1 MiB took 18 seconds, and reading
// 1e999999999 did not end.
const quantityPattern = "^[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$"

// textUse says how a long text of a spec is measured: as an input kind, or not, for a reason.
type textUse struct{ kind, reason string }

func asKind(name string) textUse { return textUse{kind: name} }

func withoutKind(reason string) textUse { return textUse{reason: reason} }

// longTexts returns all texts of specs that may be longer than 4 KiB, and objects with unknown fields.
func longTexts() map[string]textUse {
	labels := withoutKind("these texts are only copied or compared; the API server accepts objects of up to 1.5 MiB")

	return map[string]textUse{
		"HypervisorCluster spec.allowedNamespaces[].selector.matchLabels{}":             labels,
		"HypervisorCluster spec.external.settings{}":                                    withoutKind("a rule of the schema limits these texts to 1024 characters"),
		"HypervisorCluster spec.kubevirt.nodeSelector{}":                                labels,
		"HypervisorCluster spec.tags{}":                                                 labels,
		"HypervisorCluster spec.tls.caBundle":                                           asKind("CA bundle"),
		"HypervisorMachineTemplate spec.bootstrap.config.externalSecrets.caBundle":      asKind("CA bundle"),
		"HypervisorMachineTemplate spec.bootstrap.config.externalSecrets.keys{}":        labels,
		"HypervisorMachineTemplate spec.cloudInit.metaData":                             asKind("metaData"),
		"HypervisorMachineTemplate spec.cloudInit.networkData":                          asKind("networkData"),
		"HypervisorMachineTemplate spec.cloudInit.userData":                             asKind("userData"),
		"HypervisorMachineTemplate spec.metadata.annotations{}":                         labels,
		"HypervisorMachineTemplate spec.metadata.labels{}":                              labels,
		"MachineClaim spec.workloadConfig.config.buildkite.metadata{}":                  labels,
		"RunnerLog spec.text":                                                           withoutKind("the text is only shown"),
		"RunnerPool spec.workload.config.buildkite.metadata{}":                          labels,
		"HostFleet spec.rollout.maxUnavailable":                                         withoutKind("a number, or a percentage of three digits: the schema has a rule"),
		"KubevirtMachine spec.bootstrapNetworkConfig.networkData":                       asKind("network data"),
		"KubevirtMachine spec.virtualMachineTemplate":                                   asKind("virtualMachineTemplate"),
		"KubevirtMachineTemplate spec.template.spec.bootstrapNetworkConfig.networkData": asKind("network data"),
		"KubevirtMachineTemplate spec.template.spec.virtualMachineTemplate":             asKind("virtualMachineTemplate"),
		"KubevirtNodePool spec.bootstrapNetworkConfig.networkData":                      asKind("network data"),
		"KubevirtNodePool spec.nodeSelector{}":                                          labels,
	}
}

// TestKindsAreComplete checks that every long text that a tenant may write into an object is measured as one of
// the kinds, or has a reason why not, and that every list and every map has a limit, because many short texts are
// as expensive as a long one.
func TestKindsAreComplete(t *testing.T) {
	t.Parallel()

	files, err := filepath.Glob("../../deploy/crds/*_*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d CRDs: %v", len(files), err)
	}

	found, table, all := newFindings(), longTexts(), inputKinds()

	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}

		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			t.Fatalf("%s: %v", file, err)
		}

		for _, version := range crd.Spec.Versions {
			for _, name := range slices.Sorted(maps.Keys(version.Schema.OpenAPIV3Schema.Properties)) {
				// The API server limits an object's metadata, and the operator writes the status.
				if slices.Contains([]string{"apiVersion", "kind", "metadata", "status"}, name) {
					continue
				}

				part := version.Schema.OpenAPIV3Schema.Properties[name]
				walk(&part, crd.Spec.Names.Kind+" "+name, found)
			}
		}
	}

	for path := range found.texts {
		what, ok := table[path]
		if _, measured := all[what.kind]; !ok || !measured && what.reason == "" {
			t.Errorf("%s may have more than %d characters: limit it, or add it to longTexts", path, longLimit)
		}
	}

	for path := range found.unlimited {
		t.Errorf("%s may have any number of items: add maxItems or maxProperties", path)
	}

	for path := range table {
		if !found.texts[path] {
			t.Errorf("%s is not a long text: remove it from longTexts", path)
		}
	}
}

// TestWalkFindsLongTexts checks that walk finds a text everywhere in a schema.
func TestWalkFindsLongTexts(t *testing.T) {
	t.Parallel()

	var schema apiextensionsv1.JSONSchemaProps
	if err := yaml.UnmarshalStrict([]byte(`
properties:
  short: {type: string, maxLength: 4096}
  chosen: {type: string, enum: [a, b]}
  time: {type: string, format: date-time}
  number: {type: integer}
  items: {type: array, items: {properties: {long: {type: string, maxLength: 4097}}}}
  few: {type: array, maxItems: 3, items: {properties: {many: {type: array, items: {type: integer}}}}}
  map: {type: object, additionalProperties: {type: string}}
  small: {type: object, maxProperties: 3, additionalProperties: {type: integer}}
  any: {x-kubernetes-preserve-unknown-fields: true}
  size: {x-kubernetes-int-or-string: true}
  amount: {x-kubernetes-int-or-string: true, pattern: '^[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$'}
  ruled:
    x-kubernetes-int-or-string: true
    x-kubernetes-validations: [{rule: "string(self).matches('^[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$')"}]
  untyped: {type: object, additionalProperties: true}
`), &schema); err != nil {
		t.Fatal(err)
	}

	found := newFindings()
	walk(&schema, "spec", found)

	for want, got := range map[string]map[string]bool{
		"spec.any spec.items[].long spec.map{} spec.size spec.untyped": found.texts,
		"spec.few[].many[] spec.items[] spec.map{} spec.untyped{}":     found.unlimited,
	} {
		if got := strings.Join(slices.Sorted(maps.Keys(got)), " "); got != want {
			t.Errorf("found %s, want %s", got, want)
		}
	}
}

// findings are the texts of a schema that may be long and objects with unknown fields, and the lists and maps
// without a limit.
type findings struct{ texts, unlimited map[string]bool }

func newFindings() findings { return findings{texts: map[string]bool{}, unlimited: map[string]bool{}} }

// walk finds what a schema does not limit.
func walk(schema *apiextensionsv1.JSONSchemaProps, path string, found findings) {
	bounded := schema.MaxLength != nil && *schema.MaxLength <= longLimit || len(schema.Enum) > 0 || schema.Format == "date-time" ||
		strings.Contains(schema.Pattern, quantityPattern)
	for _, rule := range schema.XValidations {
		bounded = bounded || strings.Contains(rule.Rule, quantityPattern)
	}

	if (schema.Type == "string" || schema.XIntOrString) && !bounded || schema.XEmbeddedResource ||
		schema.XPreserveUnknownFields != nil && *schema.XPreserveUnknownFields {
		found.texts[path] = true
	}

	if schema.Type == "array" && schema.MaxItems == nil {
		found.unlimited[path+"[]"] = true
	}

	if schema.AdditionalProperties != nil && schema.MaxProperties == nil {
		found.unlimited[path+"{}"] = true
	}

	for name := range schema.Properties {
		part := schema.Properties[name]
		walk(&part, path+"."+name, found)
	}

	if schema.Items != nil && schema.Items.Schema != nil {
		walk(schema.Items.Schema, path+"[]", found)
	}

	switch more := schema.AdditionalProperties; {
	case more == nil:
	case more.Schema != nil:
		walk(more.Schema, path+"{}", found)
	case more.Allows:
		found.texts[path] = true
	}
}
