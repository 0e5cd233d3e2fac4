// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ocm

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

const (
	// fieldManager of objects on the spoke.
	fieldManager = "work-agent"
	agentID      = "simulated"
	// The finalizers of the agent (open-cluster-management.io/api, work/v1/types.go).
	workFinalizer    = "cluster.open-cluster-management.io/manifest-work-cleanup"
	appliedFinalizer = "cluster.open-cluster-management.io/applied-manifest-work-cleanup"

	strategyCreateOnly = "CreateOnly"
	strategyReadOnly   = "ReadOnly"
	strategyServerSide = "ServerSideApply"
)

// resource is where an object is on the spoke.
type resource struct {
	gvr             schema.GroupVersionResource
	kind            string
	namespace, name string
}

func (r resource) same(o resource) bool {
	return r.gvr.GroupResource() == o.gvr.GroupResource() && r.namespace == o.namespace && r.name == o.name
}

func (a *Agent) calls(r resource) dynamic.ResourceInterface {
	return a.spoke.Resource(r.gvr).Namespace(r.namespace)
}

// brought is what became of one manifest.
type brought struct {
	resource

	err error
}

// bring applies a work's manifests and tells the hub.
func (a *Agent) bring(ctx context.Context, work *unstructured.Unstructured) error {
	if !slices.Contains(work.GetFinalizers(), workFinalizer) {
		work.SetFinalizers(append(work.GetFinalizers(), workFinalizer))

		updated, err := a.works.Update(ctx, work, metav1.UpdateOptions{FieldManager: fieldManager})
		if err != nil {
			return fmt.Errorf("add finalizer: %w", err)
		}

		work = updated
	}

	book, err := a.book(ctx, work)
	if err != nil {
		return err
	}

	manifests := manifestsOf(work)
	results := make([]brought, 0, len(manifests))

	for _, manifest := range manifests {
		results = append(results, a.apply(ctx, work, book, manifest))
	}

	if err := a.record(ctx, book, results); err != nil {
		return err
	}

	return a.tell(ctx, work, results)
}

// book gives the work's AppliedManifestWork.
func (a *Agent) book(ctx context.Context, work *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	book, err := a.applied.Get(ctx, a.bookName(work), metav1.GetOptions{})
	if err == nil || !apierrors.IsNotFound(err) {
		return book, err
	}

	book = &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "work.open-cluster-management.io/v1", "kind": "AppliedManifestWork",
		"metadata": map[string]any{"name": a.bookName(work), "finalizers": []any{appliedFinalizer}},
		"spec":     map[string]any{"hubHash": a.hub, "agentID": agentID, "manifestWorkName": work.GetName()},
	}}

	return a.applied.Create(ctx, book, metav1.CreateOptions{FieldManager: fieldManager})
}

// bookName is unique for the spoke: agents of several clusters on one server, too.
func (a *Agent) bookName(work *unstructured.Unstructured) string {
	const hashLength = 16

	return a.hub[:hashLength] + "-" + a.options.Cluster + "-" + work.GetName()
}

func (a *Agent) apply(ctx context.Context, work, book, manifest *unstructured.Unstructured) brought {
	gvk := manifest.GroupVersionKind()
	result := brought{resource: resource{kind: gvk.Kind, namespace: manifest.GetNamespace(), name: manifest.GetName()}}
	result.gvr.Group, result.gvr.Version = gvk.Group, gvk.Version

	mapping, err := a.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		result.err = err

		return result
	}

	result.gvr = mapping.Resource

	if mapping.Scope.Name() == meta.RESTScopeNameNamespace && result.namespace == "" {
		result.namespace = metav1.NamespaceDefault
	}

	result.err = a.write(ctx, work, book, manifest, result.resource)

	return result
}

func (a *Agent) write(ctx context.Context, work, book, manifest *unstructured.Unstructured, at resource) error {
	strategy, force := strategyOf(work, at)
	calls := a.calls(at)
	manifest.SetUID("")
	manifest.SetNamespace(at.namespace)

	if owned(work, at) {
		manifest.SetOwnerReferences([]metav1.OwnerReference{ownerOf(book)})
	}

	var err error

	switch strategy {
	case strategyReadOnly:
		_, err = calls.Get(ctx, at.name, metav1.GetOptions{})
	case strategyCreateOnly:
		if _, err = calls.Create(ctx, manifest, metav1.CreateOptions{FieldManager: fieldManager}); apierrors.IsAlreadyExists(err) {
			err = nil
		}
	default:
		_, err = calls.Apply(ctx, at.name, manifest, metav1.ApplyOptions{FieldManager: fieldManager, Force: force})
	}

	return err
}

// strategyOf gives the strategy of a manifest, and whether its apply is forced.
func strategyOf(work *unstructured.Unstructured, at resource) (string, bool) {
	strategy, _, _ := unstructured.NestedMap(config(work, at), "updateStrategy")
	name, _, _ := unstructured.NestedString(strategy, "type")
	force, _, _ := unstructured.NestedBool(strategy, "serverSideApply", "force")

	return name, force || name != strategyServerSide
}

// config is the entry of spec.manifestConfigs for an object.
func config(work *unstructured.Unstructured, at resource) map[string]any {
	configs, _, _ := unstructured.NestedSlice(work.Object, "spec", "manifestConfigs")

	for _, item := range configs {
		entry, _ := item.(map[string]any)

		identifier, _, _ := unstructured.NestedMap(entry, "resourceIdentifier")
		if names(identifier, at) {
			return entry
		}
	}

	return nil
}

func names(identifier map[string]any, at resource) bool {
	get := func(field string) string {
		value, _ := identifier[field].(string)

		return value
	}

	return get("group") == at.gvr.Group && get("resource") == at.gvr.Resource &&
		get("name") == at.name && get("namespace") == at.namespace
}

// owned says that the object goes with the work (spec.deleteOption).
func owned(work *unstructured.Unstructured, at resource) bool {
	if strategy, _ := strategyOf(work, at); strategy == strategyReadOnly {
		return false
	}

	policy, _, _ := unstructured.NestedString(work.Object, "spec", "deleteOption", "propagationPolicy")

	switch policy {
	case "Orphan":
		return false
	case "SelectivelyOrphan":
		rules, _, _ := unstructured.NestedSlice(work.Object, "spec", "deleteOption", "selectivelyOrphans", "orphaningRules")

		return !slices.ContainsFunc(rules, func(rule any) bool {
			identifier, _ := rule.(map[string]any)

			return names(identifier, at)
		})
	default:
		return true
	}
}

func ownerOf(book *unstructured.Unstructured) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: book.GetAPIVersion(), Kind: book.GetKind(), Name: book.GetName(), UID: types.UID(string(book.GetUID())),
	}
}
