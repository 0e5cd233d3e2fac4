// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bridge is the area that turns DPUClusters into hosted OpenShift control planes.
//
//	DPUCluster ◄─── DPFHCPBridge ───► HostedCluster, NodePool ──► (HyperShift) control plane
//	    ▲                │ └────────► IPAddressPool, L2Advertisement ──► (MetalLB) its address
//	    └── kubeconfig ──┘
//
// This folder holds the wiring only (setup.go). dpfhcpbridge/ is the controller. hypershift/
// writes and reads other projects' objects, address/ knows ranges of addresses and
// credentials/ reads Secrets; all three are pure. ignition/ makes what DPUs are booted with,
// release/ asks registries for images. csr/ approves workers' certificates in hosted clusters,
// where that is asked for.
package bridge
