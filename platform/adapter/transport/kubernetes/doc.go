// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubernetes implements the transport to a Kubernetes cluster.
//
// The client creates objects with a create request, so that it does not take over an existing object.
// It updates objects by server-side apply with the field manager hyperfleet-ADAPTER. Merge patches have
// the field manager hyperfleet-ADAPTER-patch, so that an apply does not remove fields that a patch has
// added.
//
// Cached reads come from watches of the objects with the adapter's label. The watch of a kind starts
// with the first cached read of the kind. Other objects of the cluster use no memory. Reads are live
// until a watch has synced, and for objects that the cache does not contain.
package kubernetes
