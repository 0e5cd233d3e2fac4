// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sweep is the subcommand `hyperfleet-platform sweep`: it finds, and with --delete removes,
// objects of resources that the fleet API has no more. It holds wiring only.
package sweep
