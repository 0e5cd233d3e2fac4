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

// preface begins the page.
//
//go:embed preface.md
var preface string

var errNone = errors.New("no CustomResourceDefinition found")

// load reads the definitions in a folder, ordered by kind.
func load(dir string) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}

	if len(files) == 0 {
		return nil, fmt.Errorf("read %s: %w: run make generate", dir, errNone)
	}

	crds := make([]*apiextensionsv1.CustomResourceDefinition, 0, len(files))

	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}

		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(raw, crd); err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}

		crds = append(crds, crd)
	}

	slices.SortFunc(crds, func(a, b *apiextensionsv1.CustomResourceDefinition) int {
		return cmp.Or(cmp.Compare(a.Spec.Group, b.Spec.Group), cmp.Compare(a.Spec.Names.Kind, b.Spec.Names.Kind))
	})

	return crds, nil
}

// page writes the definitions as Markdown.
func page(crds []*apiextensionsv1.CustomResourceDefinition) (string, error) {
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

	fmt.Fprintf(out, "\n## %s\n\n%s\n\n", names.Kind, sentence(root.Description))
	fmt.Fprintf(out, "`apiVersion: %s/%s`, %s. `kubectl get %s`", crd.Spec.Group, version.Name, scope(crd.Spec.Scope), names.Plural)

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
			out.WriteString("| Field | Type | Default | Limits | What it is |\n|---|---|---|---|---|\n")
			writeFields(out, "", &schema)
		}
	}

	writeRules(out, names.Kind, root)
}

func scope(s apiextensionsv1.ResourceScope) string {
	if s == apiextensionsv1.ClusterScoped {
		return "without a namespace"
	}

	return "in a namespace"
}

// writeFields writes a row for each field in the schema and for those in it.
func writeFields(out *strings.Builder, path string, schema *apiextensionsv1.JSONSchemaProps) {
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		field := schema.Properties[name]
		full := strings.TrimPrefix(path+"."+name, ".")
		shown := "`" + full + "`"

		if slices.Contains(schema.Required, name) {
			shown = "**" + shown + "**"
		}

		fmt.Fprintf(out, "| %s | %s | %s | %s | %s |\n", shown, typeOf(name, &field), defaultOf(&field),
			cell(strings.Join(limits(&field), "; ")), cell(sentence(field.Description)))

		if inner, suffix := insideOf(name, &field); inner != nil {
			writeFields(out, full+suffix, inner)
		}
	}
}

// insideOf gives the fields inside a field, and what its path is followed by. Those that
// the preface speaks of are left out.
func insideOf(name string, schema *apiextensionsv1.JSONSchemaProps) (*apiextensionsv1.JSONSchemaProps, string) {
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

func typeOf(name string, schema *apiextensionsv1.JSONSchemaProps) string {
	switch {
	case name == "conditions":
		return "list of conditions"
	case schema.XIntOrString:
		return "quantity"
	case schema.Type == "array" && schema.Items != nil && schema.Items.Schema != nil:
		return "list of " + plural(typeOf("", schema.Items.Schema))
	case schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil:
		return "map of " + plural(typeOf("", schema.AdditionalProperties.Schema))
	case schema.Format == "byte":
		return "base64"
	case schema.Format == "date-time":
		return "time"
	default:
		return schema.Type
	}
}

func plural(word string) string { return word + "s" }

func defaultOf(schema *apiextensionsv1.JSONSchemaProps) string {
	if schema.Default == nil || string(schema.Default.Raw) == "{}" {
		return ""
	}

	return "`" + strings.Trim(string(schema.Default.Raw), `"`) + "`"
}

// limits says in words what values are taken.
func limits(schema *apiextensionsv1.JSONSchemaProps) []string {
	var said []string

	values := make([]string, 0, len(schema.Enum))
	for _, value := range schema.Enum {
		values = append(values, "`"+strings.Trim(string(value.Raw), `"`)+"`")
	}

	if len(values) > 0 {
		said = append(said, "one of "+strings.Join(values, ", "))
	}

	switch {
	case schema.Minimum != nil && schema.Maximum != nil:
		said = append(said, number(*schema.Minimum)+" to "+number(*schema.Maximum))
	case schema.Minimum != nil:
		said = append(said, "at least "+number(*schema.Minimum))
	case schema.Maximum != nil:
		said = append(said, "at most "+number(*schema.Maximum))
	}

	for _, limit := range []struct {
		value *int64
		words string
	}{
		{schema.MaxLength, "at most %d characters"},
		{schema.MaxItems, "at most %d items"},
		{schema.MaxProperties, "at most %d entries"},
	} {
		if limit.value != nil {
			said = append(said, fmt.Sprintf(limit.words, *limit.value))
		}
	}

	return said
}

func number(value float64) string { return strconv.FormatFloat(value, 'f', -1, 64) }

// writeRules lists the messages of the rules, each once for each field.
func writeRules(out *strings.Builder, kind string, root *apiextensionsv1.JSONSchemaProps) {
	var rules []string

	collect(root, "", func(path, message string) {
		place := "the object"
		if path != "" {
			place = "`" + path + "`"
		}

		rules = append(rules, "- "+place+": "+message+"\n")
	})

	if len(rules) > 0 {
		fmt.Fprintf(out, "\n### %s rules\n\nThe API server answers with these words:\n\n%s", kind, strings.Join(rules, ""))
	}
}

func collect(schema *apiextensionsv1.JSONSchemaProps, path string, add func(path, message string)) {
	for _, rule := range schema.XValidations {
		add(path, rule.Message)
	}

	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		field := schema.Properties[name]
		full := strings.TrimPrefix(path+"."+name, ".")

		inner, suffix := insideOf(name, &field)
		if inner == nil {
			continue
		}

		if suffix != "" {
			for _, rule := range field.XValidations {
				add(full, rule.Message)
			}
		}

		collect(inner, full+suffix, add)
	}
}

// sentence puts a description on one line.
func sentence(text string) string { return strings.Join(strings.Fields(text), " ") }

// cell keeps a text from ending its cell.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
