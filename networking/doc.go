// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package networking is the area that gives machines static addresses, as an alternative to DHCP.
//
//	KubevirtNodePool ──► KubevirtMachineTemplate ──► KubevirtMachine ──► VirtualMachine
//	   nodepool/                                        machine/
//	        └────────► addresses in the address registry (pools/) ◄────┘
//
// This folder only connects the packages (setup.go). alloc/ allocates addresses from the pools of one
// network, and kubevirt/ builds KubeVirt objects. Both are pure: they do no I/O. cloudinit/netdata writes
// the network data that a guest reads.
package networking
