// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/platform/adapter/gates"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
)

// Kinds are kinds of which the adapter may have objects, although the entries of the task file no longer render them:
// kinds of removed entries, and values of templates. It is safe for concurrent use. A nil Kinds has none.
type Kinds struct {
	mu    sync.Mutex
	kinds map[string]sets.Set[schema.GroupVersionKind]
}

// NewKinds creates an empty Kinds.
func NewKinds() *Kinds { return &Kinds{kinds: map[string]sets.Set[schema.GroupVersionKind]{}} }

// Add adds a kind of a transport.
func (k *Kinds) Add(transportName string, kind schema.GroupVersionKind) {
	if k == nil {
		return
	}

	k.mu.Lock()
	defer k.mu.Unlock()

	if k.kinds[transportName] == nil {
		k.kinds[transportName] = sets.New[schema.GroupVersionKind]()
	}

	k.kinds[transportName].Insert(kind)
}

func (k *Kinds) list(transportName string) []schema.GroupVersionKind {
	if k == nil {
		return nil
	}

	k.mu.Lock()
	defer k.mu.Unlock()

	return k.kinds[transportName].UnsortedList()
}

// leftover is an object of the resource that this adapter owns and that no entry renders any more: its name, namespace
// or kind depends on a value that has changed, or its entry was removed from the task file.
type leftover struct {
	object    *unstructured.Unstructured
	client    transport.Client
	transport string
	// entry is the name of the entry that has created the object.
	entry string
}

// findLeftovers finds the leftovers, and gives those of an existing entry to the entry.
func (r *run) findLeftovers(ctx context.Context) error {
	known := sets.New[types.UID]()

	for _, e := range r.entries {
		r.in.Kinds.Add(e.Transport, e.query.GVK)

		for _, object := range append(slices.Clone(e.objects.versions), e.objects.current) {
			if object != nil {
				known.Insert(object.GetUID())
			}
		}
	}

	for name, client := range r.in.Clients {
		kinds := sets.New(r.in.Kinds.list(name)...)

		for _, e := range r.entries {
			if e.Transport == name {
				kinds.Insert(e.query.GVK)
			}
		}

		for _, kind := range kinds.UnsortedList() {
			if err := r.findLeftoversOf(ctx, leftover{client: client, transport: name}, kind, known); err != nil {
				return err
			}
		}
	}

	return nil
}

// findLeftoversOf finds the leftovers of one kind. An error that stays, such as a missing permission for the kind of a
// removed entry, does not fail the event.
func (r *run) findLeftoversOf(
	ctx context.Context, found leftover, kind schema.GroupVersionKind, known sets.Set[types.UID],
) error {
	query, read := transport.Query{GVK: kind, Labels: map[string]string{
		adapter.LabelAdapter: r.in.Stamper.Adapter(), adapter.LabelResourceID: r.in.ResourceID,
	}}, transport.Indexed

	// Somebody may have removed the label of the adapter, which the cache needs.
	if r.mayHaveUnlabeled(found.transport, kind) {
		delete(query.Labels, adapter.LabelAdapter)

		read = transport.Live
	}

	objects, err := found.client.Find(ctx, query, read)
	if err != nil && errclass.ClassOf(err) == errclass.Permanent {
		r.in.Log.DebugContext(ctx, "could not look for objects that are no longer rendered", "kind", kind.Kind, "error", err)

		return nil
	}

	if err != nil {
		return fmt.Errorf("look for objects that are no longer rendered: %w", err)
	}

	for _, object := range objects {
		if known.Has(object.GetUID()) {
			continue
		}

		// The cache can be late.
		ref := transport.RefTo(object)

		live, err := found.client.Find(ctx, transport.Query{GVK: kind, Namespace: ref.Namespace, Name: ref.Name}, transport.Live)
		if err != nil {
			return fmt.Errorf("look for objects that are no longer rendered: %w", err)
		}

		if len(live) == 0 || live[0].GetUID() != ref.UID {
			continue
		}

		ownership, _ := r.in.Stamper.OwnershipOf(live[0], kind.GroupKind(), r.in.ResourceID)
		if ownership != stamp.Managed || r.isDiscoverable(found.transport, live[0]) {
			continue
		}

		// A later event has created the object with its name.
		if appliedGeneration(live[0]) > r.in.Generation {
			if err := r.confirmEvent(ctx); err != nil {
				return err
			}
		}

		known.Insert(ref.UID)

		found.entry = live[0].GetLabels()[adapter.LabelResourceName]
		if found.object, err = r.restoreLabel(ctx, found.client, live[0]); err != nil {
			return err
		}

		r.assignLeftover(found)
	}

	return nil
}

