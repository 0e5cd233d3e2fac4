// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"

	"github.com/google/uuid"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/conditions"
	"github.com/hyperfleet/hyperfleet/platform/entity"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

// createResource validates the request before it opens a transaction, and then creates the resource.
func (s *Server) createResource(ctx context.Context, target scope, body openapi.ResourceCreate) (response, error) {
	if err := validateIDs(target); err != nil {
		return response{}, err
	}

	kind, err := s.findKindToCreate(target, body)
	if err != nil {
		return response{}, err
	}

	problems := fieldErrors(kind.ValidateSpec(body.Spec))
	if message := kind.ValidateName(body.Name); message != "" {
		problems.addf("name", "%s", message)
	}

	problems.validateLabels(body.Labels)

	references := problems.validateReferences(kind, body.References)
	if err := problems.err(); err != nil {
		return response{}, err
	}

	spec, err := json.Marshal(body.Spec)
	if err != nil {
		return response{}, fmt.Errorf("encode spec: %w", err)
	}

	id, err := uuid.NewV7()
	if err != nil {
		return response{}, fmt.Errorf("create ID: %w", err)
	}

	out, err := runTx(ctx, s, func(ctx context.Context, u *requestTx) (store.Resource, error) {
		return u.create(ctx, target, kind, store.Resource{
			ID: id.String(), Kind: kind.Kind, Name: body.Name, Spec: spec, Labels: body.Labels, References: references,
			Tenancy: maps.Clone(requestFromContext(ctx).tenancy), Generation: 1, CreatedTime: u.now, UpdatedTime: u.now,
			CreatedBy: u.caller, UpdatedBy: u.caller,
		})
	})

	return response{http.StatusCreated, s.toAPI(out)}, err
}

// findKindToCreate returns the kind of the resource that a request creates.
func (s *Server) findKindToCreate(target scope, body openapi.ResourceCreate) (*entity.Kind, error) {
	kind := cmp.Or(target.kind, s.registry.ByKind(body.Kind))
	if kind == nil {
		return nil, newInvalid(entity.FieldError{Field: "kind", Message: "has to be a registered kind"})
	}

	if body.Kind != "" && body.Kind != kind.Kind {
		return nil, newInvalid(entity.FieldError{Field: "kind", Message: "has to be " + kind.Kind + " or absent in this collection"})
	}

	if kind.Parent != nil && target.parent == nil {
		return nil, newProblem(CodeChildRoute, "create a %s with POST %s/%s/{id}/%s",
			kind.Kind, BasePath, kind.Parent.Plural, kind.Plural)
	}

	return kind, nil
}

// create inserts a resource with its first conditions, and records the change. A child also gets its
// parent's tenancy.
func (u *requestTx) create(ctx context.Context, target scope, kind *entity.Kind, r store.Resource) (store.Resource, error) {
	if target.parent != nil {
		parent, err := u.findResource(ctx, u.tx.Get, scope{kind: target.parent, id: target.parentID})
		if err != nil {
			return r, err
		}

		r.OwnerID, r.OwnerKind = parent.ID, parent.Kind

		// A resource below a tenant's resource belongs to the same tenant.
		tenancy := maps.Clone(parent.Tenancy)
		maps.Copy(tenancy, r.Tenancy)
		r.Tenancy = tenancy
	}

	if err := u.checkVisible(ctx, r.References); err != nil {
		return r, err
	}

	list, err := u.evaluateConditions(ctx, kind, r, conditions.Input{
		Generation: r.Generation, UpdatedTime: r.UpdatedTime, Required: kind.RequiredAdapters,
	})
	if err != nil {
		return r, err
	}

	r.Conditions = list

	out, err := u.tx.Insert(ctx, r)

	switch {
	case errors.Is(err, store.ErrExists):
		return r, newProblem(CodeExists, "a %s named %s exists; it may be in deletion", kind.Kind, r.Name)
	case errors.Is(err, store.ErrOwnerMissing):
		return r, newNotFound(r.OwnerKind, r.OwnerID)
	case err != nil:
		return r, err
	}

	return out, u.recordChange(ctx, out, store.OperationCreated)
}
