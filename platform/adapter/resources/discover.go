// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/platform/adapter/gates"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport/maestro"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
)

// objectSet is the result of a discovery.
type objectSet struct {
	state gates.ObjectState
	// reason is the reason why the object is not managed.
	reason string
	// current is the object that the gates decide about. It is nil if there is no object.
	current *unstructured.Unstructured
	// versions are all managed objects including current, sorted from the newest to the oldest.
	versions []*unstructured.Unstructured
}

// findVersion returns the version with a name, or nil.
func (s objectSet) findVersion(name string) *unstructured.Unstructured {
	for _, version := range s.versions {
		if version.GetName() == name && version.GetDeletionTimestamp() == nil {
			return version
		}
	}

	return nil
}

func (r *run) setQuery(ctx context.Context, e *newEntry) error {
	query, err := r.renderQuery(e.Discovery)
	if err == nil {
		query.GVK, err = r.resolveKind(ctx, e)
	}

	if err == nil && e.TargetCluster != nil {
		if query.Namespace, err = e.TargetCluster.Render(r.vars); query.Namespace == "" && err == nil {
			err = errors.New("transport.maestro.target_cluster is empty")
		}
	}

	if err != nil {
		return newPermanentError(ReasonDiscovery, "discover %s: %w", e.Name, err)
	}

	e.query = query

	return nil
}

// renderQuery renders the templates of a discovery block, and returns the query for a name or for labels.
// The caller sets the query's kind.
func (r *run) renderQuery(discovery task.Discovery) (out transport.Query, err error) {
	out.Namespace, out.Name, out.Labels, err = discovery.Render(r.vars)

	return out, err
}

// resolveKind returns the kind of an entry's objects. It renders the manifest only if the kind is a
// template, so that the adapter can delete the object of a manifest that can no longer be rendered.
func (r *run) resolveKind(ctx context.Context, e *newEntry) (schema.GroupVersionKind, error) {
	kind, err := e.Kind()
	if !errors.Is(err, task.ErrUnknownKind) || e.Manifest == nil {
		return kind, err
	}

	object, err := e.Manifest.RenderObject(ctx, r.vars)
	if err != nil {
		return kind, err
	}

	manifest := unstructured.Unstructured{Object: object}

	return task.ParseKind(manifest.GetAPIVersion(), manifest.GetKind())
}

// discover finds the entry's objects and sets the variables of expressions.
func (r *run) discover(ctx context.Context, e *newEntry, read transport.Read) error {
	if r.isNamespaceAbsent(e) {
		e.isLive = true

		return r.setObjects(e, r.classify(e, nil))
	}

	objects, err := e.client.Find(ctx, e.query, read)
	if err != nil {
		return fmt.Errorf("discover %s: %w", e.Name, err)
	}

	// If the cache has no object, Find reads live.
	e.isLive = read == transport.Live || len(objects) == 0

	return r.setObjects(e, r.classify(e, objects))
}

// isNamespaceAbsent returns true if another entry of this event has found that the namespace of this entry's
// objects does not exist, so that the objects need not be read. It returns false if the entry was already read
// once. If an object exists nevertheless, its create request fails, and the object is read then.
func (r *run) isNamespaceAbsent(e *newEntry) bool {
	if e.isLive || e.query.Namespace == "" {
		return false
	}

	return slices.ContainsFunc(r.entries, func(other *newEntry) bool {
		return other.query.GVK.GroupKind() == (schema.GroupKind{Kind: "Namespace"}) && other.query.Name == e.query.Namespace &&
			other.client == e.client && other.isLive && other.objects.state == gates.Absent
	}) && e.client.IsNamespaced(e.query.GVK)
}

