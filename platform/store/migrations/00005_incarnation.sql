-- Copyright The HyperFleet Authors.
-- SPDX-License-Identifier: Apache-2.0

-- +goose Up

-- This table has one row. It says in which incarnation of the database reports count. A restore of a dump writes
-- the row again, in another transaction than the one that written_by names. A recovery of the server's files, a
-- failover and another server change server or started (server_identity). A new row counts as restored, because an
-- earlier version of the program may have made the dump from which the database comes.
create table incarnation (
    single     boolean primary key default true check (single),
    written_by text    not null default '',
    server     text    not null default '',
    started    text    not null default '',
    -- True if the reports from before were dropped when the row was written.
    is_dropped boolean not null default false
);
insert into incarnation default values;

-- server_identity returns an identity of the server that changes with the history of its data, and the time at which
-- the server was started. Some services do not allow these functions, or do not have them.
-- +goose StatementBegin
create function server_identity(out server text, out started text) language plpgsql volatile as $$
begin
    begin
        select system_identifier || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) into server
        from pg_control_system();
    exception when others then
        server := 'unknown';
    end;

    started := extract(epoch from pg_postmaster_start_time())::text;
end
$$;
-- +goose StatementEnd

-- check_incarnation fails if the row of incarnation comes from a dump.
-- +goose StatementBegin
create function check_incarnation() returns boolean language plpgsql stable as $$
begin
    if not exists (select from incarnation where xmin::text = written_by) then
        raise exception 'the database was restored from a dump' using errcode = 'HF001';
    end if;

    return true;
end
$$;
-- +goose StatementEnd
