// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package operator is the subcommand `hyperfleet operator`: the process that runs the
// areas' controllers. It holds wiring only.
package operator
