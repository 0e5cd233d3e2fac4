// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	_ "embed" // preface.md
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// preface is the text before the first definition.
//
//go:embed preface.md
var preface string

var errNoCRDs = errors.New("no CustomResourceDefinition found")

// loadCRDs reads the definitions in a folder, sorted by group and kind.
func loadCRDs(dir string) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}

	if len(files) == 0 {
		return nil, fmt.Errorf("read %s: %w: run make generate", dir, errNoCRDs)
	}

	crds := make([]*apiextensionsv1.CustomResourceDefinition, 0, len(files))

	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}

		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(raw, crd); err != nil {
			return nil, fmt.Errorf("decode %s: %w", file, err)
		}

		crds = append(crds, crd)
	}

	slices.SortFunc(crds, func(a, b *apiextensionsv1.CustomResourceDefinition) int {
		return cmp.Or(cmp.Compare(a.Spec.Group, b.Spec.Group), cmp.Compare(a.Spec.Names.Kind, b.Spec.Names.Kind))
	})

	return crds, nil
}

// renderPage returns the page with all definitions in Markdown.
func renderPage(crds []*apiextensionsv1.CustomResourceDefinition) (string, error) {
	var out strings.Builder

	out.WriteString(preface)

	for _, crd := range crds {
		for _, version := range crd.Spec.Versions {
			if version.Schema == nil || version.Schema.OpenAPIV3Schema == nil {
				return "", fmt.Errorf("write %s %s: it has no schema", crd.Name, version.Name)
			}

			writeKind(&out, crd, &version)
		}
	}

	return out.String(), nil
}

func writeKind(
	out *strings.Builder, crd *apiextensionsv1.CustomResourceDefinition, version *apiextensionsv1.CustomResourceDefinitionVersion,
) {
	root := version.Schema.OpenAPIV3Schema
	names := crd.Spec.Names

	fmt.Fprintf(out, "\n## %s\n\n%s\n\n", names.Kind, joinLines(root.Description))
	fmt.Fprintf(out, "`apiVersion: %s/%s`, %s. `kubectl get %s`",
		crd.Spec.Group, version.Name, formatScope(crd.Spec.Scope), names.Plural)

	for _, short := range names.ShortNames {
		fmt.Fprintf(out, " or `kubectl get %s`", short)
	}

	columns := make([]string, 0, len(version.AdditionalPrinterColumns))

	for _, column := range version.AdditionalPrinterColumns {
		name := column.Name
		if column.Priority > 0 {
			name += " (with `-o wide`)"
		}

		columns = append(columns, name)
	}

	fmt.Fprintf(out, " shows: %s.\n", strings.Join(columns, ", "))

	for _, part := range []string{"spec", "status"} {
		if schema, exists := root.Properties[part]; exists {
			fmt.Fprintf(out, "\n### %s %s\n\n", names.Kind, part)
			out.WriteString("| Field | Type | Default | Limits | Description |\n|---|---|---|---|---|\n")
			writeFields(out, "", &schema)
		}
	}

	writeRules(out, names.Kind, root)
}

func formatScope(s apiextensionsv1.ResourceScope) string {
	if s == apiextensionsv1.ClusterScoped {
		return "cluster-scoped"
	}

	return "namespaced"
}

// writeFields writes a table row for each field in the schema and for each nested field.
func writeFields(out *strings.Builder, path string, schema *apiextensionsv1.JSONSchemaProps) {
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		field := schema.Properties[name]
		full := strings.TrimPrefix(path+"."+name, ".")
		label := "`" + full + "`"

		if slices.Contains(schema.Required, name) {
			label = "**" + label + "**"
		}

		fmt.Fprintf(out, "| %s | %s | %s | %s | %s |\n", label, describeType(name, &field), formatDefault(&field),
			escapeCell(strings.Join(describeLimits(&field), "; ")), escapeCell(joinLines(field.Description)))

		if inner, suffix := nestedSchema(name, &field); inner != nil {
			writeFields(out, full+suffix, inner)
		}
	}
}

