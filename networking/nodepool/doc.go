// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodepool reconciles KubevirtNodePools.
//
//	ValidNetworkConfig ─► TemplateReady ─► MachinesScaled ─► MachinesReady
//
//	deleted:  MachinesDeleted ─► object gone
//
// A pool's addresses go into the address registry, and what its machines are made from
// into a KubevirtMachineTemplate that is named after its content. A changed template is for
// new machines; those that are there stay as they are.
//
// # Which machine goes first
//
// When there are too many: those without a VirtualMachine, then those that are not ready,
// then the newest. With spec.drain their Nodes are drained first (package machine). A machine
// that still waits for addresses and that the pool would make otherwise now, such as after
// bootstrapNetworkConfig was taken away, is replaced.
package nodepool
