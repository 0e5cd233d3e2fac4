// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bridge turns DPUClusters of NVIDIA DPF into hosted OpenShift control planes of HyperShift.
//
//	DPUCluster ◄─── DPFHCPBridge ───► HostedCluster, NodePool ──► (HyperShift) control plane
//	    ▲                │ └────────► IPAddressPool, L2Advertisement ──► (MetalLB) its address
//	    └── kubeconfig ──┘
//
// This folder only sets up the controllers (setup.go). The other folders are:
//
//   - dpfhcpbridge is the controller of DPFHCPBridges.
//   - hypershift builds and decodes the objects of other projects, address computes with address
//     ranges, and credentials parses the content of Secrets. These three are pure functions.
//   - ignition builds the configuration that DPUs boot with.
//   - release checks images in registries.
//   - csr approves the certificates of workers in hosted clusters if the configuration enables it.
package bridge
