// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package entity

import (
	"errors"
	"fmt"
	"slices"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
)

// Default limits for the length of a resource's name.
const (
	DefaultNameMin = 1
	DefaultNameMax = 63
)

// ErrInvalid is wrapped by every error of New.
var ErrInvalid = errors.New("registry of kinds is not valid")

// Kind is a registered kind. It does not change after New.
type Kind struct {
	platform.Entity

	// Parent is the kind that owns this one. It is nil for a top-level kind.
	Parent *Kind
	// Children are the kinds that this one owns, ordered by plural.
	Children []*Kind

	schema *openapi3.Schema
}

// IsCascade returns true if resources of this kind are deleted together with their parent.
func (k *Kind) IsCascade() bool { return k.OnParentDelete == Cascade }

// IsOrphan returns true if resources of this kind stay without a parent when their parent is deleted.
func (k *Kind) IsOrphan() bool { return k.OnParentDelete == Orphan }

// ReferenceRule returns the rule for references of one type, and false if the kind has none.
func (k *Kind) ReferenceRule(refType string) (platform.ReferenceRule, bool) {
	index := slices.IndexFunc(k.References, func(rule platform.ReferenceRule) bool { return rule.RefType == refType })
	if index < 0 {
		return platform.ReferenceRule{}, false
	}

	return k.References[index], true
}

// Values of on_parent_delete.
const (
	// Restrict makes the API respond to the deletion of the parent with 409.
	Restrict = "restrict"
	// Cascade makes the API delete the resource together with its parent.
	Cascade = "cascade"
	// Orphan makes the API keep the resource as it is, without a parent.
	Orphan = "orphan"
)

// Registry holds the registered kinds.
type Registry struct {
	kinds    []*Kind
	byKind   map[string]*Kind
	byPlural map[string]*Kind
}

// New validates the entities and returns their registry. The error names every problem of the
// entities. Schemas is the OpenAPI document that spec_schemas names, nil if there is none.
func New(entities []platform.Entity, schemas *openapi3.T) (*Registry, error) {
	registry := &Registry{byKind: map[string]*Kind{}, byPlural: map[string]*Kind{}}
	check := &checker{registry: registry, schemas: schemas}

	if len(entities) == 0 {
		check.addProblemf("entities: register at least one kind")
	}

	for i, declared := range entities {
		check.addKind(i, declared)
	}

	check.linkParents()
	check.checkReferences()

	if len(check.problems) > 0 {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, errors.Join(check.problems...))
	}

	return registry, nil
}

// Kinds returns all kinds in the order of the configuration.
func (r *Registry) Kinds() []*Kind { return slices.Clone(r.kinds) }

// ByKind returns the kind with a name such as NodePool. It returns nil if the kind is not
// registered.
func (r *Registry) ByKind(kind string) *Kind { return r.byKind[kind] }

// ByPlural returns the kind with a plural such as nodepools. It returns nil if there is none.
func (r *Registry) ByPlural(plural string) *Kind { return r.byPlural[plural] }
