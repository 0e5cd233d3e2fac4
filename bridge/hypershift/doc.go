// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hypershift builds and decodes the objects of other projects that belong to a bridge:
// HyperShift's HostedCluster and NodePool, MetalLB's IPAddressPool and L2Advertisement, and DPF's
// DPUCluster and DPUFlavor. All functions are pure and use no client. The objects are unstructured, so
// that the Go modules of these projects are not needed.
package hypershift
