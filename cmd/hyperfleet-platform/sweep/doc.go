// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sweep implements the subcommand `hyperfleet-platform sweep`, which finds objects of resources that
// the fleet API no longer has, and deletes them with --delete. The package loads the configuration and runs
// platform/sweep.
package sweep
