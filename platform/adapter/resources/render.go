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

// renderObject renders the object of an entry, and sets its owner reference, ownership labels and
// annotations. It returns an error if discovery would not find the object.
func (r *run) renderObject(ctx context.Context, e *entry) (*unstructured.Unstructured, error) {
	rendered, err := e.Manifest.RenderObject(ctx, r.vars)
	if err != nil {
		return nil, newPermanentError(ReasonManifest, "%w", err)
	}

	object := &unstructured.Unstructured{Object: rendered}
	if e.Transport == transport.Maestro && object.GetNamespace() == "" {
		object.SetNamespace(e.query.Namespace)
	}

	if err := r.setOwner(e, object); err != nil {
		return nil, err
	}

	owner := stamp.Owner{ResourceID: r.in.ResourceID, ResourceName: e.Name, Generation: r.in.Generation}
	err = r.in.Stamper.SetOwnership(object, owner)
	if err != nil {
		return nil, newPermanentError(ReasonManifest, "stamp %s: %w", transport.RefTo(object), err)
	}

	if err := r.checkFindable(e, object); err != nil || e.Transport != transport.Maestro {
		return object, err
	}

	if err := maestro.Complete(object); err != nil {
		return nil, newPermanentError(ReasonManifest, "%s: %w", transport.RefTo(object), err)
	}

	return object, nil
}

// checkFindable returns an error if discovery would not find the object. The adapter would create such an
// object again with each event, or would never delete it.
func (r *run) checkFindable(e *entry, object *unstructured.Unstructured) error {
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
func (r *run) setOwner(e *entry, object *unstructured.Unstructured) error {
	if e.Owner == "" {
		return nil
	}

	i := slices.IndexFunc(r.entries, func(other *entry) bool { return other.Name == e.Owner })
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
