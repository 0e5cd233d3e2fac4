-- Copyright The HyperFleet Authors.
-- SPDX-License-Identifier: Apache-2.0

-- +goose Up

create table resources (
    id           uuid primary key,
    kind         text        not null,
    name         text        not null,
    spec         jsonb       not null,
    labels       jsonb       not null,
    tenancy      jsonb       not null,
    generation   integer     not null check (generation >= 1),
    owner_id     uuid references resources (id),
    owner_kind   text,
    -- An object by condition type, so that containment can find a condition's status.
    conditions   jsonb       not null,
    created_time timestamptz not null,
    updated_time timestamptz not null,
    deleted_time timestamptz,
    created_by   text        not null,
    updated_by   text        not null,
    deleted_by   text        not null,
    check ((owner_id is null) = (owner_kind is null))
);

-- A name is unique in its tenant, and can be used again after its resource was removed.
create unique index resources_name on resources
    (kind, name, coalesce(owner_id, '00000000-0000-0000-0000-000000000000'::uuid), tenancy);
create index resources_kind_created on resources (kind, created_time desc, id desc);
create index resources_created on resources (created_time desc, id desc);
create index resources_owner on resources (owner_id);
create index resources_deleted on resources (deleted_time) where deleted_time is not null;
-- fastupdate is off, because every search would read the whole pending list, and planners avoid that.
create index resources_labels on resources using gin (labels jsonb_path_ops) with (fastupdate = off);
create index resources_conditions on resources using gin (conditions jsonb_path_ops) with (fastupdate = off);
create index resources_tenancy on resources using gin (tenancy jsonb_path_ops) with (fastupdate = off);
-- This partial index is small, and every scrape of the metrics uses it.
create index resources_not_reconciled on resources (kind)
    where conditions @> '{"Reconciled": {"status": "False"}}';

-- The target may have been removed, so target_id has no foreign key.
create table resource_references (
    source_id   uuid    not null references resources (id) on delete cascade,
    ref_type    text    not null,
    target_id   uuid    not null,
    target_kind text    not null,
    place       integer not null,
    primary key (source_id, ref_type, target_id)
);
create index resource_references_target on resource_references (target_id, ref_type);

create view resource_rows as
select r.id, r.kind, r.name, r.spec, r.labels, r.tenancy, r.generation, r.owner_id, r.owner_kind, r.conditions,
       r.created_time, r.updated_time, r.deleted_time, r.created_by, r.updated_by, r.deleted_by,
       coalesce((select jsonb_agg(jsonb_build_object('type', f.ref_type, 'id', f.target_id, 'kind', f.target_kind)
                                  order by f.ref_type, f.place)
                 from resource_references f
                 where f.source_id = r.id), '[]'::jsonb)::jsonb as refs
from resources r;

create table statuses (
    resource_id         uuid        not null references resources (id) on delete cascade,
    adapter             text        not null,
    observed_generation integer     not null,
    observed_time       timestamptz not null,
    conditions          jsonb       not null,
    data                jsonb,
    metadata            jsonb,
    config_version      text        not null,
    framework_version   text        not null,
    created_time        timestamptz not null,
    last_report_time    timestamptz not null,
    primary key (resource_id, adapter)
);

-- The change feed: see the documentation of package store.
create sequence change_seq;

create table changes (
    seq         bigint primary key default nextval('change_seq'),
    at          timestamptz not null default clock_timestamp(),
    kind        text        not null,
    resource_id uuid        not null,
    owner_id    uuid,
    tenancy     jsonb       not null,
    generation  integer     not null,
    operation   text        not null
);

-- This table has one row. The epoch identifies this feed. Changes up to floor may have been pruned.
create table feed (
    single boolean primary key default true check (single),
    epoch  bigint  not null,
    floor  bigint  not null
);
insert into feed (epoch, floor)
values ((random() * 4294967295)::bigint, 0);

-- change_seq_drawn returns the last number that was drawn from the sequence.
-- +goose StatementBegin
create function change_seq_drawn() returns bigint language sql volatile as $$
    select case when is_called then last_value else 0 end from change_seq
$$;
-- +goose StatementEnd

-- Before a transaction draws its first number, it locks the last number that was drawn so far.
-- +goose StatementBegin
create function change_begins() returns trigger language plpgsql as $$
begin
    perform pg_advisory_xact_lock_shared(1752002816, (change_seq_drawn() & 4294967295)::bit(32)::integer);
    return null;
end
$$;
-- +goose StatementEnd
create trigger change_begins before insert on changes for each statement execute function change_begins();

-- change_horizon returns the last number drawn, and the number up to which all transactions that drew a
-- number have ended. It reads the last number first, because no transaction can draw a lower one later.
-- +goose StatementBegin
create function change_horizon(out drawn bigint, out horizon bigint) language plpgsql volatile as $$
begin
    drawn := change_seq_drawn();
    select least(drawn, min(drawn - behind)) into horizon
    from (select (drawn - objid::bigint) & 4294967295 as behind
          from pg_locks
          where locktype = 'advisory' and classid = 1752002816 and objsubid = 2
            and database = (select oid from pg_database where datname = current_database())) held
    -- A larger difference means that the transaction began after the last number was read.
    where behind < 2147483648;
end
$$;
-- +goose StatementEnd

create table leases (
    name       text primary key,
    holder     text        not null,
    expires_at timestamptz not null
);

create table audit (
    id          bigint generated always as identity primary key,
    at          timestamptz not null,
    actor       text        not null,
    action      text        not null,
    reason      text        not null,
    resource_id uuid        not null,
    kind        text        not null,
    name        text        not null,
    removed     jsonb       not null
);
create index audit_resource on audit (resource_id, id);
