// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package alloc gives machines addresses out of pools, and never the same one twice.
//
// A Spec is what users write; NewPool checks it and makes a Pool of it, which never
// changes. A Network holds the pools of one network and who has which address. It does
// no input or output: what it knows is rebuilt from the machines' statuses (Rebuild),
// and whoever calls Acquire writes the result to a status before it makes a machine.
//
//	Spec --NewPool--> Pool --SetPool--> Network --Acquire--> addresses --> status
//	                                       ^                                 |
//	                                       +------------- Rebuild -----------+
//
// # Which address
//
// A machine gets one address of each family that its pool has: the lowest free one of
// the first entry, in the order in which the pool lists them, that has one. An address
// that entries share belongs to the first of them. Never given are
//
//   - excluded addresses,
//   - gateways, also those that another pool of the network names,
//   - the first and the last address of an IPv4 CIDR of /30 or shorter, and those of the
//     subnet that an entry lies in (network and broadcast),
//   - the first address of an IPv6 subnet of /126 or shorter (the subnet-router anycast
//     address, RFC 4291, 2.6.1).
//
// # Which prefix length
//
// That of Spec; else that of the entry, if it is a CIDR of more than one address; else
// that of the smallest such CIDR of the pool that holds the entry; else that of the
// smallest subnet that holds all of the pool's addresses and gateways of the family.
// Without a gateway in reach there is none, and that is an error.
//
// # What it costs
//
// The addresses of a pool are numbered in the order in which they are given, and the
// free numbers are kept as intervals in a balanced tree. A pool costs as much as it has
// entries, whatever their size, an allocation O(log n) of the addresses in use, and a
// changed pool O(n log n).
package alloc
