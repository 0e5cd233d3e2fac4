// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package networking is the area that gives machines static addresses where DHCP is not
// wanted.
//
//	KubevirtNodePool ──► KubevirtMachineTemplate ──► KubevirtMachine ──► VirtualMachine
//	   nodepool/                                        machine/
//	        └────────► addresses in the address registry (pools/) ◄────┘
//
// This folder holds the wiring only (setup.go). alloc/ gives addresses out of one network's
// pools, and kubevirt/ translates into KubeVirt's terms; both are pure. What a machine is told
// of its network is written by cloudinit/netdata.
package networking
