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

// maxName is the maximum length of names, which are label values and are stored in columns of this
// length.
const maxNameLength = 63

// checker collects the problems of a registry.
type checker struct {
	registry *Registry
	schemas  *openapi3.T
	problems []error
}

func (c *checker) addProblemf(format string, args ...any) {
	c.problems = append(c.problems, fmt.Errorf(format, args...))
}

// addKind checks an entity on its own and registers it.
func (c *checker) addKind(index int, declared platform.Entity) {
	kind := &Kind{Entity: declared}
	setDefaults(&kind.Entity)

	path := fmt.Sprintf("entities[%d] (%s)", index, declared.Kind)
	c.checkNames(path, kind)
	c.checkAdapters(path, kind)
	c.checkReferenceRules(path, kind)
	c.checkSpec(path, kind)

	c.registry.kinds = append(c.registry.kinds, kind)

	if c.registry.byKind[kind.Kind] == nil {
		c.registry.byKind[kind.Kind] = kind
	} else {
		c.addProblemf("%s: kind %q is registered more than once", path, kind.Kind)
	}

	if c.registry.byPlural[kind.Plural] == nil {
		c.registry.byPlural[kind.Plural] = kind
	} else {
		c.addProblemf("%s: another kind already has plural %q", path, kind.Plural)
	}
}

func setDefaults(e *platform.Entity) {
	e.OnParentDelete = cmp.Or(e.OnParentDelete, Restrict)
	e.NameMinLen = cmp.Or(e.NameMinLen, DefaultNameMin)
	e.NameMaxLen = cmp.Or(e.NameMaxLen, DefaultNameMax)
}

func (c *checker) checkNames(path string, kind *Kind) {
	if !kindPattern().MatchString(kind.Kind) {
		c.addProblemf("%s: kind %q is invalid: write a word such as NodePool, with at most %d letters and digits",
			path, kind.Kind, maxNameLength)
	}

	if !pluralPattern().MatchString(kind.Plural) {
		c.addProblemf("%s: plural %q is invalid: write a word such as nodepools, with at most %d lower-case letters and digits",
			path, kind.Plural, maxNameLength)
	}

	if slices.Contains(reservedNames(), kind.Plural) {
		c.addProblemf("%s: plural %q is a route of the API: choose another name", path, kind.Plural)
	}

	if !slices.Contains([]string{Restrict, Cascade, Orphan}, kind.OnParentDelete) {
		c.addProblemf("%s: on_parent_delete %q has to be %s, %s or %s", path, kind.OnParentDelete, Restrict, Cascade, Orphan)
	}

	if kind.NameMinLen < 1 || kind.NameMaxLen > maxNameLength || kind.NameMaxLen < kind.NameMinLen {
		c.addProblemf("%s: name_min_len %d and name_max_len %d have to be between 1 and %d, and min must not exceed max",
			path, kind.NameMinLen, kind.NameMaxLen, maxNameLength)
	}
}

// checkAdapters checks the required adapters and the mapped conditions. No two of them may have the
// same condition type.
func (c *checker) checkAdapters(path string, kind *Kind) {
	types := map[string]string{Reconciled: "the API", LastKnownReconciled: "the API"}

	for _, adapter := range kind.RequiredAdapters {
		if !adapterPattern().MatchString(adapter) || len(adapter) > maxNameLength {
			c.addProblemf("%s: required_adapters: %q is invalid: write lower-case letters, digits and dashes", path, adapter)

			continue
		}

		condition := AdapterConditionType(adapter)
		if other, isTaken := types[condition]; isTaken {
			c.addProblemf("%s: required_adapters: %q and %q both set condition %s", path, other, adapter, condition)
		}

		types[condition] = adapter
	}

	for i, mapped := range kind.Conditions {
		if !conditionTypePattern().MatchString(mapped.Type) || len(mapped.Type) > maxConditionTypeLength {
			c.addProblemf("%s: conditions[%d]: type %q is invalid: write a word such as NetworkReady, with at most %d letters and digits",
				path, i, mapped.Type, maxConditionTypeLength)
		}

		if other, isTaken := types[mapped.Type]; isTaken {
			c.addProblemf("%s: conditions[%d]: %s already sets type %s", path, i, other, mapped.Type)
		}

		types[mapped.Type] = fmt.Sprintf("conditions[%d]", i)
	}
}

