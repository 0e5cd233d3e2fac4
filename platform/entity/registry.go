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

// Bounds of a resource's name where its kind has none.
const (
	DefaultNameMin = 1
	DefaultNameMax = 63
)

// ErrInvalid is wrapped by every error of New.
var ErrInvalid = errors.New("registry of kinds is not valid")

// Kind is a registered kind. It is not changed after New.
type Kind struct {
	platform.Entity

	// Parent is the kind that owns this one, nil for one that stands alone.
	Parent *Kind
	// Children are the kinds that this one owns, by plural.
	Children []*Kind

	schema *openapi3.Schema
}

// Cascades tells whether resources of this kind are deleted with their parent; else they
// keep it from being deleted.
func (k *Kind) Cascades() bool { return k.OnParentDelete == Cascade }

// Reference is the rule for references of one type.
func (k *Kind) Reference(refType string) (platform.ReferenceRule, bool) {
	at := slices.IndexFunc(k.References, func(rule platform.ReferenceRule) bool { return rule.RefType == refType })
	if at < 0 {
		return platform.ReferenceRule{}, false
	}

	return k.References[at], true
}

// What happens to a resource when its parent is deleted.
const (
	// Restrict answers the deletion of the parent with 409.
	Restrict = "restrict"
	// Cascade deletes it too.
	Cascade = "cascade"
)

// Registry holds the kinds.
type Registry struct {
	kinds    []*Kind
	byKind   map[string]*Kind
	byPlural map[string]*Kind
}

// New checks the entities and returns their registry. The error names everything that is
// wrong with them. Schemas is the OpenAPI document that spec_schemas names, nil if there is
// none.
func New(entities []platform.Entity, schemas *openapi3.T) (*Registry, error) {
	registry := &Registry{byKind: map[string]*Kind{}, byPlural: map[string]*Kind{}}
	check := &checker{registry: registry, schemas: schemas}

	if len(entities) == 0 {
		check.sayf("entities: register at least one kind")
	}

	for i, declared := range entities {
		check.add(i, declared)
	}

	check.parents()
	check.references()

	if len(check.problems) > 0 {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, errors.Join(check.problems...))
	}

	return registry, nil
}

// Kinds are all of them, in the order of the configuration.
func (r *Registry) Kinds() []*Kind { return slices.Clone(r.kinds) }

// ByKind finds a kind by its name, for example NodePool; nil if it is not registered.
func (r *Registry) ByKind(kind string) *Kind { return r.byKind[kind] }

// ByPlural finds a kind by its collection, for example nodepools; nil if there is none.
func (r *Registry) ByPlural(plural string) *Kind { return r.byPlural[plural] }
