// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package shell implements `hyperfleet shell` and `hyperfleet console`, which reach a machine through the operator.
package shell
