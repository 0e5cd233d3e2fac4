// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Names of transports in task files.
const (
	Kubernetes = "kubernetes"
	Maestro    = "maestro"
)

// Client reads and writes the objects of one transport. It is safe for concurrent use. The errors of its
// methods are errors of kit/errclass and match the errors of this package with errors.Is. Writes are
// not retried.
type Client interface {
	// Find returns the matching objects in no particular order. It returns no error if no object
	// matches or the cluster does not serve the kind.
	Find(ctx context.Context, query Query, read Read) ([]*unstructured.Unstructured, error)
	// Create creates the object. Errors: ErrExists, ErrNoNamespace.
	Create(ctx context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error)
	// Apply updates the live object to the fields of object. It removes fields that an earlier apply has
	// set and that object does not contain, and keeps the fields of others. Live has to be the result
	// of a live read. If other field managers had set fields to other values, Apply overwrites these
	// values and returns the fields and their managers in takenOver. Errors: ErrConflict, ErrNotFound.
	Apply(ctx context.Context, live, object *unstructured.Unstructured) (
		applied *unstructured.Unstructured, takenOver string, err error)
	// Patch applies a JSON merge patch (RFC 7396). It may modify document. Errors: ErrConflict,
	// ErrNotFound.
	Patch(ctx context.Context, ref Ref, document map[string]any) (*unstructured.Unstructured, error)
	// Delete requests the deletion of the object, and does not wait for its end. Errors: ErrConflict,
	// ErrNotFound.
	Delete(ctx context.Context, ref Ref, propagation metav1.DeletionPropagation) error
	// IsNamespaced reports whether objects of the kind are in namespaces. It returns false if this is
	// unknown. If a namespace does not exist, its objects do not exist and need not be read.
	IsNamespaced(gvk schema.GroupVersionKind) bool
}

// Read selects between cached and live reads.
type Read int

const (
	// Cached reads from a cache that may be outdated. The caller must not change the objects, because
	// they are shared. The cache contains at least the objects with the adapter's label. If the cache
	// has no matching object, the read is live.
	Cached Read = iota
	// Indexed is like Cached, but if the cache is complete and has no matching object, the result is empty. Use it for
	// objects with the adapter's label, if a late cache does no harm.
	Indexed
	// CacheOnly is like Indexed, but if the cache is not complete and has no matching object, the error is ErrNotCached.
	CacheOnly
	// Live reads from the server.
	Live
)

// Ref identifies an object.
type Ref struct {
	GVK             schema.GroupVersionKind
	Namespace, Name string
	// UID and ResourceVersion identify the state of the object. A write to any other state fails.
	UID             types.UID
	ResourceVersion string
}

// RefTo returns the reference to a live object in its current state.
func RefTo(object *unstructured.Unstructured) Ref {
	return Ref{
		GVK: object.GroupVersionKind(), Namespace: object.GetNamespace(), Name: object.GetName(),
		UID: object.GetUID(), ResourceVersion: object.GetResourceVersion(),
	}
}

// String returns the kind, namespace and name of the object for messages.
func (r Ref) String() string {
	return fmt.Sprintf("%s %s", r.GVK.GroupKind(), strings.TrimPrefix(r.Namespace+"/"+r.Name, "/"))
}

// Query selects the objects to find: the object with a name, or all objects with labels.
type Query struct {
	GVK schema.GroupVersionKind
	// Namespace is the namespace of the objects. If it is empty, a query by name finds a cluster-scoped
	// object, and a query by labels finds objects in all namespaces.
	Namespace, Name string
	// Labels are labels that an object must have, with these values.
	Labels map[string]string
}
