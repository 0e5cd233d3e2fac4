// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hypershift writes and reads the objects of other projects that make a bridge:
// HyperShift's HostedCluster and NodePool, MetalLB's IPAddressPool and L2Advertisement, and
// DPF's DPUCluster. It is pure: values in, values out, and no client. The objects are
// unstructured, so that none of these projects' Go modules is needed.
package hypershift
