// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package api implements the command `hyperfleet-platform api`. It loads the configuration and runs the
// fleet API (platform/server) with PostgreSQL (platform/store).
package api
