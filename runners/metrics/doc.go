// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package metrics gives the numbers of pools, jobs, machines and hypervisor clusters, read out
// of the manager's cache at each scrape: what is there, what is wanted, and what waits for what.
// They are the same numbers as in the objects' status.
package metrics
