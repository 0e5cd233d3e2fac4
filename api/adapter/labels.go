// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package adapter

// Labels and annotations of every object of an adapter. The framework adds those that the manifest does
// not set.
const (
	// LabelAdapter is the name of the adapter. The framework does not manage an object without this
	// label: it neither changes nor deletes the object.
	LabelAdapter = "hyperfleet.io/adapter"
	// LabelResourceID is the ID of the resource in the fleet API.
	LabelResourceID = "hyperfleet.io/resource-id"
	// LabelResourceName is the name of the entry in resources[]. It distinguishes entries of the same
	// kind.
	LabelResourceName = "hyperfleet.io/resource-name"
	// AnnotationGeneration is the generation of the resource in the fleet API for which the object was
	// last applied.
	AnnotationGeneration = "hyperfleet.io/generation"
	// AnnotationIdentity has an HMAC over the adapter, the resource ID and the object's identity (group,
	// kind, namespace, name), a digest of what was rendered, and an HMAC over all of this and the generation. Sweep
	// does not delete an object whose first HMAC is not valid. Someone who can write labels can therefore not make
	// sweep delete objects of others.
	AnnotationIdentity = "hyperfleet.io/identity"
	// AnnotationDetached is the name of the adapter that has detached the object and no longer manages
	// it. An object without this annotation and without LabelAdapter has no adapter.
	AnnotationDetached = "hyperfleet.io/detached"
	// Prefix is the prefix of all of these keys. Authors of task files may also use it for labels of
	// their own.
	Prefix = "hyperfleet.io/"
)
