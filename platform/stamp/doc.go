// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package stamp writes and verifies the ownership labels and annotations of objects that adapters
// create. The labels name the adapter and the resource of the fleet API that an object belongs to.
// An HMAC in an annotation, the identity, proves that an adapter with the key has set them, because
// anyone who can update the object can write labels. The adapter and sweep share the package.
//
// SetOwnership only adds labels and annotations that the manifest lacks. A manifest can therefore
// name another adapter or another resource ID than the one that it is rendered for, but its HMAC is
// always computed over the real adapter and resource. The adapter then recognizes its object by the
// HMAC. Sweep knows only the labels, with which it queries the API. It finds that the labels and the
// HMAC disagree, and does not delete the object.
//
// The identity has two HMACs. The first one proves the owner, and stays valid when somebody edits other marks, so that
// the adapter can repair them. The second one also covers the generation and a digest of what was rendered: an adapter
// reports an object as applied only if this HMAC proves it. A detached object has an HMAC of its own.
//
// The HMAC covers the object's group, kind, namespace and name, so it is invalid on any other
// object. It does not cover the cluster, so clusters that do not trust each other need different
// keys. It does not cover the object's UID either, because the UID is unknown until the object has
// been created. So anyone who kept the HMAC of an object that was detached can write it to that same
// object again.
package stamp
