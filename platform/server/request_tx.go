// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/conditions"
	"github.com/hyperfleet/hyperfleet/platform/entity"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

type requestTx struct {
	*Server

	tx     *store.Tx
	now    time.Time
	caller string
	// statuses caches the statuses of locked resources.
	statuses map[string][]openapi.AdapterStatus
	// transitions are the changes of Reconciled to False. They are counted after the commit.
	transitions []transition
}

type transition struct {
	kind     string
	deleting bool
}

// runTx runs a function in a transaction and returns its result. The function may run more than
// once.
func runTx[T any](
	ctx context.Context, s *Server, run func(ctx context.Context, u *requestTx) (T, error),
) (out T, err error) {
	var lastRun *requestTx

	err = s.store.InTx(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		lastRun = &requestTx{Server: s, tx: tx, now: s.now(), caller: requestFromContext(ctx).caller.name}
		out, err = run(ctx, lastRun)

		return err
	})
	if err != nil {
		return out, err
	}

	for _, transition := range lastRun.transitions {
		s.metrics.countStarted(transition.kind, transition.deleting)
	}

	return out, nil
}

// changeResource locks the resource that the request names, runs a function on it, and returns the
// response with the result.
func (s *Server) changeResource(
	ctx context.Context, status int, do func(ctx context.Context, u *requestTx, r store.Resource) (store.Resource, error),
) (response, error) {
	out, err := runTx(ctx, s, func(ctx context.Context, u *requestTx) (store.Resource, error) {
		r, err := u.findResource(ctx, u.tx.GetForUpdate, requestFromContext(ctx).scope)
		if err != nil {
			return r, err
		}

		changed, err := do(ctx, u, r)
		if err != nil {
			return r, err
		}

		// A request that fails for another reason gets that error (RFC 9110, section 13.2.1).
		return changed, u.checkIfMatch(ctx, r)
	})
	if err != nil {
		return response{}, err
	}

	return s.newResponse(status, out)
}

// now returns the time with the precision of the database.
func (s *Server) now() time.Time { return s.clock.Now().UTC().Truncate(time.Microsecond) }

// findResource reads the resource that a scope names, with a function of the store or a
// transaction.
func (s *Server) findResource(
	ctx context.Context, read func(context.Context, string) (store.Resource, error), target scope,
) (store.Resource, error) {
	if err := validateIDs(target); err != nil {
		return store.Resource{}, err
	}

	name := ""
	if target.kind != nil {
		name = target.kind.Kind
	}

	found, err := read(ctx, target.id)

	switch {
	case errors.Is(err, store.ErrNotFound):
		return store.Resource{}, newNotFound(name, target.id)
	case err != nil:
		return store.Resource{}, err
	case target.kind != nil && found.Kind != target.kind.Kind,
		target.parent != nil && found.OwnerID != target.parentID,
		!isVisible(ctx, found):
		return store.Resource{}, newNotFound(name, target.id)
	default:
		return found, nil
	}
}

// registeredKind returns the kind of a stored resource. If the kind was removed from the
// configuration, it returns an error. Such a resource can be read but not changed, because removing
// the kind from the configuration does not mean that the resource was deleted.
func (s *Server) registeredKind(r store.Resource) (*entity.Kind, error) {
	kind := s.registry.ByKind(r.Kind)
	if kind == nil {
		return nil, newProblem(CodeState, "kind %s is no longer registered", r.Kind)
	}

	return kind, nil
}

// buildInput reads everything that the conditions of a resource depend on.
func (u *requestTx) buildInput(ctx context.Context, kind *entity.Kind, r store.Resource, children int) (conditions.Input, error) {
	statuses, isCached := u.statuses[r.ID]
	if !isCached {
		var err error
		if statuses, err = u.tx.Statuses(ctx, r.ID); err != nil {
			return conditions.Input{}, err
		}
	}

	missing, err := u.findMissing(ctx, kind, r)
	if err != nil {
		return conditions.Input{}, err
	}

	return conditions.Input{
		Generation: r.Generation, UpdatedTime: r.UpdatedTime, Deleting: r.IsDeleting(), Required: kind.RequiredAdapters,
		Statuses: statuses, Children: children, Missing: missing, Previous: r.Conditions,
	}, nil
}

// findMissing returns the references of a resource whose target does not exist or is being deleted.
func (u *requestTx) findMissing(ctx context.Context, kind *entity.Kind, r store.Resource) ([]conditions.MissingReference, error) {
	var out []conditions.MissingReference

	if r.IsDeleting() {
		return nil, nil
	}

	for _, rule := range kind.References {
		if len(r.References[rule.RefType]) < rule.Min {
			out = append(out, conditions.MissingReference{Type: rule.RefType, Since: r.UpdatedTime})
		}
	}

	for refType, targets := range r.References {
		for _, ref := range targets {
			target, err := u.tx.Get(ctx, ref.ID)

			switch {
			case errors.Is(err, store.ErrNotFound):
				out = append(out, conditions.MissingReference{Type: refType, ID: ref.ID, Since: u.now})
			case err != nil:
				return nil, err
			case target.IsDeleting():
				out = append(out, conditions.MissingReference{Type: refType, ID: ref.ID, Since: *target.DeletedTime})
			}
		}
	}

	return out, nil
}

