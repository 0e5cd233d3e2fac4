-- Copyright The HyperFleet Authors.
-- SPDX-License-Identifier: Apache-2.0

-- +goose Up

-- The times at which unchanged conditions were last reported, by type. Such a time is later than the
-- condition's last_updated_time. A report that repeats the previous one only writes this column, which
-- no index contains, so that no index has to be updated.
alter table resources add column reported jsonb not null default '{}';

create or replace view resource_rows as
select r.id, r.kind, r.name, r.spec, r.labels, r.tenancy, r.generation, r.owner_id, r.owner_kind, r.conditions,
       r.created_time, r.updated_time, r.deleted_time, r.created_by, r.updated_by, r.deleted_by,
       coalesce((select jsonb_agg(jsonb_build_object('type', f.ref_type, 'id', f.target_id, 'kind', f.target_kind)
                                  order by f.ref_type, f.place)
                 from resource_references f
                 where f.source_id = r.id), '[]'::jsonb)::jsonb as refs,
       r.reported
from resources r;
