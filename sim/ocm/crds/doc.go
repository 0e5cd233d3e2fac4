// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package crds has Open Cluster Management's own schemas of ManifestWork and
// AppliedManifestWork, read out of its module and checked against the module's sum.
package crds
