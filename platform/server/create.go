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

func (s *Server) create(ctx context.Context, at scope, body openapi.ResourceCreate) (answer, error) {
	if err := checkIDs(at); err != nil {
		return answer{}, err
	}

	kind, err := s.kindToCreate(at, body)
	if err != nil {
		return answer{}, err
	}

	wrong := faults(kind.CheckSpec(body.Spec))
	if what := kind.CheckName(body.Name); what != "" {
		wrong.sayf("name", "%s", what)
	}

	wrong.labels(body.Labels)

	references := wrong.references(kind, body.References)
	if err := wrong.err(); err != nil {
		return answer{}, err
	}

	spec, err := json.Marshal(body.Spec)
	if err != nil {
		return answer{}, fmt.Errorf("encode spec: %w", err)
	}

	id, err := uuid.NewV7()
	if err != nil {
		return answer{}, fmt.Errorf("make id: %w", err)
	}

	out, err := write(ctx, s, func(ctx context.Context, u *requestTx) (store.Resource, error) {
		return u.create(ctx, at, kind, store.Resource{
			ID: id.String(), Kind: kind.Kind, Name: body.Name, Spec: spec, Labels: body.Labels, References: references,
			Tenancy: maps.Clone(about(ctx).tenancy), Generation: 1, CreatedTime: u.now, UpdatedTime: u.now,
			CreatedBy: u.caller, UpdatedBy: u.caller,
		})
	})

	return answer{http.StatusCreated, s.tell(out)}, err
}

// kindToCreate is the kind of which one is made here.
func (s *Server) kindToCreate(at scope, body openapi.ResourceCreate) (*entity.Kind, error) {
	kind := cmp.Or(at.kind, s.registry.ByKind(body.Kind))
	if kind == nil {
		return nil, invalid(entity.FieldError{Field: "kind", Message: "has to be a registered kind"})
	}

	if body.Kind != "" && body.Kind != kind.Kind {
		return nil, invalid(entity.FieldError{Field: "kind", Message: "has to be " + kind.Kind + " here, or absent"})
	}

	if kind.Parent != nil && at.parent == nil {
		return nil, problem(CodeChildRoute, "create a %s with POST %s/%s/{id}/%s",
			kind.Kind, BasePath, kind.Parent.Plural, kind.Plural)
	}

	return kind, nil
}

func (u *requestTx) create(ctx context.Context, at scope, kind *entity.Kind, r store.Resource) (store.Resource, error) {
	if at.parent != nil {
		parent, err := u.find(ctx, u.tx.Get, scope{kind: at.parent, id: at.parentID})
		if err != nil {
			return r, err
		}

		r.OwnerID, r.OwnerKind = parent.ID, parent.Kind

		// What is in a tenant's cluster is the tenant's.
		tenancy := maps.Clone(parent.Tenancy)
		maps.Copy(tenancy, r.Tenancy)
		r.Tenancy = tenancy
	}

	if err := u.checkVisible(ctx, r.References); err != nil {
		return r, err
	}

	list, err := u.compute(ctx, kind, r, conditions.Input{
		Generation: r.Generation, UpdatedTime: r.UpdatedTime, Required: kind.RequiredAdapters,
	})
	if err != nil {
		return r, err
	}

	r.Conditions = list

	out, err := u.tx.Insert(ctx, r)

	switch {
	case errors.Is(err, store.ErrExists):
		return r, problem(CodeExists, "there is a %s named %s, which may be being deleted", kind.Kind, r.Name)
	case errors.Is(err, store.ErrOwnerMissing):
		return r, notFound(r.OwnerKind, r.OwnerID)
	case err != nil:
		return r, err
	}

	return out, u.record(ctx, out, store.OperationCreated)
}
