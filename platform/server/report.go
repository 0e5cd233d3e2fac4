// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/conditions"
	"github.com/hyperfleet/hyperfleet/platform/entity"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

// report takes the report of an adapter: 201 with what was stored, or 204 if it says
// nothing new.
func (s *Server) report(ctx context.Context, at scope, report openapi.StatusReport) (answer, error) {
	if err := checkIDs(at); err != nil {
		return answer{}, err
	}

	if err := about(ctx).caller.mayReport(report.Adapter); err != nil {
		return answer{}, err
	}

	var wrong faults

	wrong.report(report, s.now())

	if err := wrong.err(); err != nil {
		return answer{}, err
	}

	return write(ctx, s, func(ctx context.Context, u *requestTx) (answer, error) { return u.report(ctx, at, report) })
}

func (u *requestTx) report(ctx context.Context, on scope, report openapi.StatusReport) (answer, error) {
	r, all, err := u.lockForReport(ctx, on)
	if err != nil {
		return answer{}, err
	}

	kind, err := u.kindOf(r)
	if err != nil {
		return answer{}, err
	}

	if !u.mayBeAdapter(kind, report.Adapter) {
		return answer{}, invalid(entity.FieldError{
			Field: "adapter", Message: "is not known for " + kind.Kind + ": name it in adapters, or in the kind's required_adapters",
		})
	}

	at, found := slices.BinarySearchFunc(all, report.Adapter, func(s openapi.AdapterStatus, adapter string) int {
		return strings.Compare(s.Adapter, adapter)
	})

	var before *openapi.AdapterStatus
	if found {
		before = &all[at]
	}

	if discard := conditions.Discard(report, before, r.Generation); discard != "" {
		u.log.DebugContext(ctx, "a report was discarded", slog.String("resource", on.id),
			slog.String("adapter", report.Adapter), slog.String("why", discard))

		return answer{status: http.StatusNoContent}, nil
	}

	stored := conditions.Store(report, before, u.now)
	if err := u.tx.PutStatus(ctx, r.ID, stored); err != nil {
		return answer{}, err
	}

	out := answer{http.StatusCreated, stored}

	if !conditions.Counts(stored) {
		return out, nil
	}

	if found {
		all[at] = stored
	} else {
		all = slices.Insert(all, at, stored)
	}

	// The lock keeps them as they are.
	u.statuses = map[string][]openapi.AdapterStatus{r.ID: all}

	// Other conditions follow, or the end of the resource and of owners that wait for it.
	gone, err := u.settleOrGo(ctx, kind, &r)
	if err == nil && gone {
		err = u.lookAgain(ctx, r.OwnerID)
	}

	return out, err
}

// mayBeAdapter says whether an adapter is one that the configuration names: each that has
// reported is kept, so that it is not for callers to invent them.
func (s *Server) mayBeAdapter(kind *entity.Kind, name string) bool {
	return slices.Contains(kind.RequiredAdapters, name) || slices.Contains(s.options.Adapters, name) ||
		slices.Contains(s.options.Adapters, AnyAdapter)
}

// lockForReport locks a resource, and reads the reports on it. The last report on one that
// is being deleted may remove it and then its owners, so these are locked before.
func (u *requestTx) lockForReport(ctx context.Context, at scope) (r store.Resource, all []openapi.AdapterStatus, err error) {
	locked := false

	r, err = u.find(ctx, func(ctx context.Context, id string) (r store.Resource, err error) {
		r, all, locked, err = u.tx.TryGetForUpdate(ctx, id)

		return r, err
	}, at)
	if err != nil || locked {
		return r, all, err
	}

	if err := u.lockOwners(ctx, r.OwnerID); err != nil {
		return r, nil, err
	}

	if r, err = u.find(ctx, u.tx.GetForUpdate, at); err != nil {
		return r, nil, err
	}

	all, err = u.tx.Statuses(ctx, r.ID)

	return r, all, err
}

// lockOwners locks from the outermost owner inwards.
func (u *requestTx) lockOwners(ctx context.Context, id string) error {
	var chain []string

	for id != "" {
		owner, err := u.tx.Get(ctx, id)
		if errors.Is(err, store.ErrNotFound) {
			break
		}

		if err != nil {
			return err
		}

		chain = append(chain, id)
		id = owner.OwnerID
	}

	for _, owner := range slices.Backward(chain) {
		// One that has gone meanwhile took what is below it along, which the caller finds out.
		if _, err := u.tx.GetForUpdate(ctx, owner); err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}

	return nil
}
