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
	// fieldManager is the field manager of the agent's writes.
	fieldManager = "work-agent"
	agentID      = "simulated"
	// Finalizers that the agent sets (open-cluster-management.io/api, work/v1/types.go).
	workFinalizer    = "cluster.open-cluster-management.io/manifest-work-cleanup"
	appliedFinalizer = "cluster.open-cluster-management.io/applied-manifest-work-cleanup"

	strategyCreateOnly = "CreateOnly"
	strategyReadOnly   = "ReadOnly"
	strategyServerSide = "ServerSideApply"
)

// resource identifies an object on the spoke.
type resource struct {
	gvr             schema.GroupVersionResource
	kind            string
	namespace, name string
}

func (r resource) isSameObject(o resource) bool {
	return r.gvr.GroupResource() == o.gvr.GroupResource() && r.namespace == o.namespace && r.name == o.name
}

func (a *Agent) resourceClient(r resource) dynamic.ResourceInterface {
	return a.spoke.Resource(r.gvr).Namespace(r.namespace)
}

// applyResult is the object of one manifest, and the error of its apply.
type applyResult struct {
	resource

	err error
}

// applyWork applies the manifests of a ManifestWork on the spoke, and writes the result to its status on
// the hub.
func (a *Agent) applyWork(ctx context.Context, work *unstructured.Unstructured) error {
	if !slices.Contains(work.GetFinalizers(), workFinalizer) {
		work.SetFinalizers(append(work.GetFinalizers(), workFinalizer))

		updated, err := a.works.Update(ctx, work, metav1.UpdateOptions{FieldManager: fieldManager})
		if err != nil {
			return fmt.Errorf("add finalizer: %w", err)
		}

		work = updated
	}

	appliedWork, err := a.ensureAppliedWork(ctx, work)
	if err != nil {
		return err
	}

	manifests := parseManifests(work)
	results := make([]applyResult, 0, len(manifests))

	for _, manifest := range manifests {
		results = append(results, a.applyManifest(ctx, work, appliedWork, manifest))
	}

	if err := a.recordApplied(ctx, appliedWork, results); err != nil {
		return err
	}

	return a.writeStatus(ctx, work, results)
}

// ensureAppliedWork returns the AppliedManifestWork of a ManifestWork. It creates one if there is none.
func (a *Agent) ensureAppliedWork(ctx context.Context, work *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	appliedWork, err := a.applied.Get(ctx, a.appliedWorkName(work), metav1.GetOptions{})
	if err == nil || !apierrors.IsNotFound(err) {
		return appliedWork, err
	}

	appliedWork = &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "work.open-cluster-management.io/v1", "kind": "AppliedManifestWork",
		"metadata": map[string]any{"name": a.appliedWorkName(work), "finalizers": []any{appliedFinalizer}},
		"spec":     map[string]any{"hubHash": a.hubHash, "agentID": agentID, "manifestWorkName": work.GetName()},
	}}

	return a.applied.Create(ctx, appliedWork, metav1.CreateOptions{FieldManager: fieldManager})
}

// appliedWorkName returns the name of an AppliedManifestWork. The name is unique also if the agents of
// several clusters have the same spoke.
func (a *Agent) appliedWorkName(work *unstructured.Unstructured) string {
	const hashLength = 16

	return a.hubHash[:hashLength] + "-" + a.options.Cluster + "-" + work.GetName()
}

func (a *Agent) applyManifest(ctx context.Context, work, appliedWork, manifest *unstructured.Unstructured) applyResult {
	gvk := manifest.GroupVersionKind()
	result := applyResult{resource: resource{kind: gvk.Kind, namespace: manifest.GetNamespace(), name: manifest.GetName()}}
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

	result.err = a.applyObject(ctx, work, appliedWork, manifest, result.resource)

	return result
}

func (a *Agent) applyObject(ctx context.Context, work, appliedWork, manifest *unstructured.Unstructured, target resource) error {
	strategy, isForced := updateStrategyOf(work, target)
	objectClient := a.resourceClient(target)
	manifest.SetUID("")
	manifest.SetNamespace(target.namespace)

	if shouldDelete(work, target) {
		manifest.SetOwnerReferences([]metav1.OwnerReference{newOwnerReference(appliedWork)})
	}

	var err error

	switch strategy {
	case strategyReadOnly:
		_, err = objectClient.Get(ctx, target.name, metav1.GetOptions{})
	case strategyCreateOnly:
		_, err = objectClient.Create(ctx, manifest, metav1.CreateOptions{FieldManager: fieldManager})
		if apierrors.IsAlreadyExists(err) {
			err = nil
		}
	default:
		_, err = objectClient.Apply(ctx, target.name, manifest, metav1.ApplyOptions{FieldManager: fieldManager, Force: isForced})
	}

	return err
}

// updateStrategyOf returns the update strategy of a manifest, and whether its server-side apply is
// forced.
func updateStrategyOf(work *unstructured.Unstructured, target resource) (strategyType string, isForced bool) {
	strategy, _, _ := unstructured.NestedMap(findManifestConfig(work, target), "updateStrategy")
	name, _, _ := unstructured.NestedString(strategy, "type")
	force, _, _ := unstructured.NestedBool(strategy, "serverSideApply", "force")

	return name, force || name != strategyServerSide
}

// findManifestConfig returns the entry of spec.manifestConfigs for an object, nil if there is none.
func findManifestConfig(work *unstructured.Unstructured, target resource) map[string]any {
	configs, _, _ := unstructured.NestedSlice(work.Object, "spec", "manifestConfigs")

	for _, item := range configs {
		entry, _ := item.(map[string]any)

		identifier, _, _ := unstructured.NestedMap(entry, "resourceIdentifier")
		if matchesIdentifier(identifier, target) {
			return entry
		}
	}

	return nil
}

func matchesIdentifier(identifier map[string]any, target resource) bool {
	get := func(field string) string {
		value, _ := identifier[field].(string)

		return value
	}

	return get("group") == target.gvr.Group && get("resource") == target.gvr.Resource &&
		get("name") == target.name && get("namespace") == target.namespace
}

// shouldDelete returns true if the agent deletes the object together with the ManifestWork
// (spec.deleteOption).
func shouldDelete(work *unstructured.Unstructured, target resource) bool {
	if strategy, _ := updateStrategyOf(work, target); strategy == strategyReadOnly {
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

			return matchesIdentifier(identifier, target)
		})
	default:
		return true
	}
}

func newOwnerReference(appliedWork *unstructured.Unstructured) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: appliedWork.GetAPIVersion(), Kind: appliedWork.GetKind(), Name: appliedWork.GetName(),
		UID: types.UID(string(appliedWork.GetUID())),
	}
}
