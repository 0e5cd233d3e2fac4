// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package entity

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
)

// maxName bounds names, as a column and a label value do.
const maxName = 63

// checker collects what is wrong.
type checker struct {
	registry *Registry
	schemas  *openapi3.T
	problems []error
}

func (c *checker) sayf(format string, args ...any) {
	c.problems = append(c.problems, fmt.Errorf(format, args...))
}

// add checks what an entity says of itself, and registers it.
func (c *checker) add(index int, declared platform.Entity) {
	kind := &Kind{Entity: declared}
	defaults(&kind.Entity)

	at := fmt.Sprintf("entities[%d] (%s)", index, declared.Kind)
	c.names(at, kind)
	c.adapters(at, kind)
	c.referenceRules(at, kind)
	c.spec(at, kind)

	c.registry.kinds = append(c.registry.kinds, kind)

	if c.registry.byKind[kind.Kind] == nil {
		c.registry.byKind[kind.Kind] = kind
	} else {
		c.sayf("%s: kind %q is registered twice", at, kind.Kind)
	}

	if c.registry.byPlural[kind.Plural] == nil {
		c.registry.byPlural[kind.Plural] = kind
	} else {
		c.sayf("%s: plural %q is that of another kind", at, kind.Plural)
	}
}

func defaults(e *platform.Entity) {
	e.OnParentDelete = cmp.Or(e.OnParentDelete, Restrict)
	e.NameMinLen = cmp.Or(e.NameMinLen, DefaultNameMin)
	e.NameMaxLen = cmp.Or(e.NameMaxLen, DefaultNameMax)
}

func (c *checker) names(at string, kind *Kind) {
	if !kindForm().MatchString(kind.Kind) {
		c.sayf("%s: kind %q has to be a word such as NodePool, of at most %d letters and digits", at, kind.Kind, maxName)
	}

	if !pluralForm().MatchString(kind.Plural) {
		c.sayf("%s: plural %q has to be a word such as nodepools, of at most %d small letters and digits",
			at, kind.Plural, maxName)
	}

	if slices.Contains(reserved(), kind.Plural) {
		c.sayf("%s: plural %q is a route of the API; choose another", at, kind.Plural)
	}

	if kind.OnParentDelete != Restrict && kind.OnParentDelete != Cascade {
		c.sayf("%s: on_parent_delete %q has to be %s or %s", at, kind.OnParentDelete, Restrict, Cascade)
	}

	if kind.NameMinLen < 1 || kind.NameMaxLen > maxName || kind.NameMaxLen < kind.NameMinLen {
		c.sayf("%s: name_min_len %d and name_max_len %d have to be 1 to %d, and the second not below the first",
			at, kind.NameMinLen, kind.NameMaxLen, maxName)
	}
}

// adapters have to be told apart by the conditions that they get.
func (c *checker) adapters(at string, kind *Kind) {
	types := map[string]string{Reconciled: "the API", LastKnownReconciled: "the API"}

	for _, adapter := range kind.RequiredAdapters {
		if !adapterForm().MatchString(adapter) || len(adapter) > maxName {
			c.sayf("%s: required_adapters: %q has to be of small letters, digits and dashes", at, adapter)

			continue
		}

		condition := AdapterCondition(adapter)
		if other, taken := types[condition]; taken {
			c.sayf("%s: required_adapters: %q and %q both give condition %s", at, other, adapter, condition)
		}

		types[condition] = adapter
	}

	for i, mapped := range kind.Conditions {
		if !conditionForm().MatchString(mapped.Type) || len(mapped.Type) > maxConditionType {
			c.sayf("%s: conditions[%d]: type %q has to be a word such as NetworkReady, of at most %d letters and digits",
				at, i, mapped.Type, maxConditionType)
		}

		if other, taken := types[mapped.Type]; taken {
			c.sayf("%s: conditions[%d]: type %s is already given by %s", at, i, mapped.Type, other)
		}

		types[mapped.Type] = fmt.Sprintf("conditions[%d]", i)
	}
}

