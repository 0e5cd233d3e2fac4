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

// run is one event's work.
type run struct {
	in      Input
	vars    map[string]any
	entries []*entry
	result  Result
	// failed: writing an entry has failed, so later ones are not written.
	failed bool
	// stale: a later generation was handled here before.
	stale bool
}

// entry is one of the task's resources with what was found for it.
type entry struct {
	*task.Resource

	client transport.Client

	// query is what discovery looks for.
	query transport.Query

	found found
	// live: found is of a live read.
	live bool
}

// found is what discovery came to.
type found struct {
	state gates.Found
	// why says of an object that is not managed why not.
	why string
	// current is the object that gates are about; nil if there is none.
	current *unstructured.Unstructured
	// versions are all managed objects, the current one among them, the newest first.
	versions []*unstructured.Unstructured
}

// discoverAll finds the objects of all entries before any gate is asked. If it fails for
// one, nothing is done to any: gates may ask about it.
func (r *run) discoverAll(ctx context.Context) bool {
	for i, e := range r.entries {
		err := r.look(ctx, e)
		if err == nil {
			err = r.discover(ctx, e, transport.Cached)
		}

		if err == nil {
			continue
		}

		for j := range r.result.Outcomes {
			r.result.Outcomes[j].Reason = ReasonEarlierFailed
			r.result.Outcomes[j].Message = fmt.Sprintf("discovery of %s has failed", e.Name)
		}

		r.result.Outcomes[i].fail(ReasonDiscovery, err)

		return false
	}

	return true
}

// look renders what to look for.
func (r *run) look(ctx context.Context, e *entry) error {
	query, err := r.wanted(e.Discovery)
	if err == nil {
		query.GVK, err = r.kindOf(ctx, e)
	}

	if err == nil && e.TargetCluster != nil {
		if query.Namespace, err = e.TargetCluster.Render(r.vars); query.Namespace == "" && err == nil {
			err = errors.New("transport.maestro.target_cluster is empty")
		}
	}

	if err != nil {
		return permanent(ReasonDiscovery, "look for %s: %w", e.Name, err)
	}

	e.query = query

	return nil
}

// wanted renders a discovery.
func (r *run) wanted(discovery task.Discovery) (transport.Query, error) {
	var (
		out transport.Query
		err error
	)

	if discovery.Namespace != nil {
		if out.Namespace, err = discovery.Namespace.Render(r.vars); err != nil {
			return out, fmt.Errorf("discovery.namespace: %w", err)
		}
	}

	if discovery.ByName != nil {
		if out.Name, err = discovery.ByName.Render(r.vars); err != nil {
			return out, fmt.Errorf("discovery.by_name: %w", err)
		}

		if out.Name == "" {
			return out, errors.New("discovery.by_name is empty")
		}

		return out, nil
	}

	out.Labels = make(map[string]string, len(discovery.Labels))

	for key, value := range discovery.Labels {
		if out.Labels[key], err = value.Render(r.vars); err != nil {
			return out, fmt.Errorf("discovery.by_selectors %s: %w", key, err)
		}
	}

	return out, nil
}

// kindOf gives the kind to look for: out of the manifest as it is written, where that says
// it, so that a manifest that can't be rendered any more does not keep its object from
// being deleted.
func (r *run) kindOf(ctx context.Context, e *entry) (schema.GroupVersionKind, error) {
	kind, err := e.Kind()
	if !errors.Is(err, task.ErrKind) || e.Manifest == nil {
		return kind, err
	}

	object, err := e.Manifest.RenderObject(ctx, r.vars)
	if err != nil {
		return kind, err
	}

	manifest := unstructured.Unstructured{Object: object}

	return task.KindOf(manifest.GetAPIVersion(), manifest.GetKind())
}

// discover finds the entry's objects and shows them to expressions.
func (r *run) discover(ctx context.Context, e *entry, read transport.Read) error {
	if r.nowhere(e) {
		e.live = true

		return r.show(e, r.sort(e, nil))
	}

	objects, err := e.client.Find(ctx, e.query, read)
	if err != nil {
		return fmt.Errorf("discover %s: %w", e.Name, err)
	}

	// What a cache does not hold is read live.
	e.live = read == transport.Live || len(objects) == 0

	return r.show(e, r.sort(e, objects))
}

// nowhere says of an entry that was not read yet that its objects would be in a namespace
// which this event has found not to be there. A create that meets one by then all the
// same reads.
func (r *run) nowhere(e *entry) bool {
	if e.live || e.query.Namespace == "" {
		return false
	}

	return slices.ContainsFunc(r.entries, func(other *entry) bool {
		return other.query.GVK.GroupKind() == (schema.GroupKind{Kind: "Namespace"}) && other.query.Name == e.query.Namespace &&
			other.client == e.client && other.live && other.found.state == gates.Absent
	}) && e.client.Namespaced(e.query.GVK)
}

// sort tells whose the objects are, and which is the current one.
func (r *run) sort(e *entry, objects []*unstructured.Unstructured) found {
	var managed, others []*unstructured.Unstructured

	for _, object := range objects {
		standing, _ := r.in.Stamper.Standing(object, e.query.GVK.GroupKind(), r.in.ResourceID)

		switch {
		case standing != stamp.Managed:
			others = append(others, object)
		case e.query.Name != "" || !r.sibling(e, object):
			managed = append(managed, object)
		}
	}

	if len(managed) > 0 {
		slices.SortStableFunc(managed, r.newest)

		return managing(r.current(managed), managed)
	}

	return r.strangers(e, others)
}

