-- Copyright The HyperFleet Authors.
-- SPDX-License-Identifier: Apache-2.0

-- +goose Up

-- This index supports searches for a value at any path of the spec.
create index resources_spec on resources using gin (spec jsonb_path_ops) with (fastupdate = off);
