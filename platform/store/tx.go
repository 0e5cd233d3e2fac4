// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/store/db"
)

// txAttempts is how often a transaction is run that PostgreSQL aborted because of a conflict
// with another one.
const txAttempts = 10

// Tx is a transaction (Store.InTx). Only one goroutine at a time may use it.
type Tx struct {
	queries *db.Queries
	// deferred runs statements that only return an error. The next query or the commit returns it.
	deferred *db.Queries
	session  *session
	// hasChanges is true if a change was recorded.
	hasChanges bool
}

// InTx runs a function in one transaction. It commits the transaction if the function returns nil.
// Otherwise it rolls back and returns the function's error. If PostgreSQL aborts the transaction
// because of a conflict with another one, or the connection is lost before the commit, InTx runs
// the function again. So the function must have no effects other than those of tx.
func (s *Store) InTx(parent context.Context, run func(ctx context.Context, tx *Tx) error) error {
	ctx, cancel := context.WithTimeout(parent, s.options.Timeout)
	defer cancel()

	for attempt := 1; ; attempt++ {
		hasChanges, isCommitting, err := s.runInSession(ctx, run)
		if err == nil && hasChanges {
			s.announce()
		}

		if err == nil || attempt == txAttempts || ctx.Err() != nil || !s.prepareRetry(ctx, err, isCommitting) {
			return classifyError(err)
		}
	}
}

// runInSession runs one transaction. It returns whether the transaction recorded a change, and whether the
// error comes from the commit. If it does, the transaction may have been committed.
func (s *Store) runInSession(
	ctx context.Context, run func(ctx context.Context, tx *Tx) error,
) (hasChanges, isCommitting bool, err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return false, false, err
	}
	defer conn.Release()

	session := newSession(conn.Conn())
	defer session.rollback(ctx)

	tx := &Tx{queries: db.New(session), deferred: db.New(queryRecorder{&session.pending}), session: session}
	if err := run(ctx, tx); err != nil {
		return false, false, err
	}

	return tx.hasChanges, true, session.commit(ctx)
}

// Insert adds a resource with its references and conditions, and returns it as stored. It locks the
// owner. Errors: ErrExists, ErrOwnerMissing, ErrOwnerDeleting, *TargetError, ErrUnstorable.
func (tx *Tx) Insert(ctx context.Context, resource Resource) (Resource, error) {
	r := resource.normalize()

	if r.ID == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return Resource{}, fmt.Errorf("insert %s %s: %w", r.Kind, r.Name, err)
		}

		r.ID = id.String()
	}

	if r.OwnerID != "" {
		if err := tx.lockOwner(ctx, r.OwnerID); err != nil {
			return Resource{}, fmt.Errorf("insert %s %s below %s: %w", r.Kind, r.Name, r.OwnerID, err)
		}
	}

	params, err := insertParams(&r)
	if err != nil {
		return Resource{}, fmt.Errorf("insert %s %s: %w", r.Kind, r.Name, err)
	}

	if r.Spec, err = tx.queries.InsertResource(ctx, params); err != nil {
		return Resource{}, fmt.Errorf("insert %s %s: %w", r.Kind, r.Name, classifyError(err))
	}

	r.References, err = tx.addReferences(ctx, r.ID, r.References)

	return r, err
}

func insertParams(r *Resource) (db.InsertResourceParams, error) {
	conditions, err := conditionsByType(r.Conditions)
	if err != nil {
		return db.InsertResourceParams{}, err
	}

	if tenancy, err := json.Marshal(r.Tenancy); err != nil || len(tenancy) > maxTenancy {
		return db.InsertResourceParams{}, fmt.Errorf("%w: the tenancy has %d bytes, more than %d",
			ErrUnstorable, len(tenancy), maxTenancy)
	}

	return db.InsertResourceParams{
		ID: r.ID, Kind: r.Kind, Name: r.Name, Spec: r.Spec, Labels: r.Labels, Tenancy: r.Tenancy, Generation: r.Generation,
		OwnerID: toPointer(r.OwnerID), OwnerKind: toPointer(r.OwnerKind), Conditions: conditions,
		CreatedTime: r.CreatedTime, UpdatedTime: r.UpdatedTime, DeletedTime: r.DeletedTime,
		CreatedBy: r.CreatedBy, UpdatedBy: r.UpdatedBy, DeletedBy: r.DeletedBy,
	}, nil
}

func (tx *Tx) lockOwner(ctx context.Context, id string) error {
	rows, err := tx.queries.ShareResources(ctx, []string{id})

	switch {
	case err != nil:
		return classifyError(err)
	case len(rows) == 0:
		return ErrOwnerMissing
	case rows[0].Deleting:
		return ErrOwnerDeleting
	default:
		return nil
	}
}

// Get returns a resource, even if it is being deleted. Errors: ErrNotFound.
func (tx *Tx) Get(ctx context.Context, id string) (Resource, error) {
	return getResource(ctx, tx.queries, id)
}

