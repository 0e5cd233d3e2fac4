// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package maestro implements the transport of ManifestWorks (work.open-cluster-management.io/v1).
// ManifestWorks are objects on an Open Cluster Management hub, in the namespace of a managed cluster.
// An agent applies their manifests on that cluster. The client reaches the hub with the kubeconfig
// clients.maestro.kube_config_path. It does not support Maestro's gRPC API
// (docs/adr/0026-manifestworks-through-the-ocm-hub.md).
//
// A ManifestWork and each of its manifests have the annotation hyperfleet.io/generation. Complete
// copies the work's annotation to manifests without one, and rejects an annotation that is not a number.
package maestro
