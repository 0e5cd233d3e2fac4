// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package machine reconciles KubevirtMachines.
//
//	AddressesAllocated ─► NetworkDataReady ─► VMCreated ─► VMReady
//	      Pending                            Provisioning   Running, Stopped
//
//	deleted:  (NodeDrained) ─► VMDeleted ─► DNSRemoved ─► AddressesReleased ─► object gone
//
// A machine's addresses are in its status before its VirtualMachine is made, and leave it
// after the VirtualMachine and the machine's DNS records are gone: stop, start, restart and
// migration don't touch them.
//
// Where its pool says so, a machine that goes has its Node drained first, for a bounded time that
// is counted from what the status says (package drain).
package machine
