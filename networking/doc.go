// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package networking is the area that gives machines static addresses where DHCP is not
// wanted.
//
//	KubevirtNodePool ──► KubevirtMachineTemplate ──► KubevirtMachine ──► VirtualMachine
//	   nodepool/                                        machine/
//	        └────────► addresses in the book (pools/) ◄────┘
//
// This folder holds the wiring only (setup.go). alloc/ gives addresses out of one network's
// pools, netdata/ writes what a machine is told of its network, and kubevirt/ translates
// into KubeVirt's terms; these three are pure.
package networking
