// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/platform/adapter/gates"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
)

// apply makes the object, or changes it to what the manifest says.
func (r *run) apply(ctx context.Context, e *entry, out *Outcome) error {
	object, err := r.render(ctx, e)
	if err != nil {
		return err
	}

	live := e.found.current
	if live == nil || e.Retention != nil && live.GetName() != object.GetName() {
		return r.create(ctx, e, object, out, Created)
	}

	return r.change(ctx, e, live, object, out)
}

// change applies the manifest to an object that is there.
func (r *run) change(ctx context.Context, e *entry, live, object *unstructured.Unstructured, out *Outcome) error {
	if r.upToDate(live, object, out) {
		return nil
	}

	out.Operation = Applied

	applied, takenOver, err := e.client.Apply(ctx, live, object)
	if err != nil {
		return err
	}

	if takenOver != "" {
		out.Message = "fields that others had changed have the manifest's values again: " + takenOver
	}

	return r.replace(e, applied)
}

// upToDate heeds a generation that the manifest has of its own, which may differ from the
// event's: an object of the same is left as it is, as is one of a later.
func (r *run) upToDate(live, object *unstructured.Unstructured, out *Outcome) bool {
	wanted, there := generationOf(object), generationOf(live)

	switch {
	case wanted == r.in.Generation || there < wanted:
		return false
	case there == wanted:
		out.Reason = string(gates.ReasonUnchanged)
	default:
		out.Reason = string(gates.ReasonStale)
	}

	return true
}

// create makes the object. One of the name that is there by then is not taken over.
func (r *run) create(ctx context.Context, e *entry, object *unstructured.Unstructured, out *Outcome, as Operation) error {
	out.Operation = as

	made, err := e.client.Create(ctx, object)
	if errors.Is(err, transport.ErrExists) {
		return r.inTheWay(ctx, e, object, out, err)
	}

	if err != nil {
		return err
	}

	return r.show(e, managing(made, slices.Insert(e.found.versions, 0, made)))
}

// inTheWay looks at an object that discovery has not found and that has the manifest's
// name.
func (r *run) inTheWay(ctx context.Context, e *entry, object *unstructured.Unstructured, out *Outcome, exists error) error {
	ref := transport.RefTo(object)

	there, err := e.client.Find(ctx, transport.Query{GVK: ref.GVK, Namespace: ref.Namespace, Name: ref.Name}, transport.Live)
	if err != nil {
		return err
	}

	if len(there) == 0 {
		return exists // and has gone since
	}

	live := there[0]
	standing, why := r.in.Stamper.Standing(live, e.query.GVK.GroupKind(), r.in.ResourceID)
	among := slices.ContainsFunc(e.found.versions, func(o *unstructured.Unstructured) bool { return o.GetUID() == live.GetUID() })

	switch {
	case standing == stamp.Managed && among:
		return permanent(ReasonManifest,
			"create %s: a version of that name is there; with retention the manifest's name has to vary", ref)
	case standing == stamp.Managed && live.GetDeletionTimestamp() != nil:
		out.Pending, out.Reason = true, string(gates.ReasonDeletionPending)

		return nil
	case standing == stamp.Managed && e.query.Name == "":
		// Somebody has changed the labels it is found by.
		return r.change(ctx, e, live, object, out)
	case standing == stamp.Managed:
		return exists
	case standing == stamp.Detached:
		out.Operation, out.Reason, out.Message = None, string(gates.ReasonDetached), why

		return r.show(e, found{state: gates.Detached, current: live, why: why})
	default:
		e.found.current, e.found.why = live, why

		return r.notManaged(e)
	}
}

// replace puts the object that a write has answered in the place of the one before.
func (r *run) replace(e *entry, object *unstructured.Unstructured) error {
	versions := slices.Clone(e.found.versions)

	for i, version := range versions {
		if version.GetUID() == object.GetUID() {
			versions[i] = object
		}
	}

	return r.show(e, managing(object, versions))
}

// patch applies the documents whose gates hold, in their order.
func (r *run) patch(ctx context.Context, e *entry, decision gates.Decision, out *Outcome) error {
	for _, action := range decision.Actions {
		if action.Verb != gates.Patch {
			continue
		}

		rendered, err := e.Patches[action.Index].Document.Render(ctx, r.vars)
		if err != nil {
			return permanent(ReasonManifest, "render lifecycle.patch[%d].document: %w", action.Index, err)
		}

		document, ok := rendered.(map[string]any)
		if !ok {
			return permanent(ReasonManifest, "render lifecycle.patch[%d].document: it is no object", action.Index)
		}

		out.Operation = Patched

		patched, err := e.client.Patch(ctx, transport.RefTo(e.found.current), document)
		if err != nil {
			return err
		}

		if err := r.replace(e, patched); err != nil {
			return err
		}
	}

	return nil
}

