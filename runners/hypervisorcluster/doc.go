// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hypervisorcluster keeps a connection to each hypervisor cluster, and reports its nodes and free
// resources.
//
//	Credentials ──► Connected ──► Inspected ──► (repeated every interval)
//
// The operator creates no machines on a cluster that is not Ready. Machines that already run continue to
// run. A finalizer keeps the HypervisorCluster until no MachineClaim has a machine on it.
package hypervisorcluster
