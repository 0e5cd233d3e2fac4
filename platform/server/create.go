// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
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

// createResource validates the request, and then creates the resource and records the change in one transaction.
func (s *Server) createResource(r *http.Request) (response, error) {
	ctx := r.Context()
	target := requestFromContext(ctx).scope

	body, err := decodeBody[openapi.ResourceCreate](r)
	if err != nil {
		return response{}, err
	}

	kind, resource, err := s.newResource(ctx, target, body)
	if err != nil {
		return response{}, err
	}

	out, err := runTx(ctx, s, func(ctx context.Context, u *requestTx) (store.Resource, error) {
		next := resource
		next.CreatedTime, next.UpdatedTime, next.CreatedBy, next.UpdatedBy = u.now, u.now, u.caller, u.caller

		if err := u.setOwner(ctx, target, &next); err != nil {
			return next, err
		}

		if err := u.checkVisible(ctx, next.References); err != nil {
			return next, err
		}

		list, err := u.evaluateConditions(ctx, kind, next, conditions.Input{
			Generation: next.Generation, UpdatedTime: next.UpdatedTime, Required: kind.RequiredAdapters,
		})
		if err != nil {
			return next, err
		}

		next.Conditions = list

		created, err := u.tx.Insert(ctx, next)

		switch {
		case errors.Is(err, store.ErrExists):
			return next, newProblem(CodeExists, "a %s named %s exists; it may be in deletion", kind.Kind, next.Name)
		case errors.Is(err, store.ErrOwnerMissing):
			return next, newNotFound(next.OwnerKind, next.OwnerID)
		case err != nil:
			return next, err
		}

		u.tx.RecordChange(created, store.OperationCreated)

		return created, nil
	})

	if err != nil {
		return response{}, err
	}

	return s.newResponse(http.StatusCreated, out)
}

// newResource validates the body of a request, and returns the resource that it describes.
func (s *Server) newResource(
	ctx context.Context, target scope, body openapi.ResourceCreate,
) (*entity.Kind, store.Resource, error) {
	if err := validateIDs(target); err != nil {
		return nil, store.Resource{}, err
	}

	kind, err := s.findKindToCreate(target, body)
	if err != nil {
		return nil, store.Resource{}, err
	}

	problems := fieldErrors(kind.ValidateSpec(body.Spec))
	if message := kind.ValidateName(body.Name); message != "" {
		problems.addf("name", "%s", message)
	}

	problems.validateLabels(body.Labels)

	references := problems.validateReferences(kind, body.References)
	if err := problems.err(); err != nil {
		return nil, store.Resource{}, err
	}

	spec, err := readSpec(ctx)
	if err != nil {
		return nil, store.Resource{}, err
	}

	id, err := uuid.NewV7()
	if err != nil {
		return nil, store.Resource{}, fmt.Errorf("create ID: %w", err)
	}

	return kind, store.Resource{
		ID: id.String(), Kind: kind.Kind, Name: body.Name, Spec: spec, Labels: body.Labels, References: references,
		Tenancy: maps.Clone(requestFromContext(ctx).tenancy), Generation: 1,
	}, nil
}

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

// setOwner makes a resource a child of the scope's parent, if the scope has one. A child also gets its parent's
// tenancy, because both belong to the same tenant.
func (u *requestTx) setOwner(ctx context.Context, target scope, r *store.Resource) error {
	if target.parent == nil {
		return nil
	}

	parent, err := u.findResource(ctx, u.tx.Get, scope{kind: target.parent, id: target.parentID})
	if err != nil {
		return err
	}

	r.OwnerID, r.OwnerKind = parent.ID, parent.Kind

	tenancy := maps.Clone(parent.Tenancy)
	maps.Copy(tenancy, r.Tenancy)
	r.Tenancy = tenancy

	return nil
}
