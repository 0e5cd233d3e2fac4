// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package adapter

// What every object of an adapter bears. The framework stamps what a manifest does not
// say itself.
const (
	// LabelAdapter is the adapter's name. An object without it is not managed: it is
	// neither changed nor deleted.
	LabelAdapter = "hyperfleet.io/adapter"
	// LabelResourceID is the id of the API's resource.
	LabelResourceID = "hyperfleet.io/resource-id"
	// LabelResourceName is the name of the resources[] entry, so that entries of one kind
	// are told apart.
	LabelResourceName = "hyperfleet.io/resource-name"
	// AnnotationGeneration is the generation of the API's resource that the object was
	// last applied for.
	AnnotationGeneration = "hyperfleet.io/generation"
	// AnnotationIdentity is an HMAC over adapter, resource id and the object's identity
	// (group, kind, namespace, name). Sweep deletes nothing whose HMAC does not verify:
	// who can write labels can't have a stranger's object deleted.
	AnnotationIdentity = "hyperfleet.io/identity"
	// AnnotationDetached is the name of the adapter that has handed the object over, and
	// leaves it alone from then on. An object without it and LabelAdapter is nobody's.
	AnnotationDetached = "hyperfleet.io/detached"
	// Prefix of all of the above, which authors use for labels of their own, too.
	Prefix = "hyperfleet.io/"
)
