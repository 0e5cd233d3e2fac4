// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/conditions"
	"github.com/hyperfleet/hyperfleet/platform/entity"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

// requestTx is one transaction of a request.
type requestTx struct {
	*Server

	tx     *store.Tx
	now    time.Time
	caller string
	// statuses are those that are known already, of resources that are locked.
	statuses map[string][]openapi.AdapterStatus
	// started are the transitions to not reconciled, counted once the transaction is done.
	started []started
}

type started struct {
	kind     string
	deleting bool
}

// write gives what a transaction does; it may run more than once.
func write[T any](
	ctx context.Context, s *Server, run func(ctx context.Context, u *requestTx) (T, error),
) (out T, err error) {
	var last *requestTx

	err = s.store.InTx(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		last = &requestTx{Server: s, tx: tx, now: s.now(), caller: about(ctx).caller.name}
		out, err = run(ctx, last)

		return err
	})
	if err != nil {
		return out, err
	}

	for _, one := range last.started {
		s.metrics.started(one.kind, one.deleting)
	}

	return out, nil
}

// change does something with the resource that a scope names, which is locked, and answers
// what it is then.
func (s *Server) change(
	ctx context.Context, at scope, status int,
	do func(ctx context.Context, u *requestTx, r store.Resource) (store.Resource, error),
) (answer, error) {
	out, err := write(ctx, s, func(ctx context.Context, u *requestTx) (store.Resource, error) {
		r, err := u.find(ctx, u.tx.GetForUpdate, at)
		if err != nil {
			return r, err
		}

		return do(ctx, u, r)
	})

	return answer{status, s.tell(out)}, err
}

// now is as exact as the database.
func (s *Server) now() time.Time { return s.clock.Now().UTC().Truncate(time.Microsecond) }

// find reads the resource that a scope names, with a read of the store or a transaction.
func (s *Server) find(
	ctx context.Context, read func(context.Context, string) (store.Resource, error), at scope,
) (store.Resource, error) {
	if err := checkIDs(at); err != nil {
		return store.Resource{}, err
	}

	name := ""
	if at.kind != nil {
		name = at.kind.Kind
	}

	found, err := read(ctx, at.id)

	switch {
	case errors.Is(err, store.ErrNotFound):
		return store.Resource{}, notFound(name, at.id)
	case err != nil:
		return store.Resource{}, err
	case at.kind != nil && found.Kind != at.kind.Kind,
		at.parent != nil && found.OwnerID != at.parentID,
		!visible(ctx, found):
		return store.Resource{}, notFound(name, at.id)
	default:
		return found, nil
	}
}

// kindOf is the kind of a stored resource. One whose kind was taken out of the
// configuration can be read, and not changed: that its kind is not registered does not mean
// that it is gone.
func (s *Server) kindOf(r store.Resource) (*entity.Kind, error) {
	kind := s.registry.ByKind(r.Kind)
	if kind == nil {
		return nil, problem(CodeState, "kind %s is not registered any more", r.Kind)
	}

	return kind, nil
}

// input gathers what the conditions of a resource follow from.
func (u *requestTx) input(ctx context.Context, kind *entity.Kind, r store.Resource, children int) (conditions.Input, error) {
	statuses, known := u.statuses[r.ID]
	if !known {
		var err error
		if statuses, err = u.tx.Statuses(ctx, r.ID); err != nil {
			return conditions.Input{}, err
		}
	}

	missing, err := u.missing(ctx, kind, r)
	if err != nil {
		return conditions.Input{}, err
	}

	return conditions.Input{
		Generation: r.Generation, UpdatedTime: r.UpdatedTime, Deleting: r.Deleting(), Required: kind.RequiredAdapters,
		Statuses: statuses, Children: children, Missing: missing, Previous: r.Conditions,
	}, nil
}

// missing are the references of a resource whose target is gone or going.
func (u *requestTx) missing(ctx context.Context, kind *entity.Kind, r store.Resource) ([]conditions.MissingReference, error) {
	var out []conditions.MissingReference

	if r.Deleting() {
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
			case target.Deleting():
				out = append(out, conditions.MissingReference{Type: refType, ID: ref.ID, Since: *target.DeletedTime})
			}
		}
	}

	return out, nil
}

// derive gives the conditions of a resource that is locked, with so many below it, and what
// they follow from.
func (u *requestTx) derive(
	ctx context.Context, kind *entity.Kind, r store.Resource, children int,
) (conditions.Input, []openapi.ResourceCondition, error) {
	in, err := u.input(ctx, kind, r, children)
	if err != nil {
		return in, nil, err
	}

	list, err := u.compute(ctx, kind, r, in)

	return in, list, err
}

