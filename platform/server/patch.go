// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"maps"
	"net/http"
	"slices"

	"github.com/hyperfleet/hyperfleet/api/exactjson"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/entity"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

func (s *Server) patchResource(r *http.Request) (response, error) {
	body, err := decodeBody[openapi.ResourcePatch](r)
	if err != nil {
		return response{}, err
	}

	return s.changeResource(r.Context(), http.StatusOK,
		func(ctx context.Context, u *requestTx, r store.Resource) (store.Resource, error) {
			return u.patch(ctx, r, body)
		})
}

// patch applies a change to a locked resource, increments its generation and records the change. It writes
// nothing if the resource already has the patched values.
func (u *requestTx) patch(ctx context.Context, r store.Resource, body openapi.ResourcePatch) (store.Resource, error) {
	kind, err := u.registeredKind(r)
	if err != nil {
		return r, err
	}

	if r.IsDeleting() {
		return r, newProblem(CodeState, "%s %s is being deleted", r.Kind, r.ID)
	}

	next, references, err := applyPatch(ctx, kind, r, body)
	if err != nil {
		return r, err
	}

	newReferences := references != nil && !isSameReferences(references, r.References)
	if !newReferences && maps.Equal(next.Labels, r.Labels) && exactjson.IsEqual(next.Spec, r.Spec) {
		return r, nil
	}

	next.Generation, next.UpdatedTime, next.UpdatedBy = r.Generation+1, u.now, u.caller

	if newReferences {
		if err := u.checkVisible(ctx, references); err != nil {
			return r, err
		}

		if next.References, err = u.tx.SetReferences(ctx, r.ID, references); err != nil {
			return r, err
		}
	}

	if _, next.Conditions, err = u.deriveConditions(ctx, kind, next, 0); err != nil {
		return r, err
	}

	stored, err := u.tx.Update(ctx, next)
	u.tx.RecordChange(stored, store.OperationUpdated)

	return stored, err
}

// applyPatch validates a patch and returns the patched resource. References are nil if the patch
// does not change them.
func applyPatch(
	ctx context.Context, kind *entity.Kind, r store.Resource, body openapi.ResourcePatch,
) (next store.Resource, references map[string][]store.Ref, err error) {
	var problems fieldErrors

	next = r

	if body.Spec != nil {
		problems = append(problems, kind.ValidateSpec(*body.Spec)...)

		if next.Spec, err = readSpec(ctx); err != nil {
			return r, nil, err
		}
	}

	if body.Labels != nil {
		problems.validateLabels(*body.Labels)
		next.Labels = *body.Labels
	}

	if body.References != nil {
		references = problems.validateReferences(kind, *body.References)
	}

	return next, references, problems.err()
}

func isSameReferences(a, b map[string][]store.Ref) bool {
	return maps.EqualFunc(a, b, slices.Equal)
}