func (c *checker) checkReferenceRules(path string, kind *Kind) {
	seen := map[string]bool{}

	for i, rule := range kind.References {
		if !refTypePattern().MatchString(rule.RefType) || len(rule.RefType) > maxNameLength {
			c.addProblemf("%s: references[%d]: ref_type %q is invalid: write lower-case letters, digits and underscores",
				path, i, rule.RefType)
		}

		if seen[rule.RefType] {
			c.addProblemf("%s: references[%d]: ref_type %q is listed more than once", path, i, rule.RefType)
		}

		seen[rule.RefType] = true

		if rule.Min < 0 || rule.Max < 0 || rule.Max != 0 && rule.Max < rule.Min {
			c.addProblemf("%s: references[%d]: min %d and max %d must not be negative, and max must not be less than min (0: no limit)",
				path, i, rule.Min, rule.Max)
		}
	}
}

func (c *checker) checkSpec(path string, kind *Kind) {
	switch {
	case kind.SpecSchemaName == "" && kind.RequireSpecSchema:
		c.addProblemf("%s: require_spec_schema: set spec_schema_name", path)
	case kind.SpecSchemaName == "":
	default:
		if c.schemas != nil && c.schemas.Components != nil {
			if ref := c.schemas.Components.Schemas[kind.SpecSchemaName]; ref != nil {
				kind.schema = ref.Value
			}
		}

		if kind.schema == nil && kind.RequireSpecSchema {
			c.addProblemf("%s: spec_schema_name: the spec_schemas document has no schema %q", path, kind.SpecSchemaName)
		}
	}
}

// linkParents sets the parent and the children of each kind.
func (c *checker) linkParents() {
	for i, kind := range c.registry.kinds {
		if kind.ParentKind == "" {
			continue
		}

		parent, found := c.registry.byKind[kind.ParentKind]
		if !found {
			c.addProblemf("entities[%d] (%s): parent_kind %q is not registered", i, kind.Kind, kind.ParentKind)

			continue
		}

		kind.Parent = parent
		parent.Children = append(parent.Children, kind)
	}

	for _, kind := range c.registry.kinds {
		slices.SortFunc(kind.Children, func(a, b *Kind) int { return strings.Compare(a.Plural, b.Plural) })
	}
}

// checkReferences checks that the targets of references are registered, and that kinds do not
// require each other in a cycle through parents and required references. No resource of such kinds
// could ever be created.
func (c *checker) checkReferences() {
	for i, kind := range c.registry.kinds {
		for j, rule := range kind.References {
			if _, found := c.registry.byKind[rule.TargetKind]; !found {
				c.addProblemf("entities[%d] (%s): references[%d]: target_kind %q is not registered", i, kind.Kind, j, rule.TargetKind)
			}
		}

		if cycle := c.findCycle(kind, kind, nil); cycle != "" {
			c.addProblemf("entities[%d] (%s): the kinds require each other in a cycle through parent_kind or references: %s",
				i, kind.Kind, cycle)
		}
	}
}

// findCycle follows required parents and references from kind, and returns the first path that leads
// back to start. It returns "" if there is none. path has the kinds that were already followed.
func (c *checker) findCycle(start, kind *Kind, path []string) string {
	if slices.Contains(path, kind.Kind) {
		return ""
	}

	path = append(path, kind.Kind)
	required := []*Kind{kind.Parent}

	for _, rule := range kind.References {
		if rule.Min > 0 {
			required = append(required, c.registry.byKind[rule.TargetKind])
		}
	}

	for _, next := range required {
		switch next {
		case nil:
		case start:
			return strings.Join(append(path, start.Kind), " -> ")
		default:
			if cycle := c.findCycle(start, next, path); cycle != "" {
				return cycle
			}
		}
	}

	return ""
}

// reservedNames returns names that a plural must not have, because they are the first segments of
// routes or the last segments below a resource.
func reservedNames() []string {
	return []string{"resources", "changes", "leases", "statuses", "openapi"}
}

func kindPattern() *regexp.Regexp          { return regexp.MustCompile(`^[A-Z][A-Za-z0-9]{0,62}$`) }
func pluralPattern() *regexp.Regexp        { return regexp.MustCompile(`^[a-z][a-z0-9]{0,62}$`) }
func adapterPattern() *regexp.Regexp       { return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`) }
func refTypePattern() *regexp.Regexp       { return regexp.MustCompile(`^[a-z][a-z0-9_]*$`) }
func conditionTypePattern() *regexp.Regexp { return regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`) }
