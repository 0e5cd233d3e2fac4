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

// Names of the transports in task files.
const (
	Kubernetes = "kubernetes"
	Maestro    = "maestro"
)

// Client reads and writes objects of one transport. All methods may be called at once.
// Their errors are of kit/errclass and match the package's for errors.Is; no call is
// tried again inside.
type Client interface {
	// Find reads the objects that match, in no order. None is no error, also of a kind that
	// is not served.
	Find(ctx context.Context, query Query, read Read) ([]*unstructured.Unstructured, error)
	// Create makes the object, which is not there yet. Errors: ErrExists, ErrNoNamespace.
	Create(ctx context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error)
	// Apply makes live what object says, where it says something: a field that an earlier
	// apply has set and this one does not name is removed, those of others stay. Live is
	// as a live read gave it. TakenOver tells which fields somebody else had set to other
	// values, and who; they now have the manifest's. Errors: ErrConflict, ErrNotFound.
	Apply(ctx context.Context, live, object *unstructured.Unstructured) (
		applied *unstructured.Unstructured, takenOver string, err error)
	// Patch applies a JSON merge patch (RFC 7396), which may be written to. Errors:
	// ErrConflict, ErrNotFound.
	Patch(ctx context.Context, ref Ref, document map[string]any) (*unstructured.Unstructured, error)
	// Delete asks for the object's deletion, which may take its time. Errors:
	// ErrConflict, ErrNotFound.
	Delete(ctx context.Context, ref Ref, propagation metav1.DeletionPropagation) error
	// Namespaced says whether objects of the kind live in namespaces; false where that is not
	// known. What is in a namespace that is not there is not there either, and need not be read.
	Namespaced(gvk schema.GroupVersionKind) bool
}

// Read says how fresh a read has to be.
type Read int

const (
	// Cached may be behind. What it gives is shared and must not be changed; it holds at
	// least what carries the adapter's own label, and what it does not hold is read live.
	Cached Read = iota
	// Live asks the server.
	Live
)

// Ref names an object.
type Ref struct {
	GVK             schema.GroupVersionKind
	Namespace, Name string
	// UID and ResourceVersion are of the only object and state that may be written to.
	UID             types.UID
	ResourceVersion string
}

// RefTo names a live object in its present state.
func RefTo(object *unstructured.Unstructured) Ref {
	return Ref{
		GVK: object.GroupVersionKind(), Namespace: object.GetNamespace(), Name: object.GetName(),
		UID: object.GetUID(), ResourceVersion: object.GetResourceVersion(),
	}
}

// String names the object for messages.
func (r Ref) String() string {
	return fmt.Sprintf("%s %s", r.GVK.GroupKind(), strings.TrimPrefix(r.Namespace+"/"+r.Name, "/"))
}

// Query says which objects to find: the one of a name, or all that have labels.
type Query struct {
	GVK schema.GroupVersionKind
	// Namespace; empty: none for a name, all of them for labels.
	Namespace, Name string
	// Labels that all have to be there with these values.
	Labels map[string]string
}
