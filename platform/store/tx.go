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
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/hyperfleet/hyperfleet/api/openapi"
)

// txAttempts is how often a transaction is run that PostgreSQL aborted because of a conflict
// with another one.
const txAttempts = 10

// Tx is a transaction (Store.InTx). Only one goroutine at a time may use it.
type Tx struct {
	session *session
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

	tx := &Tx{session: session}
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

	conditions, err := conditionsByType(r.Conditions)
	if err != nil {
		return Resource{}, fmt.Errorf("insert %s %s: %w", r.Kind, r.Name, err)
	}

	if tenancy, err := json.Marshal(r.Tenancy); err != nil || len(tenancy) > maxTenancy {
		return Resource{}, fmt.Errorf("insert %s %s: %w: the tenancy has %d bytes, more than %d",
			r.Kind, r.Name, ErrUnstorable, len(tenancy), maxTenancy)
	}

	r.Spec, err = queryOne(ctx, tx.session, pgx.RowTo[json.RawMessage], `-- name: InsertResource
insert into resources (id, kind, name, spec, labels, tenancy, generation, owner_id, owner_kind, conditions,
                       created_time, updated_time, deleted_time, created_by, updated_by, deleted_by)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
returning spec`,
		r.ID, r.Kind, r.Name, r.Spec, r.Labels, r.Tenancy, r.Generation, toPointer(r.OwnerID), toPointer(r.OwnerKind), conditions,
		r.CreatedTime, r.UpdatedTime, r.DeletedTime, r.CreatedBy, r.UpdatedBy, r.DeletedBy)
	if err != nil {
		return Resource{}, wrapf(err, "insert %s %s", r.Kind, r.Name)
	}

	r.References, err = tx.addReferences(ctx, r.ID, r.References)

	return r, err
}

// target is a resource that something is added to.
type target struct {
	ID, Kind string
	Deleting bool
}

// share locks resources, so that they are not deleted before the end of the transaction.
func (tx *Tx) share(ctx context.Context, ids ...string) ([]target, error) {
	return queryAll(ctx, tx.session, pgx.RowToStructByName[target], `-- name: ShareResources
select id, kind, deleted_time is not null as deleting from resources where id = any ($1::uuid[]) order by id for share`, ids)
}

func (tx *Tx) lockOwner(ctx context.Context, id string) error {
	rows, err := tx.share(ctx, id)

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
	return getResource(ctx, tx.session, id)
}

// GetForUpdate returns a resource and locks it until the end of the transaction. Other transactions
// can still read it, but have to wait to change it, own it or refer to it. Errors: ErrNotFound.
func (tx *Tx) GetForUpdate(ctx context.Context, id string) (Resource, error) {
	r, isLocked, err := tx.lock(ctx, id, `-- name: LockResource
select id from resources where id = $1 for no key update`, func(*pgx.Batch) {})
	if err == nil && !isLocked {
		err = fmt.Errorf("lock resource %s: %w", id, ErrNotFound)
	}

	return r, err
}

// lock sends a statement that locks a resource, a read of the resource, and the queries that more adds, together. The read is
// a separate statement, so that it sees everything that the previous holder of the lock has written, including references.
func (tx *Tx) lock(
	ctx context.Context, id, statement string, more func(*pgx.Batch),
) (r Resource, isLocked bool, err error) {
	if !isID(id) {
		return r, false, fmt.Errorf("lock resource %q: %w", id, ErrNotFound)
	}

	batch := tx.session.pending
	batch.Queue(statement, id).Exec(func(result pgconn.CommandTag) error {
		isLocked = result.RowsAffected() > 0

		return nil
	})
	batch.Queue(selectResource, id).Query(func(rows pgx.Rows) (err error) {
		r, err = pgx.CollectOneRow(rows, toResource)

		return err
	})
	more(batch)

	err = tx.session.flush(ctx)

	return r, isLocked, wrapf(err, "lock resource %s", id)
}

