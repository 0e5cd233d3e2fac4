// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package operator implements `hyperfleet operator`, the process that runs the controllers of the areas. The
// package only wires the parts together.
package operator
