// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/platform/adapter/gates"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport/maestro"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
)

// execute executes a decision on the discovered objects.
func (r *run) execute(ctx context.Context, e *newEntry, decision gates.Decision, out *Outcome) error {
	if decision.HasAction(gates.Patch) {
		return r.patch(ctx, e, decision, out)
	}

	switch verb := decision.Actions[0].Verb; verb {
	case gates.Detach:
		return r.detach(ctx, e, out)
	case gates.Delete:
		return r.delete(ctx, e, out)
	case gates.Recreate:
		return r.recreate(ctx, e, out)
	case gates.Apply:
		return r.apply(ctx, e, out)
	default:
		return fmt.Errorf("execute decision: unknown action %s", verb)
	}
}

// apply creates the object, or updates it to the manifest.
func (r *run) apply(ctx context.Context, e *newEntry, out *Outcome) error {
	object, owner, err := r.renderObject(ctx, e)
	if err != nil {
		return err
	}

	live := e.objects.current

	// A version of a generation that the API has lost can have the name.
	if e.Retention != nil {
		live = e.objects.findVersion(object.GetName())
	}

	if live == nil {
		return r.create(ctx, e, object, owner, out, Created)
	}

	return r.update(ctx, e, live, object, owner, out)
}

// renderObject renders the object of an entry, with its ownership labels and annotations. It returns an error if
// discovery would not find the object.
func (r *run) renderObject(ctx context.Context, e *newEntry) (*unstructured.Unstructured, stamp.Owner, error) {
	object, owner, err := r.renderMarked(ctx, e)
	if err != nil {
		return nil, owner, err
	}

	if err := r.checkFindable(e, object); err != nil || e.Transport != transport.Maestro {
		return object, owner, err
	}

	if err := maestro.Complete(object); err != nil {
		return nil, owner, newPermanentError(ReasonManifest, "%s: %w", transport.RefTo(object), err)
	}

	return object, owner, nil
}

// renderMarked renders the object of an entry, and sets its owner reference, ownership labels and annotations.
func (r *run) renderMarked(ctx context.Context, e *newEntry) (*unstructured.Unstructured, stamp.Owner, error) {
	object, owner, err := r.renderContent(ctx, e)
	if err == nil && e.Manifest.ReadsClock() {
		object, err = r.renderManifest(ctx, e, r.vars)
	}

	if err != nil {
		return nil, owner, err
	}

	if err := r.in.Stamper.SetOwnership(object, owner); err != nil {
		return nil, owner, newPermanentError(ReasonManifest, "stamp %s: %w", transport.RefTo(object), err)
	}

	return object, owner, nil
}

// renderContent renders the object of an entry, without ownership labels and annotations. In its templates, now always
// returns the same time, so that the digest in the owner changes only with the content.
func (r *run) renderContent(ctx context.Context, e *newEntry) (*unstructured.Unstructured, stamp.Owner, error) {
	owner := stamp.Owner{ResourceID: r.in.ResourceID, ResourceName: e.Name, Generation: r.in.Generation}
	vars := r.vars

	if e.Manifest.ReadsClock() {
		vars = task.StopClock(vars)
	}

	object, err := r.renderManifest(ctx, e, vars)
	if err != nil {
		return nil, owner, err
	}

	if owner.Digest, err = stamp.Digest(object); err != nil {
		return nil, owner, newPermanentError(ReasonManifest, "stamp %s: %w", transport.RefTo(object), err)
	}

	return object, owner, nil
}

// renderManifest renders the manifest of an entry, and sets the owner reference.
func (r *run) renderManifest(ctx context.Context, e *newEntry, vars map[string]any) (*unstructured.Unstructured, error) {
	rendered, err := e.Manifest.RenderObject(ctx, vars)
	if err != nil {
		return nil, newPermanentError(ReasonManifest, "%w", err)
	}

	object := &unstructured.Unstructured{Object: rendered}
	if e.Transport == transport.Maestro && object.GetNamespace() == "" {
		object.SetNamespace(e.query.Namespace)
	}

	return object, r.setOwner(e, object)
}

