// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package metrics exports the metrics of pools, jobs, machines and hypervisor clusters: the
// current and the desired numbers of machines, and what jobs wait for. Each scrape reads them from
// the manager's cache. The values are the same as in the status of the objects.
package metrics
