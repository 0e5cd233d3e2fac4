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

// putStatus stores the report of an adapter. The response is 201 with the stored status, or 204 if
// the report was discarded because it has nothing new.
func (s *Server) putStatus(r *http.Request) (response, error) {
	ctx := r.Context()
	target := requestFromContext(ctx).scope

	report, err := decodeBody[openapi.StatusReport](r)
	if err != nil {
		return response{}, err
	}

	if err := validateIDs(target); err != nil {
		return response{}, err
	}

	if err := requestFromContext(ctx).caller.authorizeReport(report.Adapter); err != nil {
		return response{}, err
	}

	var problems fieldErrors

	problems.validateReport(report, s.now())

	if err := problems.err(); err != nil {
		return response{}, err
	}

	return runTx(ctx, s, func(ctx context.Context, u *requestTx) (response, error) { return u.report(ctx, target, report) })
}

// report stores an adapter's report and updates the conditions of the resource. It responds with 204 to a
// report that it discards (conditions.DiscardReason). A report can also complete a deletion and so remove
// the resource.
func (u *requestTx) report(ctx context.Context, target scope, report openapi.StatusReport) (response, error) {
	r, all, err := u.lockForReport(ctx, target)
	if err != nil {
		return response{}, err
	}

	kind, err := u.registeredKind(r)
	if err != nil {
		return response{}, err
	}

	if !u.isKnownAdapter(kind, report.Adapter) {
		return response{}, newInvalid(entity.FieldError{
			Field: "adapter", Message: "is not an adapter of " + kind.Kind + ": add it to adapters, or to the kind's required_adapters",
		})
	}

	if err := u.checkReportIfMatch(ctx, r); err != nil {
		return response{}, err
	}

	index, found := slices.BinarySearchFunc(all, report.Adapter, func(s openapi.AdapterStatus, adapter string) int {
		return strings.Compare(s.Adapter, adapter)
	})

	var previous *openapi.AdapterStatus
	if found {
		previous = &all[index]
	}

	if discard := conditions.DiscardReason(report, previous, r.Generation); discard != "" {
		u.log.DebugContext(ctx, "discarded a report", slog.String("resource", target.id),
			slog.String("adapter", report.Adapter), slog.String("why", discard))

		return response{status: http.StatusNoContent}, nil
	}

	stored := conditions.NewStatus(report, previous, u.now)
	u.tx.PutStatus(r.ID, stored)

	out := response{status: http.StatusCreated, body: stored}

	if !conditions.IsCounted(stored) {
		return out, nil
	}

	if found {
		all[index] = stored
	} else {
		all = slices.Insert(all, index, stored)
	}

	// Use these statuses for the rest of the transaction. They can't change, because the resource is locked.
	u.statuses = map[string][]openapi.AdapterStatus{r.ID: all}

	// The report can change conditions, or complete the deletion of the resource and of its owners.
	isRemoved, err := u.updateOrRemove(ctx, kind, &r)
	if err == nil && isRemoved {
		err = u.recompute(ctx, r.OwnerID)
	}

	return out, err
}

// isKnownAdapter returns true if the configuration names the adapter for the kind. Other names are
// rejected, because the report of each adapter is stored, and callers must not be able to store any
// number of them.
func (s *Server) isKnownAdapter(kind *entity.Kind, name string) bool {
	return slices.Contains(kind.RequiredAdapters, name) || slices.Contains(s.options.Adapters, name) ||
		slices.Contains(s.options.Adapters, AnyAdapter)
}

// lockForReport locks a resource and reads the reports on it. The last report on a resource that is
// being deleted can remove the resource and then its owners, so in this case the owners are locked
// first.
func (u *requestTx) lockForReport(ctx context.Context, target scope) (r store.Resource, all []openapi.AdapterStatus, err error) {
	isLocked := false

	r, err = u.findResource(ctx, func(ctx context.Context, id string) (r store.Resource, err error) {
		r, all, isLocked, err = u.tx.TryGetForUpdate(ctx, id)

		return r, err
	}, target)
	if err != nil || isLocked {
		return r, all, err
	}

	if err := u.lockOwners(ctx, r.OwnerID); err != nil {
		return r, nil, err
	}

	if r, err = u.findResource(ctx, u.tx.GetForUpdate, target); err != nil {
		return r, nil, err
	}

	all, err = u.tx.Statuses(ctx, r.ID)

	return r, all, err
}

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
		// If the owner was removed in the meantime, so was the resource. The caller notices that.
		if _, err := u.tx.GetForUpdate(ctx, owner); err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}

	return nil
}
