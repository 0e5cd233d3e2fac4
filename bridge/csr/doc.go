// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package csr approves the certificates of DPU workers in hosted clusters: that with which a
// worker's kubelet joins, and the one that it serves with. To approve is to let a machine in,
// so this is off unless the operator's configuration asks for it (bridge.csrApproval).
//
//	hosted cluster: CertificateSigningRequest ──checks──► Approved ──► (Kubernetes signs)
//	                         │                    └─ pending, with an event at the bridge
//	management cluster: DPFHCPBridge ─ DPUCluster ◄─ DPU, in a phase that asks for it
//
// A request that does not pass stays pending, for a person to judge; none is denied. What is
// asked of it: check.go. A node's own renewals of its first certificate are Kubernetes' to
// approve and are left alone.
package csr
