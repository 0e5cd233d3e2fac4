// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sentinel is the subcommand `hyperfleet-platform sentinel`: it tells adapters which
// resources of a kind to look at. It holds wiring only.
package sentinel
