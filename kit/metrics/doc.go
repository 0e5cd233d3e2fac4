// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package metrics holds what all metrics of HyperFleet have in common: the namespace,
// the buckets, label values whose number is bounded, and the one way to count and
// time calls to other systems.
//
// Names are hyperfleet_SUBSYSTEM_WHAT_UNIT, units are seconds and bytes, and no label
// holds the name of an object, an address, or any text that comes from outside.
package metrics
