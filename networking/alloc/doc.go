// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package alloc allocates addresses from pools to machines. It never allocates an address to two machines
// at the same time.
//
// A Spec is a pool as users write it. NewPool validates a Spec and returns a Pool, which is immutable. A
// Network holds the pools of one network and records which owner has which address. The package does no
// I/O: Rebuild restores a Network from the statuses of the machines, and a caller of Acquire must write the
// result to a status before it creates a machine.
//
//	Spec --NewPool--> Pool --SetPool--> Network --Acquire--> addresses --> status
//	                                       ^                                 |
//	                                       +------------- Rebuild -----------+
//
// # Order of allocation
//
// A machine gets one address of each family that its pool has. Acquire takes the entries in the order in
// which the pool lists them, and allocates the lowest free address of the first entry that has a free
// address. If two entries contain the same address, the address belongs to the first of these entries. A
// network never allocates
//
//   - excluded addresses,
//   - gateways of any pool on the network,
//   - the network and broadcast addresses, which are the first and the last address of an IPv4 CIDR of /30
//     or shorter and of the subnet of an entry,
//   - the first address of an IPv6 subnet of /126 or shorter (the subnet-router anycast
//     address, RFC 4291, 2.6.1).
//
// # Prefix length
//
// The prefix length of an allocated address is the first of these that exists:
//
//   - the prefix length in the Spec,
//   - the prefix length of the entry, if the entry is a CIDR of more than one address,
//   - the prefix length of the smallest such CIDR of the pool that contains the entry,
//   - a guess. For IPv4, the guess is the smallest subnet that contains all addresses and gateways of the
//     pool, and a pool without a gateway is an error. For IPv6, the guess is the same subnet, but at
//     least a /64, and needs no gateway.
//
// # Cost
//
// The addresses of a pool are numbered in the order in which the pool allocates them. The free numbers are
// intervals in a balanced tree. The memory for a pool depends on the number of its entries, not on their
// size. With n addresses in use, an allocation takes O(log n) time, and a change of a pool O(n log n).
package alloc
