// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package claims allocates addresses to MachineClaims from the pools of their templates
// (HypervisorMachineTemplate.spec.network.static.pool).
//
//	template --TemplateReconciler--> TemplateRegistry --> pools.AddressRegistry
//	                                                           |
//	claim <--status: addresses, AddressAllocated-- ClaimReconciler
//
// The runners area creates the machines. It reads the addresses from the status of a claim, and waits for
// them before it creates a machine. The addresses are released after the machine is deleted. This is the
// case when the condition VMCleanedUp of the claim is True and the status without the addresses is written,
// or when the claim no longer exists.
//
// A claim keeps its addresses when its template changes. A change of a pool affects only addresses that are
// allocated later. A machine on standby gets its addresses when it is created, so its start does not wait
// for an address.
package claims