// recreate removes the object and makes it anew if it has gone at once; with retention it
// makes one beside it. The manifest is rendered first: nothing is removed that can't be
// made again.
func (r *run) recreate(ctx context.Context, e *entry, out *Outcome) error {
	out.Operation = Recreate

	object, err := r.render(ctx, e)
	if err != nil {
		return err
	}

	if e.Retention != nil {
		return r.create(ctx, e, object, out, Recreate)
	}

	if err := e.client.Delete(ctx, transport.RefTo(e.found.current), metav1.DeletePropagationBackground); err != nil {
		return err
	}

	if err := r.discover(ctx, e, transport.Live); err != nil {
		return err
	}

	if e.found.current != nil {
		out.Pending, out.Message = true, "deletion pending"

		return nil
	}

	return r.create(ctx, e, object, out, Recreate)
}

// delete asks for the deletion of all versions, and looks what is left.
func (r *run) delete(ctx context.Context, e *entry, out *Outcome) error {
	out.Operation = Deleted

	err := e.each(func(version *unstructured.Unstructured) error {
		if version.GetDeletionTimestamp() != nil {
			return nil
		}

		return e.client.Delete(ctx, transport.RefTo(version), metav1.DeletionPropagation(e.PropagationPolicy))
	})
	if err != nil {
		return err
	}

	if err := r.discover(ctx, e, transport.Live); err != nil {
		return err
	}

	out.Pending = len(e.found.versions) > 0

	return nil
}

// each does something to all versions. One that has gone since is none any more.
func (e *entry) each(do func(*unstructured.Unstructured) error) error {
	var errs []error

	for _, version := range e.found.versions {
		if err := do(version); err != nil && !errors.Is(err, transport.ErrNotFound) {
			errs = append(errs, err)
		}
	}

	return errors.Join(errs...)
}

// detach takes the marks off all versions but for the generation, and marks them as
// handed over.
func (r *run) detach(ctx context.Context, e *entry, out *Outcome) error {
	out.Operation = Detached

	var left *unstructured.Unstructured

	err := e.each(func(version *unstructured.Unstructured) error {
		freed, err := e.client.Patch(ctx, transport.RefTo(version), r.in.Stamper.Detachment())
		if err == nil && version.GetUID() == e.found.current.GetUID() {
			left = freed
		}

		return err
	})
	if err != nil {
		return err
	}

	if left == nil {
		return r.show(e, found{state: gates.Absent})
	}

	return r.show(e, found{state: gates.Detached, current: left, why: "it was detached"})
}

// renew signs what is signed with an old key anew. That it can't be done keeps nothing
// from working: the next event tries again.
func (r *run) renew(ctx context.Context, e *entry) {
	for _, version := range e.found.versions {
		value, needed := r.in.Stamper.Renewed(version, e.query.GVK.GroupKind(), r.in.ResourceID)
		if !needed || version.GetDeletionTimestamp() != nil {
			continue
		}

		document := map[string]any{"metadata": map[string]any{"annotations": map[string]any{adapter.AnnotationIdentity: value}}}

		if _, err := e.client.Patch(ctx, transport.RefTo(version), document); err != nil && !changed(err) {
			r.in.Log.WarnContext(ctx, "sign object anew", "name", e.Name, "error", err)
		}
	}
}

// prune removes the earlier versions that the retention does not keep.
func (r *run) prune(ctx context.Context, e *entry, out *Outcome) error {
	if e.found.state != gates.Managed {
		return nil
	}

	earlier := slices.DeleteFunc(slices.Clone(e.found.versions), func(version *unstructured.Unstructured) bool {
		return version.GetUID() == e.found.current.GetUID() || version.GetDeletionTimestamp() != nil
	})

	over, err := r.over(ctx, e, earlier)
	if err != nil {
		return err
	}

	for _, version := range over {
		err := e.client.Delete(ctx, transport.RefTo(version), metav1.DeletePropagationBackground)

		switch {
		case errors.Is(err, transport.ErrNotFound), errors.Is(err, transport.ErrConflict):
			// Gone, or changed since it was read: the next event looks again.
		case err != nil:
			return fmt.Errorf("prune: %w", err)
		default:
			out.Pruned = append(out.Pruned, version.GetName())
		}
	}

	return nil
}

// over gives the versions that one of the rules of the retention removes, of those from
// the newest to the oldest.
func (r *run) over(ctx context.Context, e *entry, earlier []*unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	var (
		items []any
		over  []*unstructured.Unstructured
	)

	for _, version := range earlier {
		items = append(items, view(version))
	}

	for i, version := range earlier {
		age := r.in.Clock.Since(version.GetCreationTimestamp().Time)
		goes := e.Retention.HistoryLimit != nil && i >= *e.Retention.HistoryLimit || e.Retention.TTL > 0 && age > e.Retention.TTL

		if !goes && e.Retention.Expression != nil {
			vars := maps.Clone(r.vars)
			vars["item"], vars["items"], vars["itemIndex"] = items[i], items, int64(i)

			var err error
			if goes, err = e.Retention.Expression.Bool(ctx, vars); err != nil {
				return nil, permanent(string(gates.ReasonGate), "evaluate retention.expression: %w", err)
			}
		}

		if goes {
			over = append(over, version)
		}
	}

	return over, nil
}
