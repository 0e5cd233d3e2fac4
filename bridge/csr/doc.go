// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package csr approves the two certificates of DPU workers in hosted clusters: the client certificate
// with which a worker's kubelet joins, and the kubelet's serving certificate. An approval lets a machine
// join the cluster. Approval is therefore disabled unless the operator's configuration enables it
// (bridge.csrApproval).
//
//	hosted cluster: CertificateSigningRequest ──checks──► Approved ──► (Kubernetes signs)
//	                         │                    └─ pending, with an event at the bridge
//	management cluster: DPFHCPBridge ─ DPUCluster ◄─ DPU, in a phase that needs a certificate
//
// A request that fails a check stays pending, so that a person can decide about it. The controller never
// denies a request. The checks are in check.go. Kubernetes itself approves the requests with which a
// node renews its client certificate, and the controller ignores them.
package csr
