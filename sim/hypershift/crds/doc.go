// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package crds gives a test's API server the kinds of other projects that the bridge works
// with: HyperShift's and MetalLB's own definitions, read unmodified out of their modules,
// and a small DPUCluster and DPU of our own making, because no module has NVIDIA's.
package crds
