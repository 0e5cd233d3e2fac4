// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package metrics holds what all metrics of HyperFleet have in common: the namespace, the buckets,
// label values whose number is limited, and the metrics of calls to external systems.
//
// Names have the form hyperfleet_SUBSYSTEM_WHAT_UNIT. Units are seconds and bytes. No label
// contains an address, a text from outside, or the name of an object of which many may exist. Names
// of pools, clusters, nodes and similar objects are limited by LabelLimiter. Names of repositories and
// workflows, which are labels because users ask for them, are also limited.
package metrics