func (c *checker) referenceRules(at string, kind *Kind) {
	seen := map[string]bool{}

	for i, rule := range kind.References {
		if !refForm().MatchString(rule.RefType) || len(rule.RefType) > maxName {
			c.sayf("%s: references[%d]: ref_type %q has to be of small letters, digits and underscores", at, i, rule.RefType)
		}

		if seen[rule.RefType] {
			c.sayf("%s: references[%d]: ref_type %q is there twice", at, i, rule.RefType)
		}

		seen[rule.RefType] = true

		if rule.Min < 0 || rule.Max < 0 || rule.Max != 0 && rule.Max < rule.Min {
			c.sayf("%s: references[%d]: min %d and max %d have to be 0 or more, and max not below min (0: any number)",
				at, i, rule.Min, rule.Max)
		}
	}
}

func (c *checker) spec(at string, kind *Kind) {
	switch {
	case kind.SpecSchemaName == "" && kind.RequireSpecSchema:
		c.sayf("%s: require_spec_schema: name the schema in spec_schema_name", at)
	case kind.SpecSchemaName == "":
	default:
		if c.schemas != nil && c.schemas.Components != nil {
			if ref := c.schemas.Components.Schemas[kind.SpecSchemaName]; ref != nil {
				kind.schema = ref.Value
			}
		}

		if kind.schema == nil && kind.RequireSpecSchema {
			c.sayf("%s: spec_schema_name: there is no schema %q in the document of spec_schemas", at, kind.SpecSchemaName)
		}
	}
}

// parents ties kinds to their parents.
func (c *checker) parents() {
	for i, kind := range c.registry.kinds {
		if kind.ParentKind == "" {
			continue
		}

		parent, found := c.registry.byKind[kind.ParentKind]
		if !found {
			c.sayf("entities[%d] (%s): parent_kind %q is not registered", i, kind.Kind, kind.ParentKind)

			continue
		}

		kind.Parent = parent
		parent.Children = append(parent.Children, kind)
	}

	for _, kind := range c.registry.kinds {
		slices.SortFunc(kind.Children, func(a, b *Kind) int { return strings.Compare(a.Plural, b.Plural) })
	}
}

// references looks for targets that are not there, and for rings of what kinds require:
// their parents, and references. None of their resources could ever be made.
func (c *checker) references() {
	for i, kind := range c.registry.kinds {
		for j, rule := range kind.References {
			if _, found := c.registry.byKind[rule.TargetKind]; !found {
				c.sayf("entities[%d] (%s): references[%d]: target_kind %q is not registered", i, kind.Kind, j, rule.TargetKind)
			}
		}

		if ring := c.ring(kind, kind, nil); ring != "" {
			c.sayf("entities[%d] (%s): kinds require each other in a ring, by parent_kind or references: %s", i, kind.Kind, ring)
		}
	}
}

// ring is a way from a kind back to the first one, along what each requires; empty if there
// is none.
func (c *checker) ring(start, at *Kind, way []string) string {
	if slices.Contains(way, at.Kind) {
		return ""
	}

	way = append(way, at.Kind)
	required := []*Kind{at.Parent}

	for _, rule := range at.References {
		if rule.Min > 0 {
			required = append(required, c.registry.byKind[rule.TargetKind])
		}
	}

	for _, next := range required {
		switch next {
		case nil:
		case start:
			return strings.Join(append(way, start.Kind), " -> ")
		default:
			if ring := c.ring(start, next, way); ring != "" {
				return ring
			}
		}
	}

	return ""
}

// reserved are the first segments of routes, and the last ones below a resource.
func reserved() []string { return []string{"resources", "changes", "leases", "statuses", "openapi"} }

func kindForm() *regexp.Regexp      { return regexp.MustCompile(`^[A-Z][A-Za-z0-9]{0,62}$`) }
func pluralForm() *regexp.Regexp    { return regexp.MustCompile(`^[a-z][a-z0-9]{0,62}$`) }
func adapterForm() *regexp.Regexp   { return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`) }
func refForm() *regexp.Regexp       { return regexp.MustCompile(`^[a-z][a-z0-9_]*$`) }
func conditionForm() *regexp.Regexp { return regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`) }
