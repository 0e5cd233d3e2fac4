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

// Change is an incompatible change of a CRD: an object that was valid may become invalid, or a client that
// was correct may fail.
type Change struct {
	// CRD and Path are the location of the change, for example "runnerpools.hyperfleet.io" and
	// "v1alpha1.spec.scaling".
	CRD, Path string
	// Description describes the change.
	Description string
}

// String returns the change as one line.
func (c Change) String() string { return c.CRD + " " + c.Path + ": " + c.Description }

// comparison collects the incompatible changes of a CRD.
type comparison struct {
	crd     string
	changes []Change
}

func (c *comparison) addChangef(path, format string, args ...any) {
	c.changes = append(c.changes, Change{CRD: c.crd, Path: path, Description: fmt.Sprintf(format, args...)})
}

// Compare returns the incompatible changes between two versions of a CRD. after is nil if the CRD was
// deleted.
func Compare(before, after *apiextensionsv1.CustomResourceDefinition) []Change {
	c := &comparison{crd: before.Name}

	if after == nil {
		c.addChangef("", "the kind was removed")

		return c.changes
	}

	if before.Spec.Scope != after.Spec.Scope {
		c.addChangef("", "the scope was %s and is %s", before.Spec.Scope, after.Spec.Scope)
	}

	for _, name := range before.Spec.Names.ShortNames {
		if !slices.Contains(after.Spec.Names.ShortNames, name) {
			c.addChangef("", "the short name %s was removed", name)
		}
	}

	for i := range before.Spec.Versions {
		oldVersion := &before.Spec.Versions[i]

		index := slices.IndexFunc(after.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
			return v.Name == oldVersion.Name && (v.Served || !oldVersion.Served)
		})
		if index < 0 {
			c.addChangef(oldVersion.Name, "the version is not served any more")

			continue
		}

		newVersion := &after.Spec.Versions[index]
		if oldVersion.Subresources != nil && oldVersion.Subresources.Status != nil &&
			(newVersion.Subresources == nil || newVersion.Subresources.Status == nil) {
			c.addChangef(oldVersion.Name, "the subresource status was removed")
		}

		c.compareSchema(oldVersion.Name, oldVersion.Schema.OpenAPIV3Schema, newVersion.Schema.OpenAPIV3Schema)
	}

	return c.changes
}

func (c *comparison) compareSchema(path string, oldSchema, newSchema *apiextensionsv1.JSONSchemaProps) {
	if oldSchema.Type != newSchema.Type || oldSchema.XIntOrString != newSchema.XIntOrString {
		c.addChangef(path, "the type was %s and is %s", typeOf(oldSchema), typeOf(newSchema))
	}

	if oldSchema.Nullable && !newSchema.Nullable {
		c.addChangef(path, "null is rejected")
	}

	if isTrue(oldSchema.XPreserveUnknownFields) && !isTrue(newSchema.XPreserveUnknownFields) {
		c.addChangef(path, "unknown fields are dropped")
	}

	c.compareValues(path, oldSchema, newSchema)
	c.compareRules(path, oldSchema, newSchema)

	for _, name := range slices.Sorted(maps.Keys(oldSchema.Properties)) {
		field, exists := newSchema.Properties[name]
		if !exists {
			c.addChangef(path+"."+name, "the field was removed")

			continue
		}

		before := oldSchema.Properties[name]
		c.compareSchema(path+"."+name, &before, &field)
	}

	c.compareElements(path, oldSchema, newSchema)
}

// compareElements compares the schemas of the elements of lists and maps.
func (c *comparison) compareElements(path string, oldSchema, newSchema *apiextensionsv1.JSONSchemaProps) {
	if oldSchema.Items != nil && oldSchema.Items.Schema != nil {
		if newSchema.Items == nil || newSchema.Items.Schema == nil {
			c.addChangef(path, "the field is not a list any more")
		} else {
			c.compareSchema(path+"[]", oldSchema.Items.Schema, newSchema.Items.Schema)
		}
	}

	switch before, after := oldSchema.AdditionalProperties, newSchema.AdditionalProperties; {
	case before == nil:
	case after == nil || before.Allows && !after.Allows:
		c.addChangef(path, "the field is not a map any more")
	case before.Schema != nil && after.Schema != nil:
		c.compareSchema(path+"{}", before.Schema, after.Schema)
	case before.Schema == nil && after.Schema != nil:
		c.addChangef(path, "the values of the map have a schema now")
	}
}