// classify determines which objects are managed and which object is the current version.
func (r *run) classify(e *newEntry, objects []*unstructured.Unstructured) objectSet {
	var managed, others []*unstructured.Unstructured

	for _, object := range objects {
		ownership, _ := r.in.Stamper.OwnershipOf(object, e.query.GVK.GroupKind(), r.in.ResourceID)

		switch {
		case ownership != stamp.Managed:
			others = append(others, object)
		case e.query.Name != "" || !r.isSibling(e, object):
			managed = append(managed, object)
		}
	}

	if len(managed) > 0 {
		slices.SortStableFunc(managed, r.compareNewest)

		return newManaged(r.currentVersion(managed), managed)
	}

	return r.classifyUnmanaged(e, others)
}

func newManaged(current *unstructured.Unstructured, versions []*unstructured.Unstructured) objectSet {
	state := gates.Managed
	if current.GetDeletionTimestamp() != nil {
		state = gates.Deleting
	}

	return objectSet{state: state, current: current, versions: versions}
}

// currentVersion returns the version of the event's generation, or else the newest version. If a version
// has a later generation, it returns that version until the API has confirmed the event's generation.
func (r *run) currentVersion(versions []*unstructured.Unstructured) *unstructured.Unstructured {
	latest := slices.MaxFunc(versions, func(a, b *unstructured.Unstructured) int {
		return cmp.Compare(appliedGeneration(a), appliedGeneration(b))
	})
	if appliedGeneration(latest) > r.in.Generation && !r.isConfirmed {
		return latest
	}

	if i := slices.IndexFunc(versions, func(o *unstructured.Unstructured) bool {
		return appliedGeneration(o) == r.in.Generation && o.GetDeletionTimestamp() == nil
	}); i >= 0 {
		return versions[i]
	}

	return versions[0]
}

// appliedGeneration returns the generation of the annotation hyperfleet.io/generation, for which the
// adapter has applied the object. It returns 0 if the annotation is missing or not an integer greater than
// 0.
func appliedGeneration(object *unstructured.Unstructured) int64 {
	generation, _ := stamp.Generation(object)

	return generation
}

// classifyUnmanaged returns the objectSet for objects that are all not managed.
func (r *run) classifyUnmanaged(e *newEntry, objects []*unstructured.Unstructured) objectSet {
	// An entry with a name, or with patches and no manifest, means exactly this object, whoever owns it. Otherwise the
	// object was found by its labels, so it may belong to somebody else.
	isMeant := e.query.Name != "" || e.Manifest == nil

	slices.SortStableFunc(objects, r.compareNewest)

	for _, object := range objects {
		ownership, reason := r.in.Stamper.OwnershipOf(object, e.query.GVK.GroupKind(), r.in.ResourceID)

		switch {
		case ownership == stamp.Detached:
			return objectSet{state: gates.Detached, current: object, reason: reason}
		// During a deletion, an object that may be the entry's own counts, so that the deletion is not reported as done.
		case ownership == stamp.DetachedUnproven && (isMeant || r.in.Deleting):
			return objectSet{state: gates.DetachedUnproven, current: object, reason: reason}
		// The same, but an object with an HMAC that is not valid on it is a copy of an object, and not the entry's own.
		case ownership == stamp.Unproven && (isMeant || r.in.Deleting && !hasIdentity(object)):
			return objectSet{state: gates.Unproven, current: object, reason: reason}
		case isMeant:
			return objectSet{state: gates.Unmanaged, current: object, reason: reason}
		}
	}

	// The remaining objects match the labels, but do not belong to the entry. A detached object no longer has
	// the labels, so a discovery by labels cannot find it. If the resource is being deleted and the entry has
	// a detach gate, the entry's object therefore counts as detached.
	if e.query.Name == "" && e.Detach != nil && r.in.Deleting {
		return objectSet{state: gates.Detached, reason: "there is no object to detach"}
	}

	out := objectSet{state: gates.Absent}

	if len(objects) > 0 {
		_, reason := r.in.Stamper.OwnershipOf(objects[0], e.query.GVK.GroupKind(), r.in.ResourceID)
		out.reason = fmt.Sprintf("%s is ignored: %s", transport.RefTo(objects[0]), reason)
	}

	return out
}

