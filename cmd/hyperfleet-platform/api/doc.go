// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package api is the command `hyperfleet-platform api`: it reads the configuration and wires the
// fleet API (platform/server) to Postgres (platform/store).
package api
