// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/hyperfleet/hyperfleet/platform/adapter/gates"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport/maestro"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
)

// render gives the object as it is sent: stamped, with its owner, and one that discovery
// will find again.
func (r *run) render(ctx context.Context, e *entry) (*unstructured.Unstructured, error) {
	rendered, err := e.Manifest.RenderObject(ctx, r.vars)
	if err != nil {
		return nil, permanent(ReasonManifest, "%w", err)
	}

	object := &unstructured.Unstructured{Object: rendered}
	if e.Transport == transport.Maestro && object.GetNamespace() == "" {
		object.SetNamespace(e.query.Namespace)
	}

	if err := r.own(e, object); err != nil {
		return nil, err
	}

	err = r.in.Stamper.Stamp(object, stamp.Mark{ResourceID: r.in.ResourceID, ResourceName: e.Name, Generation: r.in.Generation})
	if err != nil {
		return nil, permanent(ReasonManifest, "stamp %s: %w", transport.RefTo(object), err)
	}

	if err := r.findable(e, object); err != nil || e.Transport != transport.Maestro {
		return object, err
	}

	if err := maestro.Complete(object); err != nil {
		return nil, permanent(ReasonManifest, "%s: %w", transport.RefTo(object), err)
	}

	return object, nil
}

// findable refuses an object that discovery would not find: it would be made again with
// each event, or never be deleted.
func (r *run) findable(e *entry, object *unstructured.Unstructured) error {
	ref := transport.RefTo(object)
	if problem := task.CheckName(e.query.GVK.Group, object.GetName()); problem != "" {
		return permanent(ReasonManifest, "%s: metadata.name is no name that an API server takes: %s; "+
			"lower in its template makes capitals small", ref, problem)
	}

	switch {
	case object.GroupVersionKind().GroupKind() != e.query.GVK.GroupKind():
		return permanent(ReasonManifest, "%s: discovery looks for a %s", ref, e.query.GVK.GroupKind())
	case e.query.Namespace != "" && object.GetNamespace() != "" && e.query.Namespace != object.GetNamespace():
		return permanent(ReasonManifest, "%s: discovery looks in namespace %s", ref, e.query.Namespace)
	case e.query.Name != "" && e.query.Name != object.GetName():
		return permanent(ReasonManifest, "%s: discovery looks for the name %s", ref, e.query.Name)
	case e.query.Name == "" && !labels.SelectorFromSet(e.query.Labels).Matches(labels.Set(object.GetLabels())):
		return permanent(ReasonManifest, "%s: its labels are not those that discovery looks for: %s", ref, labels.Set(e.query.Labels))
	}

	live := e.found.current
	if e.Retention == nil && live != nil && live.GetName() != object.GetName() {
		return permanent(ReasonManifest, "%s: the object that is there is called %s; without retention the name may not vary",
			ref, live.GetName())
	}

	return nil
}

// own sets the owner reference. An owner is in the same namespace or in none (Kubernetes,
// "Owners and Dependents").
func (r *run) own(e *entry, object *unstructured.Unstructured) error {
	if e.Owner == "" {
		return nil
	}

	i := slices.IndexFunc(r.entries, func(other *entry) bool { return other.Name == e.Owner })
	if i < 0 || r.entries[i].found.state != gates.Managed {
		return permanent(ReasonOwnerMissing, "own %s: the object of %s, which is to be its owner, is not there",
			transport.RefTo(object), e.Owner)
	}

	owner := r.entries[i].found.current
	if namespace := owner.GetNamespace(); namespace != "" && namespace != object.GetNamespace() {
		return permanent(ReasonManifest, "own %s: its owner %s is in another namespace; an owner is in the same one, or in none",
			transport.RefTo(object), transport.RefTo(owner))
	}

	object.SetOwnerReferences(append(object.GetOwnerReferences(), metav1.OwnerReference{
		APIVersion: owner.GetAPIVersion(), Kind: owner.GetKind(), Name: owner.GetName(), UID: owner.GetUID(),
	}))

	return nil
}