// TryGetForUpdate returns a resource with its statuses, and locks it like GetForUpdate. If the
// resource is being deleted and has an owner, it is not locked: its removal may also remove the
// owner, which has to be locked first. Errors: ErrNotFound.
func (tx *Tx) TryGetForUpdate(
	ctx context.Context, id string,
) (r Resource, reports []openapi.AdapterStatus, isLocked bool, err error) {
	r, isLocked, err = tx.lock(ctx, id, `-- name: TryLockResource
select id from resources where id = $1 and (deleted_time is null or owner_id is null) for no key update`,
		func(batch *pgx.Batch) {
			batch.Queue(selectStatuses, id).Query(func(rows pgx.Rows) (err error) {
				reports, err = pgx.CollectRows(rows, toStatus)

				return err
			})
		})

	return r, reports, isLocked, err
}

// isID returns true if the text is a UUID as this package formats them.
func isID(id string) bool {
	parsed, err := uuid.Parse(id)

	return err == nil && parsed.String() == id
}

const selectResource = "-- name: GetResource\nselect " + resourceColumns +
	" from resource_rows r where r.id = $1 and (select check_incarnation())"

func getResource(ctx context.Context, to querier, id string) (Resource, error) {
	if !isID(id) {
		return Resource{}, fmt.Errorf("get resource %q: %w", id, ErrNotFound)
	}

	r, err := queryOne(ctx, to, toResource, selectResource, id)

	return r, wrapf(err, "get resource %s", id)
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

	r.Spec, err = queryOne(ctx, tx.session, pgx.RowTo[json.RawMessage], `-- name: UpdateResource
update resources
set spec = $2, labels = $3, generation = $4, updated_time = $5, updated_by = $6, deleted_time = $7, deleted_by = $8,
    conditions = $9, reported = '{}'
where id = $1
returning spec`,
		r.ID, r.Spec, r.Labels, r.Generation, r.UpdatedTime, r.UpdatedBy, r.DeletedTime, r.DeletedBy, conditions)

	return r, wrapf(err, "update resource %s", r.ID)
}

// SetConditions replaces the conditions of a resource that is locked by GetForUpdate. If they can't be stored
// (ErrUnstorable), the next query or the commit returns the error.
func (tx *Tx) SetConditions(id string, conditions []openapi.ResourceCondition) error {
	byType, err := conditionsByType(conditions)
	if err != nil {
		return fmt.Errorf("set conditions of %s: %w", id, err)
	}

	tx.session.pending.Queue(`-- name: SetConditions
		update resources set conditions = $2, reported = '{}' where id = $1`, id, byType)

	return nil
}

// SetReported records when the unchanged conditions of a resource that is locked by GetForUpdate
// were last reported. It writes no index.
func (tx *Tx) SetReported(id string, conditions []openapi.ResourceCondition) {
	reported := map[string]time.Time{}
	for _, condition := range normalizeConditions(conditions) {
		reported[condition.Type] = condition.LastUpdatedTime
	}

	tx.session.pending.Queue("-- name: SetReported\nupdate resources set reported = $2 where id = $1", id, reported)
}

// ClearOwner removes the owner of a resource that is locked by GetForUpdate. Errors: ErrExists if another resource
// without an owner has the name.
func (tx *Tx) ClearOwner(ctx context.Context, id string) error {
	_, err := tx.session.Exec(ctx, "-- name: ClearOwner\nupdate resources set owner_id = null, owner_kind = null where id = $1", id)

	return wrapf(err, "remove owner of %s", id)
}

// Remove removes resources with their statuses and outbound references. Inbound references stay.
// Errors: ErrHasChildren if one of them owns a resource that is not among them.
func (tx *Tx) Remove(ctx context.Context, ids ...string) error {
	_, err := tx.session.Exec(ctx, "-- name: RemoveResources\ndelete from resources where id = any ($1::uuid[])", ids)
	if sqlState(err) == codeForeignKey {
		err = ErrHasChildren
	}

	return wrapf(err, "remove %d resources", len(ids))
}

// Children returns the IDs of the resources that a resource owns directly, including those that are being
// deleted, ordered by kind and age.
func (tx *Tx) Children(ctx context.Context, id string) ([]string, error) {
	ids, err := queryAll(ctx, tx.session, pgx.RowTo[string], `-- name: Children
select id from resources where owner_id = $1 order by kind collate "C", created_time, id`, id)

	return ids, wrapf(err, "list children of %s", id)
}