// GetForUpdate returns a resource and locks it until the end of the transaction. Other transactions
// can still read it, but have to wait to change it, own it or refer to it. Errors: ErrNotFound.
func (tx *Tx) GetForUpdate(ctx context.Context, id string) (Resource, error) {
	if !isID(id) {
		return Resource{}, fmt.Errorf("lock resource %q: %w", id, ErrNotFound)
	}

	var row db.ResourceRow

	// The read is a separate statement, so that it sees everything that the previous holder of the
	// lock has written, including references.
	err := tx.session.sendTogether(ctx, func(queries *db.Queries) error {
		_, err := queries.LockResource(ctx, id)

		return err
	}, func(queries *db.Queries) (err error) {
		row, err = queries.GetResource(ctx, id)

		return err
	})
	if err != nil {
		return Resource{}, fmt.Errorf("lock resource %s: %w", id, classifyError(err))
	}

	return fromRow(&row), nil
}

// TryGetForUpdate returns a resource with its statuses, and locks it like GetForUpdate. If the
// resource is being deleted and has an owner, it is not locked: its removal may also remove the
// owner, which has to be locked first. Errors: ErrNotFound.
func (tx *Tx) TryGetForUpdate(
	ctx context.Context, id string,
) (r Resource, reports []openapi.AdapterStatus, isLocked bool, err error) {
	if !isID(id) {
		return Resource{}, nil, false, fmt.Errorf("lock resource %q: %w", id, ErrNotFound)
	}

	var (
		rows int64
		row  db.ResourceRow
	)

	err = tx.session.sendTogether(ctx, func(queries *db.Queries) (err error) {
		rows, err = queries.TryLockResource(ctx, id)

		return err
	}, func(queries *db.Queries) (err error) {
		row, err = queries.GetResource(ctx, id)

		return err
	}, func(queries *db.Queries) (err error) {
		reports, err = listStatuses(ctx, queries, id)

		return err
	})
	if err != nil {
		return Resource{}, nil, false, fmt.Errorf("lock resource %s: %w", id, classifyError(err))
	}

	return fromRow(&row), reports, rows > 0, nil
}

// isID returns true if the text is a UUID as this package formats them.
func isID(id string) bool {
	parsed, err := uuid.Parse(id)

	return err == nil && parsed.String() == id
}

func getResource(ctx context.Context, queries *db.Queries, id string) (Resource, error) {
	if !isID(id) {
		return Resource{}, fmt.Errorf("get resource %q: %w", id, ErrNotFound)
	}

	row, err := queries.GetResource(ctx, id)
	if err != nil {
		return Resource{}, fmt.Errorf("get resource %s: %w", id, classifyError(err))
	}

	return fromRow(&row), nil
}

// Update writes Spec, Labels, Generation, Conditions, and the times and users of the last update
// and deletion. It ignores all other fields. The resource has to be locked by GetForUpdate. Errors:
// ErrNotFound, ErrUnstorable.
func (tx *Tx) Update(ctx context.Context, resource Resource) (Resource, error) {
	r := resource.normalize()

	conditions, err := conditionsByType(r.Conditions)
	if err != nil {
		return Resource{}, fmt.Errorf("update resource %s: %w", r.ID, err)
	}

	r.Spec, err = tx.queries.UpdateResource(ctx, db.UpdateResourceParams{
		ID: r.ID, Spec: r.Spec, Labels: r.Labels, Generation: r.Generation, UpdatedTime: r.UpdatedTime, UpdatedBy: r.UpdatedBy,
		DeletedTime: r.DeletedTime, DeletedBy: r.DeletedBy, Conditions: conditions,
	})
	if err != nil {
		return r, fmt.Errorf("update resource %s: %w", r.ID, classifyError(err))
	}

	return r, nil
}

// SetConditions replaces the conditions of a resource that is locked by GetForUpdate. It returns
// ErrUnstorable, but the end of the transaction may return this error instead.
func (tx *Tx) SetConditions(ctx context.Context, id string, conditions []openapi.ResourceCondition) error {
	typedConditions, err := conditionsByType(conditions)
	if err != nil {
		return fmt.Errorf("set conditions of %s: %w", id, err)
	}

	if err := tx.deferred.SetConditions(ctx, db.SetConditionsParams{ID: id, Conditions: typedConditions}); err != nil {
		return fmt.Errorf("set conditions of %s: %w", id, classifyError(err))
	}

	return nil
}

// SetReported records when the unchanged conditions of a resource that is locked by GetForUpdate
// were last reported. It writes no index. It returns ErrUnstorable, but the end of the transaction
// may return this error instead.
func (tx *Tx) SetReported(ctx context.Context, id string, conditions []openapi.ResourceCondition) error {
	reported := db.Reported{}
	for _, condition := range normalizeConditions(conditions) {
		reported[condition.Type] = condition.LastUpdatedTime
	}

	if err := tx.deferred.SetReported(ctx, db.SetReportedParams{ID: id, Reported: reported}); err != nil {
		return fmt.Errorf("set report time of %s: %w", id, classifyError(err))
	}

	return nil
}

