// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ocm plays the work agent of Open Cluster Management on real API servers: it
// brings the manifests of a cluster's ManifestWorks on the hub to that cluster, the spoke,
// and tells the hub what became of them. Both are of OCM's own schemas (sim/ocm/crds); hub
// and spoke may be one server.
//
//	hub:   ManifestWork ──finalizer──► status.conditions, resourceStatus, statusFeedback
//	            │
//	spoke: AppliedManifestWork ──owns──► objects
//
// What it does follows open-cluster-management.io/ocm, pkg/work/spoke: manifestcontroller
// for applying, statuscontroller for Available and feedback, finalizercontroller for
// deletion. Strategies Update and ServerSideApply are both server-side applies, the first
// a forced one; CreateOnly and ReadOnly are as there. Not played: executors, condition
// rules, ignored fields, eviction.
//
// The hub's admission webhook is Validate: an Agent reports what it would have refused as
// a violation.
package ocm
