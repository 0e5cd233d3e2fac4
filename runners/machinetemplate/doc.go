// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package machinetemplate checks each HypervisorMachineTemplate against its hypervisor
// and its CI platform, again and again: a template that has vanished must stop new
// machines before they fail one by one.
//
//	Rendered ──► ClusterReady ──► Allowed ──► Resolved ──► WorkloadReady ──► (again every interval)
package machinetemplate
