// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/http"
	"strings"

	"github.com/google/uuid"

	"github.com/hyperfleet/hyperfleet/platform/entity"
)

// scope is what a path names: the kind, the parent, and the resource. It has no kind for paths
// below /resources.
type scope struct {
	kind     *entity.Kind
	id       string
	parent   *entity.Kind
	parentID string
}

// parseScope parses a path /{plural}/{id}/{children}/{childID}, of which the end may be missing, or
// /resources/{id}. It returns an error if a kind is not registered or not a child of the parent's
// kind.
func (s *Server) parseScope(r *http.Request) (scope, error) {
	plural, id := r.PathValue("plural"), canonicalID(r.PathValue("id"))
	if plural == "" {
		return scope{id: id}, nil
	}

	kind := s.registry.ByPlural(plural)
	if kind == nil {
		return scope{}, newProblem(CodeNoRoute, "the collection %s does not exist", plural)
	}

	children := r.PathValue("children")
	if children == "" {
		return scope{kind: kind, id: id}, nil
	}

	child := s.registry.ByPlural(children)
	if child == nil || child.Parent != kind {
		return scope{}, newProblem(CodeNoRoute, "%s have no collection %s", plural, children)
	}

	return scope{kind: child, id: canonicalID(r.PathValue("childID")), parent: kind, parentID: id}, nil
}

// canonicalID formats an ID as the database does.
func canonicalID(id string) string { return strings.ToLower(id) }

// validateIDs rejects IDs that are not UUIDs. They are invalid instead of not found, because no
// resource can have such an ID.
func validateIDs(target scope) error {
	for _, id := range []string{target.parentID, target.id} {
		if _, err := uuid.Parse(id); id != "" && (err != nil || len(id) != len(uuid.Nil.String())) {
			return newInvalid(entity.FieldError{Field: "id", Message: "is not a UUID"})
		}
	}

	return nil
}