// restoreLabel sets the label of the adapter again on an object that has lost it, before the object that replaces it is
// created. A later event looks only for objects with the label, because the entry then has an object.
func (r *run) restoreLabel(
	ctx context.Context, client transport.Client, object *unstructured.Unstructured,
) (*unstructured.Unstructured, error) {
	if r.isStale || object.GetLabels()[adapter.LabelAdapter] == r.in.Stamper.Adapter() {
		return object, nil
	}

	ref := transport.RefTo(object)

	labeled, err := client.Patch(ctx, ref, map[string]any{
		"metadata": map[string]any{"labels": map[string]any{adapter.LabelAdapter: r.in.Stamper.Adapter()}},
	})
	if err != nil {
		return nil, fmt.Errorf("set label of %s, which is no longer rendered: %w", ref, err)
	}

	return labeled, nil
}

// mayHaveUnlabeled reports whether there may be an object of this kind that the discovery did not find because the object
// has lost the label of the adapter. This is possible if the discovery of an entry found no object, and the entry finds its
// objects by labels or under changing names. The first generation of a resource has no earlier objects.
func (r *run) mayHaveUnlabeled(transportName string, kind schema.GroupVersionKind) bool {
	return r.in.Generation > 1 && slices.ContainsFunc(r.entries, func(e *newEntry) bool {
		return e.Transport == transportName && e.query.GVK == kind && e.Manifest != nil && e.objects.state == gates.Absent &&
			(e.NameCanChange || e.query.Name == "")
	})
}

// isDiscoverable reports whether the discovery of an entry finds an object. The discovery of this event may have read an
// earlier state of the cache.
func (r *run) isDiscoverable(transportName string, object *unstructured.Unstructured) bool {
	return slices.ContainsFunc(r.entries, func(e *newEntry) bool {
		switch {
		case e.Transport != transportName || e.query.GVK.GroupKind() != object.GroupVersionKind().GroupKind(),
			e.query.Namespace != "" && object.GetNamespace() != "" && e.query.Namespace != object.GetNamespace():
			return false
		case e.query.Name != "":
			return e.query.Name == object.GetName()
		default:
			return labels.SelectorFromSet(e.query.Labels).Matches(labels.Set(object.GetLabels())) && !r.isSibling(e, object)
		}
	})
}

func (r *run) assignLeftover(found leftover) {
	for _, e := range r.entries {
		if e.Name == found.entry && e.Transport == found.transport && e.Manifest != nil {
			e.leftovers = append(e.leftovers, found)
			r.showLeftover(e)

			return
		}
	}

	r.removed = append(r.removed, found)
}

// showLeftover sets the variable of an entry without an object to a leftover while the resource is being
// deleted. Otherwise a gate or a report would find no object and treat the deletion as finished.
func (r *run) showLeftover(e *newEntry) {
	if r.in.Deleting && e.objects.current == nil && len(e.leftovers) > 0 {
		r.result.Objects[e.Name] = toVariable(e.leftovers[0].object)
	}
}

