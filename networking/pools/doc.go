// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pools is a process's address registry: which pools of addresses each network
// has, who holds which address, and who waits for one.
//
//	the API server --Rebuild--> AddressRegistry <--SetPool-- whoever reconciles pools
//	                             |  ^
//	                     wake ---+  +-- Acquire, Release -- whoever reconciles machines
//
// The address registry lives in memory. What makes it safe is an order of doings that its users keep:
//
//   - Rebuild fills it from the objects' statuses before any controller that uses it
//     works: each of them has the address registry's Gate among its sources.
//   - An address that Acquire gave is the owner's from then on, in the address registry. Whoever
//     asked writes it to a status before the machine exists. If that write's outcome is
//     not known, nothing has to be undone: asking again gives the same address.
//   - Who waits is served in turn: a free address is kept for the first who waits, until it
//     asks again, or is Released or Forgotten.
//   - Release comes after the machine is gone and after a status without the address is
//     on record, so that a rebuild can't find two owners.
//
// Only one process may use a network: the area's leader.
package pools