// compareValues compares the sets of values that a field accepts.
func (c *comparison) compareValues(path string, oldSchema, newSchema *apiextensionsv1.JSONSchemaProps) {
	for _, name := range newSchema.Required {
		if !slices.Contains(oldSchema.Required, name) {
			c.addChangef(path+"."+name, "the field is required now")
		}
	}

	for _, value := range oldSchema.Enum {
		isAccepted := slices.ContainsFunc(newSchema.Enum, func(v apiextensionsv1.JSON) bool { return bytes.Equal(v.Raw, value.Raw) })
		if len(newSchema.Enum) > 0 && !isAccepted {
			c.addChangef(path, "the value %s is rejected", value.Raw)
		}
	}

	if len(oldSchema.Enum) == 0 && len(newSchema.Enum) > 0 {
		c.addChangef(path, "values that are not in a new enum are rejected")
	}

	for name, bounds := range map[string][2]*int64{
		"maxLength": {oldSchema.MaxLength, newSchema.MaxLength}, "maxItems": {oldSchema.MaxItems, newSchema.MaxItems},
		"maxProperties": {oldSchema.MaxProperties, newSchema.MaxProperties},
	} {
		if isLower(bounds[1], bounds[0]) {
			c.addChangef(path, "%s was %s and is %d", name, formatBound(bounds[0]), *bounds[1])
		}
	}

	for name, bounds := range map[string][2]*int64{
		"minLength": {oldSchema.MinLength, newSchema.MinLength}, "minItems": {oldSchema.MinItems, newSchema.MinItems},
		"minProperties": {oldSchema.MinProperties, newSchema.MinProperties},
	} {
		if bounds[1] != nil && *bounds[1] > 0 && (bounds[0] == nil || *bounds[1] > *bounds[0]) {
			c.addChangef(path, "%s was %s and is %d", name, formatBound(bounds[0]), *bounds[1])
		}
	}

	if newSchema.Maximum != nil && (oldSchema.Maximum == nil || *newSchema.Maximum < *oldSchema.Maximum) {
		c.addChangef(path, "maximum was %s and is %v", formatBound(oldSchema.Maximum), *newSchema.Maximum)
	}

	if newSchema.Minimum != nil && (oldSchema.Minimum == nil || *newSchema.Minimum > *oldSchema.Minimum) {
		c.addChangef(path, "minimum was %s and is %v", formatBound(oldSchema.Minimum), *newSchema.Minimum)
	}
}

// compareRules reports changed patterns, formats and rules. Only a person can decide whether such a change
// accepts fewer values.
func (c *comparison) compareRules(path string, oldSchema, newSchema *apiextensionsv1.JSONSchemaProps) {
	if newSchema.Pattern != "" && newSchema.Pattern != oldSchema.Pattern {
		c.addChangef(path, "the pattern was %q and is %q", oldSchema.Pattern, newSchema.Pattern)
	}

	if newSchema.Format != "" && newSchema.Format != oldSchema.Format {
		c.addChangef(path, "the format was %q and is %q", oldSchema.Format, newSchema.Format)
	}

	known := map[string]bool{}
	// A rule that matches the old pattern accepts the same values.
	for _, format := range []string{"self.matches('%s')", "self.matches(r'%s')", "type(self) == int || string(self).matches('%s')"} {
		known[fmt.Sprintf(format, oldSchema.Pattern)] = oldSchema.Pattern != ""
	}

	for _, rule := range oldSchema.XValidations {
		known[rule.Rule] = true
	}

	for _, rule := range newSchema.XValidations {
		if !known[rule.Rule] {
			c.addChangef(path, "the rule %s is new", rule.Rule)
		}
	}

	for name, pair := range map[string][2]any{
		"allOf": {oldSchema.AllOf, newSchema.AllOf}, "anyOf": {oldSchema.AnyOf, newSchema.AnyOf},
		"oneOf": {oldSchema.OneOf, newSchema.OneOf}, "not": {oldSchema.Not, newSchema.Not},
	} {
		if before, after := encodeJSON(pair[0]), encodeJSON(pair[1]); after != "null" && before != after {
			c.addChangef(path, "%s was %s and is %s", name, before, after)
		}
	}

	if strings.Join(oldSchema.XListMapKeys, ",") != strings.Join(newSchema.XListMapKeys, ",") ||
		encodeJSON(oldSchema.XListType) != encodeJSON(newSchema.XListType) {
		c.addChangef(path, "the list is merged differently")
	}
}

func typeOf(value *apiextensionsv1.JSONSchemaProps) string {
	if value.XIntOrString {
		return "int or string"
	}

	return value.Type
}

func isTrue(flag *bool) bool { return flag != nil && *flag }

func isLower(newBound, oldBound *int64) bool {
	return newBound != nil && (oldBound == nil || *newBound < *oldBound)
}

func formatBound[T int64 | float64](bound *T) string {
	if bound == nil {
		return "not set"
	}

	return fmt.Sprint(*bound)
}

func encodeJSON(value any) string {
	raw, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}

	return string(raw)
}
