-- Copyright The HyperFleet Authors.
-- SPDX-License-Identifier: Apache-2.0

-- name: RecordChange :exec
insert into changes (kind, resource_id, owner_id, tenancy, generation, operation) values ($1, $2, $3, $4, $5, $6);

-- name: AnnounceChanges :exec
select pg_notify('hyperfleet_changes', @sender::text);

-- name: FeedHorizon :one
select h.drawn::bigint as last_seq, h.horizon::bigint as horizon from change_horizon() h;

-- name: ListChanges :many
select seq, token, kind, resource_id, owner_id, generation, operation from changes
where seq > sqlc.arg(after_seq)::bigint and seq <= sqlc.arg(up_to_seq)::bigint
  and (sqlc.arg(of_kind)::text = '' or kind = sqlc.arg(of_kind)::text)
  and tenancy @> sqlc.arg(of_tenancy)
order by seq limit sqlc.arg(max_rows)::integer;

-- name: FeedPosition :one
select newest.seq::bigint as seq, newest.token::bigint as token,
       (exists (select from changes where seq = sqlc.arg(after_seq)::bigint and token = sqlc.arg(after_token)::bigint)
        or exists (select from feed where floor = sqlc.arg(after_seq)::bigint and floor_token = sqlc.arg(after_token)::bigint))::boolean
           as is_known
from ((select changes.seq, changes.token from changes where changes.seq <= sqlc.arg(up_to_seq)::bigint order by changes.seq desc limit 1)
      union all (select feed.floor, feed.floor_token from feed)
      order by seq desc limit 1) newest;

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
    ) returning changes.seq, changes.token
), floor as (
    update feed set floor = newest.seq, floor_token = newest.token
    from (select gone.seq, gone.token from gone order by gone.seq desc limit 1) newest
    where newest.seq > feed.floor
    returning 1
)
select count(*) from gone;
