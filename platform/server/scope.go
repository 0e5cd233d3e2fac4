// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/http"
	"strings"

	"github.com/google/uuid"

	"github.com/hyperfleet/hyperfleet/platform/entity"
)

// scope is what a path names: the kind, the parent, one resource. The root routes name no
// kind.
type scope struct {
	kind     *entity.Kind
	id       string
	parent   *entity.Kind
	parentID string
}

// scopeOf reads a path /{plural}/{id}/{children}/{childID}, as far as it goes, or
// /resources/{id}. Kinds that are not registered, or not below each other, have no route.
func (s *Server) scopeOf(r *http.Request) (scope, error) {
	plural, id := r.PathValue("plural"), canonical(r.PathValue("id"))
	if plural == "" {
		return scope{id: id}, nil
	}

	kind := s.registry.ByPlural(plural)
	if kind == nil {
		return scope{}, problem(CodeNoRoute, "there is no collection %s", plural)
	}

	children := r.PathValue("children")
	if children == "" {
		return scope{kind: kind, id: id}, nil
	}

	child := s.registry.ByPlural(children)
	if child == nil || child.Parent != kind {
		return scope{}, problem(CodeNoRoute, "%s have no collection %s", plural, children)
	}

	return scope{kind: child, id: canonical(r.PathValue("childID")), parent: kind, parentID: id}, nil
}

// canonical writes an id as the database does.
func canonical(id string) string { return strings.ToLower(id) }

// checkIDs refuses ids that are no UUIDs. They are not "no such resource": who asks for one
// has not asked for a resource that could have been there.
func checkIDs(at scope) error {
	for _, id := range []string{at.parentID, at.id} {
		if _, err := uuid.Parse(id); id != "" && (err != nil || len(id) != len(uuid.Nil.String())) {
			return invalid(entity.FieldError{Field: "id", Message: "is not a UUID"})
		}
	}

	return nil
}