// compute gives the conditions of a resource, by type.
func (u *requestTx) compute(
	ctx context.Context, kind *entity.Kind, r store.Resource, in conditions.Input,
) ([]openapi.ResourceCondition, error) {
	list := conditions.Aggregate(in)

	if len(kind.Conditions) > 0 {
		value, err := plain(u.tell(r))
		if err != nil {
			return nil, err
		}

		asMap, _ := value.(map[string]any)

		mapped, err := u.rules[kind.Kind].Apply(ctx, in, asMap)
		if err != nil {
			return nil, &Error{Code: CodeRule, Detail: "nothing was stored: " + err.Error()}
		}

		list = append(list, mapped...)
	}

	slices.SortFunc(list, func(a, b openapi.ResourceCondition) int { return strings.Compare(a.Type, b.Type) })
	u.count(r, list)

	return list, nil
}

// count notes a transition to not reconciled.
func (u *requestTx) count(r store.Resource, list []openapi.ResourceCondition) {
	before, _ := conditions.Condition(r.Conditions, entity.Reconciled)
	after, _ := conditions.Condition(list, entity.Reconciled)

	if after.Status == conditions.False && before.Status != conditions.False {
		u.started = append(u.started, started{r.Kind, r.Deleting()})
	}
}

// settle computes the conditions of a stored resource anew, stores them, and tells whether
// there is news in them: more than the time of a report that says what the one before it said.
func (u *requestTx) settle(
	ctx context.Context, kind *entity.Kind, r *store.Resource,
) (in conditions.Input, news bool, err error) {
	var below []store.Resource

	if r.Deleting() {
		if below, err = u.tx.Children(ctx, r.ID); err != nil {
			return in, false, err
		}
	}

	in, list, err := u.derive(ctx, kind, *r, len(below))
	if err != nil || slices.EqualFunc(list, r.Conditions, sameCondition) {
		return in, false, err
	}

	news = !slices.EqualFunc(list, r.Conditions, reportedAgain)
	r.Conditions = list

	if !news {
		return in, false, u.tx.SetReported(ctx, r.ID, list)
	}

	return in, true, u.tx.SetConditions(ctx, r.ID, list)
}

// reportedAgain says of conditions that differ that all that is new is the time of the report.
func reportedAgain(now, before openapi.ResourceCondition) bool {
	if now.LastUpdatedTime.Before(before.LastUpdatedTime) {
		return false
	}

	now.LastUpdatedTime = before.LastUpdatedTime

	return sameCondition(now, before)
}

// sameCondition compares with times as the database keeps them.
func sameCondition(a, b openapi.ResourceCondition) bool {
	same := func(a, b time.Time) bool {
		return a.Truncate(time.Microsecond).Equal(b.Truncate(time.Microsecond))
	}

	if !same(a.CreatedTime, b.CreatedTime) || !same(a.LastUpdatedTime, b.LastUpdatedTime) ||
		!same(a.LastTransitionTime, b.LastTransitionTime) {
		return false
	}

	a.CreatedTime, a.LastUpdatedTime, a.LastTransitionTime = b.CreatedTime, b.LastUpdatedTime, b.LastTransitionTime

	return a == b
}

// lookAgain is for a resource of which something that it depends on has changed: a child
// that went, a target that goes. One that is being deleted goes itself if nothing keeps it
// any more, and then its owner is looked at.
func (u *requestTx) lookAgain(ctx context.Context, id string) error {
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

		gone, err := u.settleOrGo(ctx, kind, &r)
		if err != nil || !gone {
			return err
		}

		id = r.OwnerID
	}

	return nil
}

// settleOrGo settles a resource, or removes it if it is finished, and records what became
// of it.
func (u *requestTx) settleOrGo(ctx context.Context, kind *entity.Kind, r *store.Resource) (gone bool, err error) {
	in, news, err := u.settle(ctx, kind, r)
	if err != nil {
		return false, err
	}

	if !conditions.Finished(in) {
		if !news {
			return false, nil
		}

		return false, u.record(ctx, *r, store.OperationStatus)
	}

	return true, u.removeRow(ctx, *r)
}

// removeRow removes a resource for good.
func (u *requestTx) removeRow(ctx context.Context, r store.Resource) error {
	if err := u.tx.Remove(ctx, r.ID); err != nil {
		return err
	}

	return u.record(ctx, r, store.OperationRemoved)
}

// record tells the change feed.
func (u *requestTx) record(ctx context.Context, r store.Resource, operation string) error {
	if err := u.tx.RecordChange(ctx, r, operation); err != nil {
		return fmt.Errorf("record that %s %s is %s: %w", r.Kind, r.ID, operation, err)
	}

	return nil
}
