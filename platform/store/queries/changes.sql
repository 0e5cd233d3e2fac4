-- Copyright The HyperFleet Authors.
-- SPDX-License-Identifier: Apache-2.0

-- name: RecordChange :exec
insert into changes (kind, resource_id, owner_id, tenancy, generation, operation) values ($1, $2, $3, $4, $5, $6);

-- name: AnnounceChanges :exec
select pg_notify('hyperfleet_changes', @sender::text);

-- name: FeedHorizon :one
select h.drawn::bigint as last_seq, h.horizon::bigint as horizon, feed.epoch from change_horizon() h, feed;

-- name: ListChanges :many
select seq, kind, resource_id, owner_id, generation, operation from changes
where seq > sqlc.arg(after_seq)::bigint and seq <= sqlc.arg(up_to_seq)::bigint
  and (sqlc.arg(of_kind)::text = '' or kind = sqlc.arg(of_kind)::text)
  and tenancy @> sqlc.arg(of_tenancy)
order by seq limit sqlc.arg(max_rows)::integer;

-- name: FeedFloor :one
select floor from feed;

-- name: LockPruning :one
select pg_try_advisory_xact_lock(@key::bigint);

-- name: PruneChanges :one
with kept as (
    select least(
        (select c.horizon + 1 from change_horizon() c),
        (select changes.seq from changes
         where changes.at >= clock_timestamp() - make_interval(secs => @kept_seconds::double precision)
         order by changes.seq limit 1)
    ) as first
), gone as (
    delete from changes where changes.seq in (
        select old.seq from changes old where old.seq < (select kept.first from kept) order by old.seq limit @max_rows::integer
    ) returning changes.seq
), floor as (
    update feed set floor = greatest(feed.floor, (select max(gone.seq) from gone)) where exists (select 1 from gone)
    returning 1
)
select count(*) from gone;
