// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sentinel implements the subcommand `hyperfleet-platform sentinel`, which sends an event to
// adapters for each resource that must be reconciled. The package loads the configuration and runs
// platform/sentinel.
package sentinel
