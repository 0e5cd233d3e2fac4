// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/entity"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

func (s *Server) patch(ctx context.Context, at scope, body openapi.ResourcePatch) (answer, error) {
	return s.change(ctx, at, http.StatusOK, func(ctx context.Context, u *requestTx, r store.Resource) (store.Resource, error) {
		return u.patch(ctx, r, body)
	})
}

func (u *requestTx) patch(ctx context.Context, r store.Resource, body openapi.ResourcePatch) (store.Resource, error) {
	kind, err := u.kindOf(r)
	if err != nil {
		return r, err
	}

	if r.Deleting() {
		return r, problem(CodeState, "%s %s is being deleted", r.Kind, r.ID)
	}

	next, references, err := patched(kind, r, body)
	if err != nil {
		return r, err
	}

	newReferences := references != nil && !sameReferences(references, r.References)
	if !newReferences && maps.Equal(next.Labels, r.Labels) && sameJSON(next.Spec, r.Spec) {
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

	if _, next.Conditions, err = u.derive(ctx, kind, next, 0); err != nil {
		return r, err
	}

	stored, err := u.tx.Update(ctx, next)
	if err != nil {
		return r, err
	}

	return stored, u.record(ctx, stored, store.OperationUpdated)
}

// patched checks a change, and gives the resource with it. References are nil if they are
// not to change.
func patched(
	kind *entity.Kind, r store.Resource, body openapi.ResourcePatch,
) (next store.Resource, references map[string][]store.Ref, err error) {
	var wrong faults

	next = r

	if body.Spec != nil {
		wrong = append(wrong, kind.CheckSpec(*body.Spec)...)

		if next.Spec, err = json.Marshal(*body.Spec); err != nil {
			return r, nil, fmt.Errorf("encode spec: %w", err)
		}
	}

	if body.Labels != nil {
		wrong.labels(*body.Labels)
		next.Labels = *body.Labels
	}

	if body.References != nil {
		references = wrong.references(kind, *body.References)
	}

	return next, references, wrong.err()
}

// sameJSON compares values and not their text: the database writes it its own way.
func sameJSON(a, b json.RawMessage) bool {
	var left, right any

	return json.Unmarshal(a, &left) == nil && json.Unmarshal(b, &right) == nil && reflect.DeepEqual(left, right)
}

func sameReferences(a, b map[string][]store.Ref) bool {
	return maps.EqualFunc(a, b, slices.Equal)
}