// deriveConditions returns the conditions of a locked resource with a number of children, and the
// input that they depend on.
func (u *requestTx) deriveConditions(
	ctx context.Context, kind *entity.Kind, r store.Resource, children int,
) (conditions.Input, []openapi.ResourceCondition, error) {
	in, err := u.buildInput(ctx, kind, r, children)
	if err != nil {
		return in, nil, err
	}

	list, err := u.evaluateConditions(ctx, kind, r, in)

	return in, list, err
}

func (u *requestTx) evaluateConditions(
	ctx context.Context, kind *entity.Kind, r store.Resource, in conditions.Input,
) ([]openapi.ResourceCondition, error) {
	list := conditions.Aggregate(in)

	if len(kind.Conditions) > 0 {
		value, err := toJSONValue(u.newBody(r))
		if err != nil {
			return nil, err
		}

		resource, _ := value.(map[string]any)

		mapped, err := u.rules[kind.Kind].Apply(ctx, in, resource)
		if err != nil {
			return nil, &Error{Code: CodeRule, Detail: "nothing was stored: " + err.Error()}
		}

		list = append(list, mapped...)
	}

	slices.SortFunc(list, func(a, b openapi.ResourceCondition) int { return strings.Compare(a.Type, b.Type) })
	u.countTransition(r, list)

	return list, nil
}

// countTransition records a change of Reconciled to False.
func (u *requestTx) countTransition(r store.Resource, list []openapi.ResourceCondition) {
	previous, _ := conditions.Condition(r.Conditions, entity.Reconciled)
	current, _ := conditions.Condition(list, entity.Reconciled)

	if current.Status == conditions.False && previous.Status != conditions.False {
		u.transitions = append(u.transitions, transition{r.Kind, r.IsDeleting()})
	}
}

// updateConditions computes the conditions of a stored resource and stores them. It returns true if
// they changed in more than the time of a report that repeats the previous one.
func (u *requestTx) updateConditions(
	ctx context.Context, kind *entity.Kind, r *store.Resource,
) (in conditions.Input, hasChanged bool, err error) {
	var children []string

	if r.IsDeleting() {
		if children, err = u.tx.Children(ctx, r.ID); err != nil {
			return in, false, err
		}
	}

	in, list, err := u.deriveConditions(ctx, kind, *r, len(children))
	if err != nil || slices.EqualFunc(list, r.Conditions, isSameCondition) {
		return in, false, err
	}

	hasChanged = !slices.EqualFunc(list, r.Conditions, isRepeatedReport)
	r.Conditions = list

	if !hasChanged {
		u.tx.SetReported(r.ID, list)

		return in, false, nil
	}

	return in, true, u.tx.SetConditions(r.ID, list)
}

// isRepeatedReport returns true if the time of the report has not become earlier, and is the only difference
// between two conditions.
func isRepeatedReport(now, previous openapi.ResourceCondition) bool {
	if now.LastUpdatedTime.Before(previous.LastUpdatedTime) {
		return false
	}

	now.LastUpdatedTime = previous.LastUpdatedTime

	return isSameCondition(now, previous)
}

// isSameCondition reports whether two conditions are equal, with times in the precision of the database.
func isSameCondition(a, b openapi.ResourceCondition) bool {
	isSameTime := func(a, b time.Time) bool {
		return a.Truncate(time.Microsecond).Equal(b.Truncate(time.Microsecond))
	}

	if !isSameTime(a.CreatedTime, b.CreatedTime) || !isSameTime(a.LastUpdatedTime, b.LastUpdatedTime) ||
		!isSameTime(a.LastTransitionTime, b.LastTransitionTime) {
		return false
	}

	a.CreatedTime, a.LastUpdatedTime, a.LastTransitionTime = b.CreatedTime, b.LastUpdatedTime, b.LastTransitionTime

	return a == b
}

// recompute updates the conditions of a resource after something that they depend on has changed. For
// example, a child was removed, or a resource that it refers to is being deleted. If the resource is
// being deleted and nothing prevents its removal any more, it is removed. The same is then done for its
// owner. A resource that does not exist is no error.
func (u *requestTx) recompute(ctx context.Context, id string) error {
	for id != "" {
		r, err := u.tx.GetForUpdate(ctx, id)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}

		if err != nil {
			return err
		}

		kind := u.registry.ByKind(r.Kind)
		if kind == nil {
			return nil
		}

		isRemoved, err := u.updateOrRemove(ctx, kind, &r)
		if err != nil || !isRemoved {
			return err
		}

		id = r.OwnerID
	}

	return nil
}

// updateOrRemove updates the conditions of a resource, or removes the resource if its deletion is
// complete, and records the change.
func (u *requestTx) updateOrRemove(ctx context.Context, kind *entity.Kind, r *store.Resource) (isRemoved bool, err error) {
	in, hasChanged, err := u.updateConditions(ctx, kind, r)
	if err != nil {
		return false, err
	}

	if conditions.IsFinished(in) {
		return true, u.removeResource(ctx, *r)
	}

	if hasChanged {
		u.tx.RecordChange(*r, store.OperationStatus)
	}

	return false, nil
}

// removeResource removes a resource from the database and records the change.
func (u *requestTx) removeResource(ctx context.Context, r store.Resource) error {
	if err := u.tx.Remove(ctx, r.ID); err != nil {
		return err
	}

	u.tx.RecordChange(r, store.OperationRemoved)

	return nil
}