// nestedSchema returns the schema with the nested fields of a field, and the suffix of their path. It
// returns nil for fields that the preface describes.
func nestedSchema(name string, schema *apiextensionsv1.JSONSchemaProps) (*apiextensionsv1.JSONSchemaProps, string) {
	switch {
	case name == "conditions" || name == "secretKeyRef":
		return nil, ""
	case schema.Items != nil && schema.Items.Schema != nil:
		return schema.Items.Schema, "[]"
	case schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil:
		return schema.AdditionalProperties.Schema, "{}"
	default:
		return schema, ""
	}
}

func describeType(name string, schema *apiextensionsv1.JSONSchemaProps) string {
	switch {
	case name == "conditions":
		return "list of conditions"
	case schema.XIntOrString:
		return "quantity"
	case schema.Type == "array" && schema.Items != nil && schema.Items.Schema != nil:
		return "list of " + pluralize(describeType("", schema.Items.Schema))
	case schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil:
		return "map of " + pluralize(describeType("", schema.AdditionalProperties.Schema))
	case schema.Format == "byte":
		return "base64"
	case schema.Format == "date-time":
		return "time"
	default:
		return schema.Type
	}
}

func pluralize(word string) string { return word + "s" }

func formatDefault(schema *apiextensionsv1.JSONSchemaProps) string {
	if schema.Default == nil || string(schema.Default.Raw) == "{}" {
		return ""
	}

	return "`" + strings.Trim(string(schema.Default.Raw), `"`) + "`"
}

// describeLimits describes the values that a field accepts.
func describeLimits(schema *apiextensionsv1.JSONSchemaProps) []string {
	var out []string

	values := make([]string, 0, len(schema.Enum))
	for _, value := range schema.Enum {
		values = append(values, "`"+strings.Trim(string(value.Raw), `"`)+"`")
	}

	if len(values) > 0 {
		out = append(out, "one of "+strings.Join(values, ", "))
	}

	switch {
	case schema.Minimum != nil && schema.Maximum != nil:
		out = append(out, formatNumber(*schema.Minimum)+" to "+formatNumber(*schema.Maximum))
	case schema.Minimum != nil:
		out = append(out, "at least "+formatNumber(*schema.Minimum))
	case schema.Maximum != nil:
		out = append(out, "at most "+formatNumber(*schema.Maximum))
	}

	for _, limit := range []struct {
		value  *int64
		format string
	}{
		{schema.MaxLength, "at most %d characters"},
		{schema.MaxItems, "at most %d items"},
		{schema.MaxProperties, "at most %d entries"},
	} {
		if limit.value != nil {
			out = append(out, fmt.Sprintf(limit.format, *limit.value))
		}
	}

	return out
}

func formatNumber(value float64) string { return strconv.FormatFloat(value, 'f', -1, 64) }

// writeRules writes the error message of each validation rule, with the path of its field.
func writeRules(out *strings.Builder, kind string, root *apiextensionsv1.JSONSchemaProps) {
	var rules []string

	collectRules(root, "", func(path, message string) {
		field := "the object"
		if path != "" {
			field = "`" + path + "`"
		}

		rules = append(rules, "- "+field+": "+message+"\n")
	})

	if len(rules) > 0 {
		fmt.Fprintf(out, "\n### %s rules\n\nThe API server returns these error messages:\n\n%s", kind, strings.Join(rules, ""))
	}
}

// collectRules calls add for each rule of the schema and of its nested fields.
func collectRules(schema *apiextensionsv1.JSONSchemaProps, path string, add func(path, message string)) {
	for _, rule := range schema.XValidations {
		add(path, rule.Message)
	}

	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		field := schema.Properties[name]
		full := strings.TrimPrefix(path+"."+name, ".")

		inner, suffix := nestedSchema(name, &field)
		if inner == nil {
			continue
		}

		if suffix != "" {
			for _, rule := range field.XValidations {
				add(full, rule.Message)
			}
		}

		collectRules(inner, full+suffix, add)
	}
}

// joinLines joins the lines of a description.
func joinLines(text string) string { return strings.Join(strings.Fields(text), " ") }

// escapeCell escapes characters that would end a table cell.
func escapeCell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
