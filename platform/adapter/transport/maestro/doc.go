// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package maestro is the transport of ManifestWorks
// (work.open-cluster-management.io/v1): objects on an Open Cluster Management hub, in the
// namespace of the cluster that an agent brings the manifests in them to. The hub is
// reached with clients.maestro.kube_config_path; Maestro's own gRPC is not spoken
// (docs/adr/0026-manifestworks-by-the-hub.md).
//
// A ManifestWork and every manifest in it has the annotation hyperfleet.io/generation: one
// that a manifest lacks is filled in from the work's, one that is no number is refused.
package maestro
