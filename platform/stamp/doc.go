// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package stamp marks the objects of adapters and verifies the marks: labels that say
// which adapter and resource an object is of, and an HMAC that says that the adapter, and
// nobody who can only write labels, said so. Shared by adapter and sweep.
//
// Only gaps are filled: what a manifest says of itself stays. A manifest may so carry
// another adapter's name or another resource id than it is made for, and its HMAC is
// still over the true ones. The adapter then knows its object by the HMAC, and sweep,
// which has the labels alone to ask the API with, finds that they and the HMAC disagree
// and leaves the object alone.
//
// The HMAC is bound to the object's group, kind, namespace and name, so it is worth
// nothing on another object. It is not bound to the cluster, so clusters that do not
// trust each other need keys of their own; nor to the object's UID, which is not known
// before the object is there: one who kept the HMAC of an object that was detached can
// put it back on that same object.
package stamp
