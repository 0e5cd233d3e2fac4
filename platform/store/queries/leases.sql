-- Copyright The HyperFleet Authors.
-- SPDX-License-Identifier: Apache-2.0

-- name: TakeLease :one
insert into leases (name, holder, expires_at)
values (@name, @holder, clock_timestamp() + make_interval(secs => @ttl_seconds::double precision))
on conflict (name) do update set holder = excluded.holder, expires_at = excluded.expires_at
where leases.holder = excluded.holder or leases.expires_at <= clock_timestamp()
returning extract(epoch from expires_at - clock_timestamp())::double precision as expires_in_seconds, holder, name;

-- name: GetLease :one
select extract(epoch from expires_at - clock_timestamp())::double precision as expires_in_seconds, holder, name
from leases where name = $1 and expires_at > clock_timestamp();

-- name: ReleaseLease :execrows
delete from leases where name = $1 and holder = $2;

-- name: Probe :exec
insert into leases (name, holder, expires_at) values (@name, '', clock_timestamp());
