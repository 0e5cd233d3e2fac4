// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package platform runs the platform as users do (make e2e-platform): the programs api,
// sentinel, adapter and sweep as processes, with the files of deploy/samples/platform, over
// real PostgreSQL, with RabbitMQ and without, and a real API server with garbage collection.
//
// TestInACluster runs them from the manifests that are shipped, as the chart and kustomize
// give them to the API server, each under its own account (test/kubelet).
//
// Two things are played by the tests: jobs, which nothing runs here, end at once, and
// ManifestWorks are brought by sim/ocm.
package platform
