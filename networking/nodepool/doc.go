// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodepool reconciles KubevirtNodePools.
//
//	ValidNetworkConfig ─► TemplateReady ─► MachinesScaled ─► MachinesReady
//
//	deleted:  MachinesDeleted ─► object deleted
//
// The reconciler adds the addresses of a pool to the address registry. It creates a KubevirtMachineTemplate
// for the machines, whose name has a digest of its content. A changed template is only for new machines.
// Existing machines do not change.
//
// # Order of deletion
//
// If the pool has too many machines, the reconciler first deletes machines without a VirtualMachine, then
// machines that are not ready, and then the newest machines. With spec.drain, the Nodes of these machines
// are drained first (package machine). The reconciler also replaces a machine that still waits for
// addresses and no longer matches the pool, for example because bootstrapNetworkConfig was removed.
package nodepool
