-- Copyright The HyperFleet Authors.
-- SPDX-License-Identifier: Apache-2.0

-- name: ServerIdentity :one
select i.server::text as server, i.started::text as started from server_identity() i;

-- name: LockIncarnation :one
select i.server, i.started, i.is_dropped, (i.xmin::text = i.written_by)::boolean as is_own from incarnation i for update;

-- name: CheckIncarnation :exec
select check_incarnation();

-- name: WriteIncarnation :exec
update incarnation set written_by = pg_current_xact_id()::xid::text, server = $1, started = $2, is_dropped = $3;

-- name: LockResources :exec
lock table resources in exclusive mode;

-- name: DropReports :one
with gone as (
    delete from statuses returning statuses.resource_id
), changed as (
    update resources
    set reported = '{}', conditions = (
        select coalesce(jsonb_object_agg(c.key, case when c.key <> 'Reconciled' then c.value else c.value
            || jsonb_build_object('status', 'False', 'reason', @reason::text, 'message', @message::text, 'observed_generation', 0)
            || case when c.value ->> 'status' = 'False' then '{}' else jsonb_build_object('last_transition_time', @now::timestamptz) end
        end), '{}')
        from jsonb_each(resources.conditions) c where c.key in ('Reconciled', 'LastKnownReconciled')
    )
    where resources.id in (select gone.resource_id from gone) or resources.conditions @> '{"Reconciled": {"status": "True"}}'
    returning resources.*
), recorded as (
    insert into changes (kind, resource_id, owner_id, tenancy, generation, operation)
    select changed.kind, changed.id, changed.owner_id, changed.tenancy, changed.generation, 'status' from changed
    returning 1
)
select count(*) from recorded;
