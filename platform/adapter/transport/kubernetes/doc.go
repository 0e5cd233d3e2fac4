// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubernetes is the transport to a Kubernetes cluster.
//
// Objects are made with a plain create, so that one which is there by then is not taken
// over, and changed by server-side apply with field manager hyperfleet-ADAPTER. Merge
// patches are of manager hyperfleet-ADAPTER-patch, so that an apply does not take back
// what a patch has added.
//
// Cached reads come from watches of what carries the adapter's label, started for a kind
// when it is first read: a cluster's other objects take no memory. Until a watch has
// caught up, and for what it does not hold, reads are live.
package kubernetes