// managing is what is found where objects are managed.
func managing(current *unstructured.Unstructured, versions []*unstructured.Unstructured) found {
	state := gates.Managed
	if current.GetDeletionTimestamp() != nil {
		state = gates.Deleting
	}

	return found{state: state, current: current, versions: versions}
}

// current is the version of the event's generation, else the newest. Where there is one of
// a later generation the event is stale, and that one shows it.
func (r *run) current(versions []*unstructured.Unstructured) *unstructured.Unstructured {
	latest := slices.MaxFunc(versions, func(a, b *unstructured.Unstructured) int {
		return cmp.Compare(generationOf(a), generationOf(b))
	})
	if generationOf(latest) > r.in.Generation {
		return latest
	}

	if i := slices.IndexFunc(versions, func(o *unstructured.Unstructured) bool {
		return generationOf(o) == r.in.Generation && o.GetDeletionTimestamp() == nil
	}); i >= 0 {
		return versions[i]
	}

	return versions[0]
}

// generationOf is 0 for what is no number: it was never applied by us as it is.
func generationOf(object *unstructured.Unstructured) int64 {
	generation, _ := stamp.Generation(object)

	return generation
}

// strangers is what was found where nothing is managed.
func (r *run) strangers(e *entry, objects []*unstructured.Unstructured) found {
	slices.SortStableFunc(objects, r.newest)

	for _, object := range objects {
		standing, why := r.in.Stamper.Standing(object, e.query.GVK.GroupKind(), r.in.ResourceID)

		switch {
		case standing == stamp.Detached:
			return found{state: gates.Detached, current: object, why: why}
		case e.query.Name != "" || e.Manifest == nil, standing == stamp.Unmarked && r.in.Deleting:
			return found{state: gates.Unmanaged, current: object, why: why}
		}
	}

	// What labels alone find of somebody else's is not what this entry is about. And what
	// was detached can't be found by its labels any more: that a deletion finds nothing
	// where it should detach means that it has.
	if e.query.Name == "" && e.Detach != nil && r.in.Deleting {
		return found{state: gates.Detached, why: "there is nothing to detach any more"}
	}

	out := found{state: gates.Absent}

	if len(objects) > 0 {
		_, why := r.in.Stamper.Standing(objects[0], e.query.GVK.GroupKind(), r.in.ResourceID)
		out.why = fmt.Sprintf("%s is passed over: %s", transport.RefTo(objects[0]), why)
	}

	return out
}

// sibling says that a managed object belongs to another entry of the task, whose kind and
// labels are alike.
func (r *run) sibling(e *entry, object *unstructured.Unstructured) bool {
	name := object.GetLabels()[adapter.LabelResourceName]

	return name != "" && name != e.Name &&
		slices.ContainsFunc(r.entries, func(other *entry) bool { return other.Name == name })
}

// newest orders versions, those that are being deleted last. Creation has a resolution of
// one second; names, which vary, tell within it.
func (r *run) newest(a, b *unstructured.Unstructured) int {
	switch {
	case a.GetDeletionTimestamp() != nil && b.GetDeletionTimestamp() == nil:
		return 1
	case a.GetDeletionTimestamp() == nil && b.GetDeletionTimestamp() != nil:
		return -1
	}

	return cmp.Or(
		b.GetCreationTimestamp().Compare(a.GetCreationTimestamp().Time),
		cmp.Compare(generationOf(b), generationOf(a)),
		cmp.Compare(b.GetName(), a.GetName()),
	)
}

// show is what expressions see from now on.
func (r *run) show(e *entry, f found) error {
	e.found = f
	r.forget(e)

	if f.current == nil {
		return nil
	}

	r.result.Objects[e.Name] = view(f.current)

	for _, nested := range e.Nested {
		wanted, err := r.wanted(nested.Discovery)
		if err != nil {
			return permanent(ReasonDiscovery, "look for %s in %s: %w", nested.Name, e.Name, err)
		}

		object, err := maestro.Nested(f.current, wanted)
		if err != nil {
			return permanent(ReasonDiscovery, "look for %s in %s: %w", nested.Name, e.Name, err)
		}

		if object != nil {
			r.result.Objects[nested.Name] = view(object)
		}
	}

	return nil
}

func (r *run) forget(e *entry) {
	delete(r.result.Objects, e.Name)

	for _, nested := range e.Nested {
		delete(r.result.Objects, nested.Name)
	}
}

// view is an object as expressions see it: always with labels and annotations, so that
// asking for one is no error, and without managed fields. It shares the object's memory.
func view(object *unstructured.Unstructured) map[string]any {
	metadata, _ := object.Object["metadata"].(map[string]any)
	_, labels := metadata["labels"]
	_, annotations := metadata["annotations"]
	_, managed := metadata["managedFields"]

	if labels && annotations && !managed {
		return object.Object
	}

	metadata = maps.Clone(metadata)
	if metadata == nil {
		metadata = map[string]any{}
	}

	delete(metadata, "managedFields")

	if !labels {
		metadata["labels"] = map[string]any{}
	}

	if !annotations {
		metadata["annotations"] = map[string]any{}
	}

	shown := maps.Clone(object.Object)
	shown["metadata"] = metadata

	return shown
}

// permanent is an error that stays until the task file or the object is changed; unless it
// is the end of the event's time, which says nothing about either.
func permanent(reason, format string, args ...any) error {
	err := errclass.New(errclass.Permanent, reason, format, args...)
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return errclass.New(errclass.Transient, transport.ReasonTimeout, format, args...)
	}

	return err
}
