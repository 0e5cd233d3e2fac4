// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ocm simulates the work agent of Open Cluster Management on real API servers. The agent applies
// the manifests of a cluster's ManifestWorks on the hub to that cluster, the spoke, and writes the result
// to the status on the hub. The API servers have OCM's own CRDs (sim/ocm/crds). Hub and spoke may be the
// same API server.
//
//	hub:   ManifestWork ──finalizer──► status.conditions, resourceStatus, statusFeedback
//	            │
//	spoke: AppliedManifestWork ──owns──► objects
//
// The simulator follows open-cluster-management.io/ocm, pkg/work/spoke: manifestcontroller for applying,
// statuscontroller for condition Available and feedback, and finalizercontroller for deletion. The
// strategies Update and ServerSideApply are both server-side applies, and Update forces conflicts.
// CreateOnly and ReadOnly are as in OCM. The simulator does not implement executors, condition rules,
// ignored fields, and eviction.
//
// Validate implements the hub's admission webhook. An Agent records a violation for each ManifestWork
// that the webhook would have rejected.
package ocm