// checkFindable returns an error if discovery would not find the object. The adapter would create such an
// object again with each event, or would never delete it.
func (r *run) checkFindable(e *newEntry, object *unstructured.Unstructured) error {
	ref := transport.RefTo(object)
	if problem := task.CheckName(e.query.GVK.Group, object.GetName()); problem != "" {
		return newPermanentError(ReasonManifest, "%s: metadata.name is not a valid name: %s; "+
			"use lower in its template to convert it to lower case", ref, problem)
	}

	switch {
	case object.GroupVersionKind().GroupKind() != e.query.GVK.GroupKind():
		return newPermanentError(ReasonManifest, "%s: discovery looks for a %s", ref, e.query.GVK.GroupKind())
	case e.query.Namespace != "" && object.GetNamespace() != "" && e.query.Namespace != object.GetNamespace():
		return newPermanentError(ReasonManifest, "%s: discovery looks in namespace %s", ref, e.query.Namespace)
	case e.query.Name != "" && e.query.Name != object.GetName():
		return newPermanentError(ReasonManifest, "%s: discovery looks for the name %s", ref, e.query.Name)
	case e.query.Name == "" && !labels.SelectorFromSet(e.query.Labels).Matches(labels.Set(object.GetLabels())):
		return newPermanentError(ReasonManifest, "%s: its labels do not match those of discovery: %s", ref, labels.Set(e.query.Labels))
	}

	live := e.objects.current
	if e.Retention == nil && live != nil && live.GetName() != object.GetName() {
		return newPermanentError(ReasonManifest, "%s: the existing object has the name %s; without retention the name must not vary",
			ref, live.GetName())
	}

	return nil
}

// setOwner adds the owner reference. An owner has to be in the same namespace or cluster-scoped
// (Kubernetes, "Owners and Dependents").
func (r *run) setOwner(e *newEntry, object *unstructured.Unstructured) error {
	if e.Owner == "" {
		return nil
	}

	i := slices.IndexFunc(r.entries, func(other *newEntry) bool { return other.Name == e.Owner })
	if i < 0 || r.entries[i].objects.state != gates.Managed {
		return newPermanentError(ReasonOwnerMissing, "set owner of %s: the object of resource %s does not exist or is not managed",
			transport.RefTo(object), e.Owner)
	}

	owner := r.entries[i].objects.current
	if namespace := owner.GetNamespace(); namespace != "" && namespace != object.GetNamespace() {
		return newPermanentError(ReasonManifest, "set owner of %s: %s is in another namespace; an owner must be in the same namespace "+
			"or cluster-scoped", transport.RefTo(object), transport.RefTo(owner))
	}

	object.SetOwnerReferences(append(object.GetOwnerReferences(), metav1.OwnerReference{
		APIVersion: owner.GetAPIVersion(), Kind: owner.GetKind(), Name: owner.GetName(), UID: owner.GetUID(),
	}))

	return nil
}

// create creates the object. It does not take over an existing object of the same name.
func (r *run) create(
	ctx context.Context, e *newEntry, object *unstructured.Unstructured, owner stamp.Owner, out *Outcome, operation Operation,
) error {
	out.Operation = operation

	created, err := e.client.Create(ctx, object)
	if errors.Is(err, transport.ErrExists) {
		return r.handleExisting(ctx, e, object, owner, out, err)
	}

	if err != nil {
		return err
	}

	return r.setObjects(e, newManaged(created, slices.Insert(e.objects.versions, 0, created)))
}

// update applies the manifest to an existing object.
func (r *run) update(
	ctx context.Context, e *newEntry, live, object *unstructured.Unstructured, owner stamp.Owner, out *Outcome,
) error {
	out.Operation = Applied
	out.Message = r.describeMarks(live, object, owner)

	// An apply keeps annotations of others.
	if live.GetAnnotations()[adapter.AnnotationDetached] != "" {
		document := map[string]any{"metadata": map[string]any{"annotations": map[string]any{adapter.AnnotationDetached: nil}}}

		var err error
		if live, err = e.client.Patch(ctx, transport.RefTo(live), document); err != nil {
			return err
		}
	}

	applied, takenOver, err := e.client.Apply(ctx, live, object)
	if err != nil {
		return err
	}

	if out.Message != "" {
		r.in.Log.WarnContext(ctx, "the marks of an object are not those of the API's resource",
			"name", e.Name, "object", transport.RefTo(live).String(), "message", out.Message)
	}

	if takenOver != "" {
		out.Message = strings.TrimPrefix(out.Message+"; overwrote fields that other managers had changed: "+takenOver, "; ")
	}

	return r.replaceObject(e, applied)
}

