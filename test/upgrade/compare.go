// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// Change takes something away: an object that was valid, or a client that was right, may not
// be so any more.
type Change struct {
	// CRD and Path say where, as in "runnerpools.hyperfleet.io" and "v1alpha1.spec.scaling".
	CRD, Path string
	// What it is, in words.
	What string
}

// String is the change in one line.
func (c Change) String() string { return c.CRD + " " + c.Path + ": " + c.What }

// comparison collects what a kind has lost.
type comparison struct {
	crd  string
	lost []Change
}

func (c *comparison) addf(path, format string, args ...any) {
	c.lost = append(c.lost, Change{CRD: c.crd, Path: path, What: fmt.Sprintf(format, args...)})
}

// Compare tells what a kind has lost between two of its definitions; now is nil for a kind that
// is gone.
func Compare(before, now *apiextensionsv1.CustomResourceDefinition) []Change {
	c := &comparison{crd: before.Name}

	if now == nil {
		c.addf("", "the kind is gone")

		return c.lost
	}

	if before.Spec.Scope != now.Spec.Scope {
		c.addf("", "the scope was %s and is %s", before.Spec.Scope, now.Spec.Scope)
	}

	for _, name := range before.Spec.Names.ShortNames {
		if !slices.Contains(now.Spec.Names.ShortNames, name) {
			c.addf("", "the short name %s is gone", name)
		}
	}

	for i := range before.Spec.Versions {
		was := &before.Spec.Versions[i]

		at := slices.IndexFunc(now.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
			return v.Name == was.Name && (v.Served || !was.Served)
		})
		if at < 0 {
			c.addf(was.Name, "the version is not served any more")

			continue
		}

		is := &now.Spec.Versions[at]
		if was.Subresources != nil && was.Subresources.Status != nil && (is.Subresources == nil || is.Subresources.Status == nil) {
			c.addf(was.Name, "the subresource status is gone")
		}

		c.schema(was.Name, was.Schema.OpenAPIV3Schema, is.Schema.OpenAPIV3Schema)
	}

	return c.lost
}

func (c *comparison) schema(path string, was, is *apiextensionsv1.JSONSchemaProps) {
	if was.Type != is.Type || was.XIntOrString != is.XIntOrString {
		c.addf(path, "the type was %s and is %s", typeOf(was), typeOf(is))
	}

	if was.Nullable && !is.Nullable {
		c.addf(path, "null is refused")
	}

	if allows(was.XPreserveUnknownFields) && !allows(is.XPreserveUnknownFields) {
		c.addf(path, "unknown fields are dropped")
	}

	c.values(path, was, is)
	c.rules(path, was, is)

	for _, name := range slices.Sorted(maps.Keys(was.Properties)) {
		field, there := is.Properties[name]
		if !there {
			c.addf(path+"."+name, "the field is gone")

			continue
		}

		before := was.Properties[name]
		c.schema(path+"."+name, &before, &field)
	}

	c.below(path, was, is)
}

// below compares what lists and maps hold.
func (c *comparison) below(path string, was, is *apiextensionsv1.JSONSchemaProps) {
	if was.Items != nil && was.Items.Schema != nil {
		if is.Items == nil || is.Items.Schema == nil {
			c.addf(path, "it is no list any more")
		} else {
			c.schema(path+"[]", was.Items.Schema, is.Items.Schema)
		}
	}

	switch before, now := was.AdditionalProperties, is.AdditionalProperties; {
	case before == nil:
	case now == nil || before.Allows && !now.Allows:
		c.addf(path, "it is no map any more")
	case before.Schema != nil && now.Schema != nil:
		c.schema(path+"{}", before.Schema, now.Schema)
	case before.Schema == nil && now.Schema != nil:
		c.addf(path, "the values of the map have a schema")
	}
}

