// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package crds installs Open Cluster Management's own CRDs of ManifestWork and AppliedManifestWork. It
// reads them from OCM's Go module and verifies the module's checksum.
package crds
