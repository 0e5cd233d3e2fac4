// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package claims gives MachineClaims the addresses of their templates' pools
// (HypervisorMachineTemplate.spec.network.static.pool).
//
//	template --Templates--> Registry --> pools.AddressRegistry
//	                                         |
//	claim <--status: addresses, AddressAllocated-- Claims
//
// The runners area makes the machines, and knows of this one only what is in a claim's
// status: it waits there for the addresses before it makes anything. They are free again
// once the machine is gone: when the claim's condition VMCleanedUp says so and the status
// without them is on record, or when the claim itself is gone.
//
// A claim keeps the addresses that it has, whatever becomes of its template: a change of
// the pool counts for addresses that are given from then on. Machines on standby have
// theirs from the start, so that a machine that is kept for a quick start does not wait
// for an address then.
package claims
