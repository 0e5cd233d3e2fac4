// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package machine reconciles KubevirtMachines.
//
//	AddressesAllocated ─► NetworkDataReady ─► VMCreated ─► VMReady
//	      Pending                            Provisioning   Running, Stopped
//
//	deleted:  (NodeDrained) ─► VMDeleted ─► (NodeDeleted) ─► DNSRemoved ─► AddressesReleased ─► object deleted
//
// The reconciler writes the addresses of a machine into its status before it creates the VirtualMachine. It
// removes them from the status after the VirtualMachine and the machine's DNS records are deleted. A stop,
// start, restart or migration does not change the addresses.
//
// If the node pool has spec.drain, the reconciler drains the Node of a machine before it deletes the
// machine. The drain has a timeout that starts at a time in the status (package drain).
package machine
