// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package machinetemplate checks each HypervisorMachineTemplate against its hypervisor and its CI platform.
//
//	Rendered ──► ClusterReady ──► Allowed ──► Resolved ──► WorkloadReady ──► (repeated every interval)
//
// The checks are repeated so that the operator stops creating machines as soon as, for example, the
// template is deleted at the hypervisor. Otherwise every new machine would fail.
package machinetemplate
