-- Copyright The HyperFleet Authors.
-- SPDX-License-Identifier: Apache-2.0

-- name: AddAudit :exec
insert into audit (at, actor, action, reason, resource_id, kind, name, removed) values ($1, $2, $3, $4, $5, $6, $7, $8);