// InboundReferences returns the references to resources, which may have been removed, ordered by
// their source.
func (tx *Tx) InboundReferences(ctx context.Context, ids ...string) ([]InboundRef, error) {
	refs, err := queryAll(ctx, tx.session, pgx.RowToStructByName[InboundRef], `-- name: InboundReferences
select f.source_id, r.kind as source_kind, f.ref_type as type, r.deleted_time is not null as source_deleting
from resource_references f join resources r on r.id = f.source_id
where f.target_id = any ($1::uuid[]) order by f.source_id, f.ref_type`, ids)

	return refs, wrapf(err, "list references to %s", strings.Join(ids, ", "))
}

// SetReferences replaces a resource's references and returns them as stored, each with the kind of
// its target. It locks the targets. If a reference has a kind, its target must have the same kind.
// Errors: *TargetError.
func (tx *Tx) SetReferences(ctx context.Context, id string, references map[string][]Ref) (map[string][]Ref, error) {
	_, err := tx.session.Exec(ctx, "-- name: ClearReferences\ndelete from resource_references where source_id = $1", id)
	if err != nil {
		return nil, wrapf(err, "clear references of %s", id)
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

			_, err = tx.session.Exec(ctx, `-- name: AddReference
insert into resource_references (source_id, ref_type, target_id, target_kind, place) values ($1, $2, $3, $4, $5)`,
				id, refType, ref.ID, kind, place)
			if err != nil {
				return nil, wrapf(err, "set reference %s of %s to %s", refType, id, ref.ID)
			}

			added[refType] = append(added[refType], Ref{ID: ref.ID, Kind: kind})
		}
	}

	return added, nil
}

// lockTargets locks all targets in the order of their IDs, and returns their kind and state.
func (tx *Tx) lockTargets(ctx context.Context, references map[string][]Ref) (map[string]target, error) {
	var ids []string

	for _, refType := range slices.Sorted(maps.Keys(references)) {
		for _, ref := range references[refType] {
			if !isID(ref.ID) {
				return nil, &TargetError{Type: refType, ID: ref.ID, Problem: TargetMissing}
			}

			ids = append(ids, ref.ID)
		}
	}

	rows, err := tx.share(ctx, ids...)
	if err != nil {
		return nil, classifyError(err)
	}

	targets := make(map[string]target, len(rows))
	for _, row := range rows {
		targets[row.ID] = row
	}

	return targets, nil
}

func checkTarget(refType string, ref Ref, targets map[string]target) (string, error) {
	found, exists := targets[ref.ID]

	switch {
	case !exists:
		return "", &TargetError{Type: refType, ID: ref.ID, Problem: TargetMissing}
	case found.Deleting:
		return "", &TargetError{Type: refType, ID: ref.ID, Problem: TargetDeleting}
	case ref.Kind != "" && ref.Kind != found.Kind:
		return "", &TargetError{Type: refType, ID: ref.ID, Problem: TargetWrongKind}
	default:
		return found.Kind, nil
	}
}

// AuditEntry records an action that can't be undone. The entry is kept after its resource was removed.
type AuditEntry struct {
	At time.Time
	// Actor is the caller, empty if callers have no names.
	Actor string
	// Action is, for example, force-delete.
	Action, Reason string
	// ResourceID, Kind and Name are those of the resource in the request.
	ResourceID, Kind, Name string
	// Removed are the IDs of all resources that were removed.
	Removed []string
}

// Audit adds an entry to the audit log.
func (tx *Tx) Audit(ctx context.Context, entry AuditEntry) error {
	_, err := tx.session.Exec(ctx, `-- name: AddAudit
insert into audit (at, actor, action, reason, resource_id, kind, name, removed) values ($1, $2, $3, $4, $5, $6, $7, $8)`,
		normalizeTime(entry.At), entry.Actor, entry.Action, entry.Reason, entry.ResourceID, entry.Kind, entry.Name, entry.Removed)

	return wrapf(err, "write audit log")
}
