// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mac is the kind ScalewayAppleSiliconMachine. It orders or adopts a Mac at Scaleway and
// releases it again. Package hosts/plan/mac renders what is pushed to the Mac, and package
// hosts/machine decides when.
//
//	no server ──order──► ordered ──┐
//	    │                          ├─► delivered ─► reached over SSH (hosts/machine)
//	    └──adopt──► renamed for us ┘                   │  3 first boots refused: restarted, once
//	                                                   │  8 (limit of hosts/machine): wiped and released
//
// If the machine is deleted, a server of a pool is wiped and gets its old name back. An ordered
// server is deleted. While its minimum rental period still runs, it is wiped and scheduled for
// deletion at the end of that period.
//
// The name hf-NAME-UID ties a server to its machine. A machine never gets two servers: before each
// order the operator looks for a server of that name, and it records the time of an order before it
// sends the order. Two machines never get the same server: the operator adopts servers of a pool
// one at a time and checks the recorded servers of all machines, and the name shows operators of
// other clusters to which machine a server belongs.
package mac