// ClearOwner removes the owner of a resource that is locked by GetForUpdate. Errors: ErrExists if another resource
// without an owner has the name.
func (tx *Tx) ClearOwner(ctx context.Context, id string) error {
	if err := tx.queries.ClearOwner(ctx, id); err != nil {
		return fmt.Errorf("remove owner of %s: %w", id, classifyError(err))
	}

	return nil
}

// Remove removes resources with their statuses and outbound references. Inbound references stay.
// Errors: ErrHasChildren if one of them owns a resource that is not among them.
func (tx *Tx) Remove(ctx context.Context, ids ...string) error {
	err := tx.queries.RemoveResources(ctx, ids)

	switch {
	case sqlState(err) == codeForeignKey:
		return fmt.Errorf("remove %d resources: %w", len(ids), ErrHasChildren)
	case err != nil:
		return fmt.Errorf("remove %d resources: %w", len(ids), classifyError(err))
	default:
		return nil
	}
}

// Children returns the IDs of the resources that a resource owns directly, including those that are being
// deleted, ordered by kind and age.
func (tx *Tx) Children(ctx context.Context, id string) ([]string, error) {
	ids, err := tx.queries.Children(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("list children of %s: %w", id, classifyError(err))
	}

	return ids, nil
}

// InboundReferences returns the references to resources, which may have been removed, ordered by
// their source.
func (tx *Tx) InboundReferences(ctx context.Context, ids ...string) ([]InboundRef, error) {
	refs, err := tx.queries.InboundReferences(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("list references to %s: %w", strings.Join(ids, ", "), classifyError(err))
	}

	return refs, nil
}

// SetReferences replaces a resource's references and returns them as stored, each with the kind of
// its target. It locks the targets. If a reference has a kind, its target must have the same kind.
// Errors: *TargetError.
func (tx *Tx) SetReferences(ctx context.Context, id string, references map[string][]Ref) (map[string][]Ref, error) {
	if err := tx.queries.ClearReferences(ctx, id); err != nil {
		return nil, fmt.Errorf("clear references of %s: %w", id, classifyError(err))
	}

	return tx.addReferences(ctx, id, references)
}

// addReferences locks the targets, checks them, and inserts the references of a resource. It returns the
// references with the kinds of their targets.
func (tx *Tx) addReferences(ctx context.Context, id string, references map[string][]Ref) (map[string][]Ref, error) {
	if len(references) == 0 {
		return nil, nil //nolint:nilnil // a resource without references has a nil map
	}

	targets, err := tx.lockTargets(ctx, references)
	if err != nil {
		return nil, fmt.Errorf("set references of %s: %w", id, err)
	}

	added := map[string][]Ref{}

	for _, refType := range slices.Sorted(maps.Keys(references)) {
		for place, ref := range references[refType] {
			kind, err := checkTarget(refType, ref, targets)
			if err != nil {
				return nil, err
			}

			if slices.Contains(added[refType], Ref{ID: ref.ID, Kind: kind}) {
				return nil, &TargetError{Type: refType, ID: ref.ID, Problem: TargetDuplicate}
			}

			err = tx.queries.AddReference(ctx, db.AddReferenceParams{
				SourceID: id, RefType: refType, TargetID: ref.ID, TargetKind: kind, Place: int32(place),
			})
			if err != nil {
				return nil, fmt.Errorf("set reference %s of %s to %s: %w", refType, id, ref.ID, classifyError(err))
			}

			added[refType] = append(added[refType], Ref{ID: ref.ID, Kind: kind})
		}
	}

	return added, nil
}

// lockTargets locks all targets in the order of their IDs, and returns their kind and state.
func (tx *Tx) lockTargets(ctx context.Context, references map[string][]Ref) (map[string]db.ShareResourcesRow, error) {
	var ids []string

	for _, refType := range slices.Sorted(maps.Keys(references)) {
		for _, ref := range references[refType] {
			if !isID(ref.ID) {
				return nil, &TargetError{Type: refType, ID: ref.ID, Problem: TargetMissing}
			}

			ids = append(ids, ref.ID)
		}
	}

	rows, err := tx.queries.ShareResources(ctx, ids)
	if err != nil {
		return nil, classifyError(err)
	}

	targets := make(map[string]db.ShareResourcesRow, len(rows))
	for _, row := range rows {
		targets[row.ID] = row
	}

	return targets, nil
}

func checkTarget(refType string, ref Ref, targets map[string]db.ShareResourcesRow) (string, error) {
	target, found := targets[ref.ID]

	switch {
	case !found:
		return "", &TargetError{Type: refType, ID: ref.ID, Problem: TargetMissing}
	case target.Deleting:
		return "", &TargetError{Type: refType, ID: ref.ID, Problem: TargetDeleting}
	case ref.Kind != "" && ref.Kind != target.Kind:
		return "", &TargetError{Type: refType, ID: ref.ID, Problem: TargetWrongKind}
	default:
		return target.Kind, nil
	}
}
