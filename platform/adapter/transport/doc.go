// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package transport is how an adapter reads and writes its objects, wherever they live:
// on a Kubernetes cluster (transport/kubernetes) or, in a ManifestWork, on one that
// another hub looks after (transport/maestro).
//
// Reads for deciding may come out of a cache, reads before a write are live, and a write
// names the object and its state as it was read (UID and resource version): what was
// changed or made anew since is not written over, it is ErrConflict.
package transport
