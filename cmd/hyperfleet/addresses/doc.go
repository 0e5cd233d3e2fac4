// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package addresses implements `hyperfleet addresses`. The command shows which machine uses which address of
// an address pool, since when, and which addresses are free. It rebuilds the allocations from the same
// objects that the operator reads after a restart, and does not contact the operator.
package addresses
