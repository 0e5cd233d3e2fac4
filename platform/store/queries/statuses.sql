-- Copyright The HyperFleet Authors.
-- SPDX-License-Identifier: Apache-2.0

-- name: ListStatuses :many
select * from statuses where resource_id = $1 order by adapter collate "C";

-- name: PutStatus :exec
insert into statuses (resource_id, adapter, observed_generation, observed_time, conditions, data, metadata,
                      config_version, framework_version, created_time, last_report_time)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
on conflict (resource_id, adapter) do update
set observed_generation = excluded.observed_generation, observed_time = excluded.observed_time,
    conditions = excluded.conditions, data = excluded.data, metadata = excluded.metadata,
    config_version = excluded.config_version, framework_version = excluded.framework_version,
    last_report_time = excluded.last_report_time;
