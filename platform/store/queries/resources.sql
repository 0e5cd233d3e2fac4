-- Copyright The HyperFleet Authors.
-- SPDX-License-Identifier: Apache-2.0

-- name: InsertResource :one
insert into resources (id, kind, name, spec, labels, tenancy, generation, owner_id, owner_kind, conditions,
                       created_time, updated_time, deleted_time, created_by, updated_by, deleted_by)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
returning spec;

-- name: GetResource :one
select * from resource_rows where id = $1 and (select check_incarnation());

-- name: LockResource :one
select id from resources where id = $1 for no key update;

-- name: TryLockResource :execrows
select id from resources where id = $1 and (deleted_time is null or owner_id is null) for no key update;

-- name: ShareResources :many
select id, kind, (deleted_time is not null)::boolean as deleting from resources
where id = any (@ids::uuid[]) order by id for share;

-- name: UpdateResource :one
update resources
set spec = $2, labels = $3, generation = $4, updated_time = $5, updated_by = $6, deleted_time = $7, deleted_by = $8,
    conditions = $9, reported = '{}'
where id = $1
returning spec;

-- name: SetConditions :exec
update resources set conditions = $2, reported = '{}' where id = $1;

-- name: SetReported :exec
update resources set reported = $2 where id = $1;

-- name: ClearOwner :exec
update resources set owner_id = null, owner_kind = null where id = $1;

-- name: RemoveResources :exec
delete from resources where id = any (@ids::uuid[]);

-- name: Children :many
select id from resources
where owner_id = @owner_id::uuid order by kind collate "C", created_time, id;

-- name: ClearReferences :exec
delete from resource_references where source_id = $1;

-- name: AddReference :exec
insert into resource_references (source_id, ref_type, target_id, target_kind, place) values ($1, $2, $3, $4, $5);

-- name: InboundReferences :many
select f.source_id, r.kind as source_kind, f.ref_type as type, (r.deleted_time is not null)::boolean as source_deleting
from resource_references f join resources r on r.id = f.source_id
where f.target_id = any (@ids::uuid[]) order by f.source_id, f.ref_type;

-- name: Pending :many
with waiting as (
    select kind, (deleted_time is not null)::boolean as deleting,
           greatest((conditions -> 'Reconciled' ->> 'last_transition_time')::timestamptz, deleted_time) as since
    from resources where conditions @> '{"Reconciled": {"status": "False"}}' and (select check_incarnation())
)
select kind, deleting, count(*) as count, (count(*) filter (where since < sqlc.arg(stuck_before)::timestamptz)) as stuck,
       coalesce(extract(epoch from (sqlc.arg(now)::timestamptz - min(since) filter (where since < sqlc.arg(stuck_before)))), 0)::double precision
           as longest_seconds
from waiting group by kind, deleting order by kind collate "C", deleting;
