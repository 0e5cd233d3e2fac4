// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pools implements the address registry of a process. The registry records which address pools each
// network has, which owner has which address, and which owners wait for an address.
//
//	the API server --Rebuild--> AddressRegistry <--SetPool-- reconcilers of pools
//	                             |  ^
//	                     Wake ---+  +-- Acquire, Release -- reconcilers of machines
//
// The registry is in memory only. It is safe because its users follow these rules:
//
//   - Rebuild fills the registry from the statuses of the objects before any controller that uses the
//     registry starts. For this, each such controller has the registry's RebuildSource as a source.
//   - After Acquire, the registry keeps the address for the owner. The caller writes the address to a status
//     before it creates the machine. If the result of this write is unknown, the caller has nothing to undo,
//     because another Acquire returns the same address.
//   - Owners that wait are served in order. The registry keeps a free address for the first waiting owner
//     until the owner calls Acquire again, or until Release or StopWaiting is called for it.
//   - A caller calls Release only after the machine is deleted and after the status without the address is
//     written. A rebuild therefore never finds two owners of an address.
//
// Only one process may use a network. This process is the leader of the area.
package pools
