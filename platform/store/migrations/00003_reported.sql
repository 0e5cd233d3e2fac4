-- Copyright The HyperFleet Authors.
-- SPDX-License-Identifier: Apache-2.0

-- +goose Up

-- When conditions were last reported as they are, by type: later than their last_updated_time
-- where nothing else of them has changed since. A report that says the same again writes this
-- alone, which no index has, so that no index is written.
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