// values compares which values a field takes.
func (c *comparison) values(path string, was, is *apiextensionsv1.JSONSchemaProps) {
	for _, name := range is.Required {
		if !slices.Contains(was.Required, name) {
			c.addf(path+"."+name, "the field has to be given")
		}
	}

	for _, value := range was.Enum {
		taken := slices.ContainsFunc(is.Enum, func(v apiextensionsv1.JSON) bool { return bytes.Equal(v.Raw, value.Raw) })
		if len(is.Enum) > 0 && !taken {
			c.addf(path, "the value %s is refused", value.Raw)
		}
	}

	if len(was.Enum) == 0 && len(is.Enum) > 0 {
		c.addf(path, "values other than a list of them are refused")
	}

	for name, bounds := range map[string][2]*int64{
		"maxLength": {was.MaxLength, is.MaxLength}, "maxItems": {was.MaxItems, is.MaxItems},
		"maxProperties": {was.MaxProperties, is.MaxProperties},
	} {
		if lower(bounds[1], bounds[0]) {
			c.addf(path, "%s was %s and is %d", name, show(bounds[0]), *bounds[1])
		}
	}

	for name, bounds := range map[string][2]*int64{
		"minLength": {was.MinLength, is.MinLength}, "minItems": {was.MinItems, is.MinItems},
		"minProperties": {was.MinProperties, is.MinProperties},
	} {
		if bounds[1] != nil && *bounds[1] > 0 && (bounds[0] == nil || *bounds[1] > *bounds[0]) {
			c.addf(path, "%s was %s and is %d", name, show(bounds[0]), *bounds[1])
		}
	}

	if is.Maximum != nil && (was.Maximum == nil || *is.Maximum < *was.Maximum) {
		c.addf(path, "maximum was %s and is %v", show(was.Maximum), *is.Maximum)
	}

	if is.Minimum != nil && (was.Minimum == nil || *is.Minimum > *was.Minimum) {
		c.addf(path, "minimum was %s and is %v", show(was.Minimum), *is.Minimum)
	}
}

// rules compares what only a person can tell wider from narrower: patterns, formats, rules.
func (c *comparison) rules(path string, was, is *apiextensionsv1.JSONSchemaProps) {
	if is.Pattern != "" && is.Pattern != was.Pattern {
		c.addf(path, "the pattern was %q and is %q", was.Pattern, is.Pattern)
	}

	if is.Format != "" && is.Format != was.Format {
		c.addf(path, "the format was %q and is %q", was.Format, is.Format)
	}

	known := map[string]bool{}
	for _, rule := range was.XValidations {
		known[rule.Rule] = true
	}

	for _, rule := range is.XValidations {
		if !known[rule.Rule] {
			c.addf(path, "there is the rule %s", rule.Rule)
		}
	}

	for name, pair := range map[string][2]any{
		"allOf": {was.AllOf, is.AllOf}, "anyOf": {was.AnyOf, is.AnyOf}, "oneOf": {was.OneOf, is.OneOf}, "not": {was.Not, is.Not},
	} {
		if before, now := text(pair[0]), text(pair[1]); now != "null" && before != now {
			c.addf(path, "%s was %s and is %s", name, before, now)
		}
	}

	if strings.Join(was.XListMapKeys, ",") != strings.Join(is.XListMapKeys, ",") || text(was.XListType) != text(is.XListType) {
		c.addf(path, "the list is merged in another way")
	}
}

func typeOf(of *apiextensionsv1.JSONSchemaProps) string {
	if of.XIntOrString {
		return "int or string"
	}

	return of.Type
}

func allows(flag *bool) bool { return flag != nil && *flag }

func lower(is, was *int64) bool { return is != nil && (was == nil || *is < *was) }

func show[T int64 | float64](bound *T) string {
	if bound == nil {
		return "not there"
	}

	return fmt.Sprint(*bound)
}

func text(of any) string {
	raw, err := json.Marshal(of)
	if err != nil {
		return err.Error()
	}

	return string(raw)
}