// hasIdentity reports whether an object has the annotation with the HMAC. An object that has the labels of another
// object, with an HMAC that is not valid on it, is a copy and not an object of this adapter.
func hasIdentity(object *unstructured.Unstructured) bool {
	return object.GetAnnotations()[adapter.AnnotationIdentity] != ""
}

// isSibling reports whether a managed object belongs to another entry of the task with the same kind and
// matching labels.
func (r *run) isSibling(e *newEntry, object *unstructured.Unstructured) bool {
	name := object.GetLabels()[adapter.LabelResourceName]

	return name != "" && name != e.Name &&
		slices.ContainsFunc(r.entries, func(other *newEntry) bool { return other.Name == name })
}

// compareNewest sorts versions from the newest to the oldest, with versions that are being deleted last.
// Creation times have a resolution of one second, so versions with the same time are sorted by generation
// and name.
func (r *run) compareNewest(a, b *unstructured.Unstructured) int {
	switch {
	case a.GetDeletionTimestamp() != nil && b.GetDeletionTimestamp() == nil:
		return 1
	case a.GetDeletionTimestamp() == nil && b.GetDeletionTimestamp() != nil:
		return -1
	}

	return cmp.Or(
		b.GetCreationTimestamp().Compare(a.GetCreationTimestamp().Time),
		cmp.Compare(appliedGeneration(b), appliedGeneration(a)),
		cmp.Compare(b.GetName(), a.GetName()),
	)
}

// setObjects stores the objects of an entry and sets the variables of expressions to them.
func (r *run) setObjects(e *newEntry, discovered objectSet) error {
	e.objects = discovered
	r.removeVariables(e)

	if discovered.current == nil {
		r.showLeftover(e)

		return nil
	}

	r.result.Objects[e.Name] = toVariable(discovered.current)

	for _, nested := range e.Nested {
		query, err := r.renderQuery(nested.Discovery)
		if err != nil {
			return newPermanentError(ReasonDiscovery, "discover %s in %s: %w", nested.Name, e.Name, err)
		}

		object, err := maestro.FindNested(discovered.current, query)
		if err != nil {
			return newPermanentError(ReasonDiscovery, "discover %s in %s: %w", nested.Name, e.Name, err)
		}

		if object != nil {
			r.result.Objects[nested.Name] = toVariable(object)
		}
	}

	return nil
}

func (r *run) removeVariables(e *newEntry) {
	delete(r.result.Objects, e.Name)

	for _, nested := range e.Nested {
		delete(r.result.Objects, nested.Name)
	}
}

// toVariable returns an object as expressions read it: without managed fields, and always with labels and
// annotations, so that reading a missing label is not an error. It shares the object's memory.
func toVariable(object *unstructured.Unstructured) map[string]any {
	metadata, _ := object.Object["metadata"].(map[string]any)
	_, hasLabels := metadata["labels"]
	_, hasAnnotations := metadata["annotations"]
	_, hasManagedFields := metadata["managedFields"]

	if hasLabels && hasAnnotations && !hasManagedFields {
		return object.Object
	}

	metadata = maps.Clone(metadata)
	if metadata == nil {
		metadata = map[string]any{}
	}

	delete(metadata, "managedFields")

	if !hasLabels {
		metadata["labels"] = map[string]any{}
	}

	if !hasAnnotations {
		metadata["annotations"] = map[string]any{}
	}

	out := maps.Clone(object.Object)
	out["metadata"] = metadata

	return out
}

// newPermanentError returns a permanent error, which stays until the task file or the object changes. If
// the cause is the end of the context, it returns a transient error instead.
func newPermanentError(reason, format string, args ...any) error {
	err := errclass.New(errclass.Permanent, reason, format, args...)
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return errclass.New(errclass.Transient, transport.ReasonTimeout, format, args...)
	}

	return err
}