// removeLeftovers detaches or deletes the leftovers of an entry by the gates of the entry. If neither gate is true,
// they are deleted as soon as the object that replaces them has the content of the manifest.
func (r *run) removeLeftovers(ctx context.Context, e *newEntry, out *Outcome) {
	if len(e.leftovers) == 0 || out.Err != nil || r.isStale {
		return
	}

	isReplaced := !r.in.Deleting && e.objects.state == gates.Managed && !out.Outdated && !out.Pending
	isDetach, isDelete := e.gates.Detach == gates.True, e.gates.Delete == gates.True

	var errs []error

	remaining := e.leftovers[:0]

	for _, found := range e.leftovers {
		ref := transport.RefTo(found.object)

		var err error

		switch {
		case isDetach:
			_, err = found.client.Patch(ctx, ref, r.in.Stamper.DetachPatch(found.object, ref.GVK.GroupKind(), r.in.ResourceID))
		case isDelete || isReplaced:
			err = r.deleteLeftover(ctx, &found, metav1.DeletionPropagation(e.PropagationPolicy), out)
		default:
			remaining = append(remaining, found)

			continue
		}

		if err != nil && !isOverwritten(err) {
			errs = append(errs, fmt.Errorf("remove %s, which is no longer rendered: %w", ref, err))
		}

		if err != nil || found.object != nil && !isDetach {
			remaining = append(remaining, found)
		}
	}

	e.leftovers = remaining
	out.Pending = out.Pending || r.in.Deleting && isDelete && len(remaining) > 0

	r.removeVariablesWithout(e)

	if err := errors.Join(errs...); err != nil {
		out.setFailure(errclass.ReasonOf(err, ReasonLeftover), err)
	}
}

// removeVariablesWithout removes the variable of an entry that has neither an object nor a leftover any more.
func (r *run) removeVariablesWithout(e *newEntry) {
	if e.objects.current == nil {
		r.removeVariables(e)
		r.showLeftover(e)
	}
}

// deleteLeftover deletes a leftover, and sets its object to nil if it is gone.
func (r *run) deleteLeftover(ctx context.Context, found *leftover, propagation metav1.DeletionPropagation, out *Outcome) error {
	ref := transport.RefTo(found.object)

	if found.object.GetDeletionTimestamp() == nil {
		if err := found.client.Delete(ctx, ref, propagation); err != nil && !errors.Is(err, transport.ErrNotFound) {
			return err
		}

		out.Pruned = append(out.Pruned, ref.Name)
	}

	live, err := found.client.Find(ctx, transport.Query{GVK: ref.GVK, Namespace: ref.Namespace, Name: ref.Name}, transport.Live)
	if err == nil && (len(live) == 0 || live[0].GetUID() != ref.UID) {
		found.object = nil
	}

	return err
}

// removeRemoved deletes the objects of entries that the task file no longer has. They have no gates, so it waits until
// no entry has failed. While the resource is being deleted, an object that remains fails the event, because nothing
// else keeps the resource.
func (r *run) removeRemoved(ctx context.Context) {
	if r.isStale || r.hasFailed {
		return
	}

	for _, found := range r.removed {
		out := Outcome{
			Resource: found.entry, Outcome: gates.Act, Operation: Deleted, Reason: ReasonLeftover,
			Object: transport.RefTo(found.object).String(),
		}

		err := r.deleteLeftover(ctx, &found, metav1.DeletePropagationBackground, &out)

		switch {
		case err != nil:
			out.setFailure(errclass.ReasonOf(err, ReasonLeftover), err)
		case found.object != nil && r.in.Deleting:
			out.Pending = true
			out.setFailure(ReasonLeftover, errclass.New(errclass.Transient, ReasonLeftover,
				"%s is still being deleted; the task file no longer has its entry %s", out.Object, found.entry))
		}

		if out.Err == nil {
			r.in.Log.InfoContext(ctx, "deleted an object whose entry the task file no longer has",
				"name", found.entry, "object", out.Object)
		}

		r.result.Outcomes = append(r.result.Outcomes, out)
	}
}