// describeMarks returns what is unusual about the marks of an object that is applied, and an empty string if nothing is.
func (r *run) describeMarks(live, object *unstructured.Unstructured, owner stamp.Owner) string {
	has, want := appliedGeneration(live), appliedGeneration(object)

	switch {
	case r.in.Stamper.Compare(live, object, owner) == stamp.Edited:
		return "somebody has edited the labels or annotations " + adapter.Prefix + "... of the object; they are set again"
	case has > want:
		return fmt.Sprintf("the object was applied for generation %d, and the API has generation %d: "+
			"the API's database was restored from a backup; the object gets the content that the API has now", has, want)
	default:
		return ""
	}
}

// handleExisting handles an existing object that has the manifest's name and that discovery did not find.
// existsErr is the error of the create request.
func (r *run) handleExisting(
	ctx context.Context, e *newEntry, object *unstructured.Unstructured, owner stamp.Owner, out *Outcome, existsErr error,
) error {
	ref := transport.RefTo(object)

	objects, err := e.client.Find(ctx, transport.Query{GVK: ref.GVK, Namespace: ref.Namespace, Name: ref.Name}, transport.Live)
	if err != nil {
		return err
	}

	if len(objects) == 0 {
		return existsErr // the object was deleted after the create request
	}

	live := objects[0]
	ownership, reason := r.in.Stamper.OwnershipOf(live, e.query.GVK.GroupKind(), r.in.ResourceID)
	isVersion := slices.ContainsFunc(e.objects.versions, func(version *unstructured.Unstructured) bool {
		return version.GetUID() == live.GetUID()
	})

	switch {
	case ownership == stamp.Managed && isVersion:
		return newPermanentError(ReasonManifest,
			"create %s: a version with this name exists; with retention the manifest's name has to vary", ref)
	case ownership == stamp.Managed && live.GetDeletionTimestamp() != nil:
		out.Pending, out.Reason = true, string(gates.ReasonDeletionPending)

		return nil
	case ownership == stamp.Managed && e.query.Name == "":
		// Another program has changed the labels by which discovery finds the object.
		return r.update(ctx, e, live, object, owner, out)
	case ownership == stamp.Managed:
		return existsErr
	default:
		e.objects.current, e.objects.reason = live, reason

		return r.newNotManagedError(e, string(gates.ReasonNotManaged))
	}
}

// replaceObject replaces the discovered object with the object that a write has returned.
func (r *run) replaceObject(e *newEntry, object *unstructured.Unstructured) error {
	versions := slices.Clone(e.objects.versions)

	for i, version := range versions {
		if version.GetUID() == object.GetUID() {
			versions[i] = object
		}
	}

	return r.setObjects(e, newManaged(object, versions))
}

// patch applies the patches whose gates are true, in the order of the task file.
func (r *run) patch(ctx context.Context, e *newEntry, decision gates.Decision, out *Outcome) error {
	for _, action := range decision.Actions {
		if action.Verb != gates.Patch {
			continue
		}

		rendered, err := e.Patches[action.Index].Document.Render(ctx, r.vars)
		if err != nil {
			return newPermanentError(ReasonManifest, "render lifecycle.patch[%d].document: %w", action.Index, err)
		}

		document, ok := rendered.(map[string]any)
		if !ok {
			return newPermanentError(ReasonManifest, "render lifecycle.patch[%d].document: it is not an object", action.Index)
		}

		out.Operation = Patched

		patched, err := e.client.Patch(ctx, transport.RefTo(e.objects.current), document)
		if err != nil {
			return err
		}

		if err := r.replaceObject(e, patched); err != nil {
			return err
		}
	}

	return nil
}

// recreate deletes the object, and creates it if the deletion is done immediately. With a retention, it
// only creates a new object. It renders the manifest first, so that it does not delete an object that it
// can't create again.
func (r *run) recreate(ctx context.Context, e *newEntry, out *Outcome) error {
	out.Operation = Recreate

	object, owner, err := r.renderObject(ctx, e)
	if err != nil {
		return err
	}

	if e.Retention != nil {
		return r.create(ctx, e, object, owner, out, Recreate)
	}

	if err := e.client.Delete(ctx, transport.RefTo(e.objects.current), metav1.DeletePropagationBackground); err != nil {
		return err
	}

	if err := r.discover(ctx, e, transport.Live); err != nil {
		return err
	}

	if e.objects.current != nil {
		out.Pending, out.Message = true, "deletion pending"

		return nil
	}

	return r.create(ctx, e, object, owner, out, Recreate)
}

