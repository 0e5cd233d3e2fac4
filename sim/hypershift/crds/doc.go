// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package crds installs on a test's API server the CRDs of other projects that the bridge works with.
// The CRDs of HyperShift and MetalLB are read unmodified from their Go modules. The CRDs of DPUCluster,
// DPUFlavor and DPU are written here, because no Go module contains NVIDIA's.
package crds
