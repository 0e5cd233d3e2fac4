-- Copyright The HyperFleet Authors.
-- SPDX-License-Identifier: Apache-2.0

-- +goose Up

-- Answers searches for a value of the spec, at any place in it.
create index resources_spec on resources using gin (spec jsonb_path_ops) with (fastupdate = off);