// delete requests the deletion of all versions, and discovers the versions that remain.
func (r *run) delete(ctx context.Context, e *newEntry, out *Outcome) error {
	out.Operation = Deleted

	err := e.forEachVersion(func(version *unstructured.Unstructured) error {
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

	out.Pending = len(e.objects.versions) > 0

	return nil
}

// forEachVersion calls do for all versions and joins the errors. It ignores ErrNotFound.
func (e *newEntry) forEachVersion(do func(*unstructured.Unstructured) error) error {
	var errs []error

	for _, version := range e.objects.versions {
		if err := do(version); err != nil && !errors.Is(err, transport.ErrNotFound) {
			errs = append(errs, err)
		}
	}

	return errors.Join(errs...)
}

// detach removes the ownership labels and annotations from all versions, except for the generation, and
// adds the annotation of detached objects.
func (r *run) detach(ctx context.Context, e *newEntry, out *Outcome) error {
	out.Operation = Detached

	var current *unstructured.Unstructured

	err := e.forEachVersion(func(version *unstructured.Unstructured) error {
		document := r.in.Stamper.DetachPatch(version, e.query.GVK.GroupKind(), r.in.ResourceID)

		patched, err := e.client.Patch(ctx, transport.RefTo(version), document)
		if err == nil && version.GetUID() == e.objects.current.GetUID() {
			current = patched
		}

		return err
	})
	if err != nil {
		return err
	}

	if current == nil {
		return r.setObjects(e, objectSet{state: gates.Absent})
	}

	return r.setObjects(e, objectSet{state: gates.Detached, current: current, reason: "it was detached"})
}

// renewIdentity replaces the identity annotation of versions that were signed with an old key. An error
// does not fail the entry, because the next event tries again.
func (r *run) renewIdentity(ctx context.Context, e *newEntry) {
	for _, version := range e.objects.versions {
		value, needsRenewal := r.in.Stamper.RenewedIdentity(version, e.query.GVK.GroupKind(), r.in.ResourceID)
		if !needsRenewal || version.GetDeletionTimestamp() != nil {
			continue
		}

		document := map[string]any{"metadata": map[string]any{"annotations": map[string]any{adapter.AnnotationIdentity: value}}}

		if _, err := e.client.Patch(ctx, transport.RefTo(version), document); err != nil && !isOverwritten(err) {
			r.in.Log.WarnContext(ctx, "failed to renew identity annotation", "name", e.Name, "error", err)
		}
	}
}

// prune deletes the earlier versions that the retention does not keep.
func (r *run) prune(ctx context.Context, e *newEntry, out *Outcome) error {
	if e.objects.state != gates.Managed {
		return nil
	}

	earlier := slices.DeleteFunc(slices.Clone(e.objects.versions), func(version *unstructured.Unstructured) bool {
		return version.GetUID() == e.objects.current.GetUID() || version.GetDeletionTimestamp() != nil
	})

	expired, err := r.selectExpired(ctx, e, earlier)
	if err != nil {
		return err
	}

	for _, version := range expired {
		err := e.client.Delete(ctx, transport.RefTo(version), metav1.DeletePropagationBackground)

		switch {
		case errors.Is(err, transport.ErrNotFound), errors.Is(err, transport.ErrConflict):
			// The version was deleted or has changed since it was read. The next event prunes again.
		case err != nil:
			return fmt.Errorf("prune: %w", err)
		default:
			out.Pruned = append(out.Pruned, version.GetName())
		}
	}

	return nil
}

// selectExpired returns the versions that at least one rule of the retention deletes. The earlier versions
// have to be sorted from the newest to the oldest.
func (r *run) selectExpired(
	ctx context.Context, e *newEntry, earlier []*unstructured.Unstructured,
) ([]*unstructured.Unstructured, error) {
	var (
		items   []any
		expired []*unstructured.Unstructured
	)

	for _, version := range earlier {
		items = append(items, toVariable(version))
	}

	for i, version := range earlier {
		age := r.in.Clock.Since(version.GetCreationTimestamp().Time)
		isExpired := e.Retention.HistoryLimit != nil && i >= *e.Retention.HistoryLimit ||
			e.Retention.TTL > 0 && age > e.Retention.TTL

		if !isExpired && e.Retention.Expression != nil {
			vars := maps.Clone(r.vars)
			vars["item"], vars["items"], vars["itemIndex"] = items[i], items, int64(i)

			var err error
			if isExpired, err = e.Retention.Expression.EvalBool(ctx, vars); err != nil {
				return nil, newPermanentError(string(gates.ReasonGate), "evaluate retention.expression: %w", err)
			}
		}

		if isExpired {
			expired = append(expired, version)
		}
	}

	return expired, nil
}
