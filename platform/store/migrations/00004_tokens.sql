-- Copyright The HyperFleet Authors.
-- SPDX-License-Identifier: Apache-2.0

-- +goose Up

-- A cursor of the change feed names a change by its number and its token. After a restore, later changes get
-- the same numbers again, but other tokens, so that cursors from before the restore are recognized. floor_token
-- is the token of the change whose number is floor. Replicas of earlier versions still use epoch.
alter table changes add column token bigint not null default floor(random() * 9007199254740992)::bigint;
alter table feed add column floor_token bigint not null default floor(random() * 9007199254740992)::bigint;
