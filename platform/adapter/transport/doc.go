// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package transport defines how an adapter reads and writes its objects: directly on a Kubernetes
// cluster (transport/kubernetes), or through ManifestWorks on an Open Cluster Management hub
// (transport/maestro).
//
// Reads for a decision can come from a cache. Reads before a write are live. A write names the object
// with the UID and the resource version of the read. If the object has changed or was recreated since
// then, the write fails with ErrConflict and does not overwrite the object.
package transport
