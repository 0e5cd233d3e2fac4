// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package metrics holds what all metrics of HyperFleet have in common: the namespace,
// the buckets, label values whose number is bounded, and the one way to count and
// time calls to other systems.
//
// Names are hyperfleet_SUBSYSTEM_WHAT_UNIT, units are seconds and bytes, and no label
// holds an address or any text that comes from outside, or the name of an object of which there
// may be many: those of pools, clusters, nodes and the like are bounded (Bounded), and so are
// repositories and workflows, which are asked for.
package metrics
