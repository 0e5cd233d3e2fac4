// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ocm

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
)

// said is a condition without its time.
func said(conditions []metav1.Condition) map[string]metav1.Condition {
	out := map[string]metav1.Condition{}

	for _, one := range conditions {
		one.LastTransitionTime = metav1.Time{}
		out[one.Type] = one
	}

	return out
}

// TestWhatTheAgentTells is what the real work agent was seen to say of manifests that are
// there, that are not, and whose kind the cluster does not know: the generation is in what
// is said of the work and of applying, and nowhere else.
func TestWhatTheAgentTells(t *testing.T) {
	t.Parallel()

	configMaps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	there := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "there", "namespace": "shop"},
	}}
	agent := &Agent{spoke: fake.NewSimpleDynamicClient(runtime.NewScheme(), there)}
	work := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"generation": int64(3)}}}

	var manifests []manifestStatus

	for i, result := range []brought{
		{resource: resource{gvr: configMaps, kind: "ConfigMap", namespace: "shop", name: "there"}},
		{resource: resource{gvr: configMaps, kind: "ConfigMap", namespace: "shop", name: "gone"}},
		{resource: resource{kind: "Nothing", name: "unknown"}, err: errors.New("no matches for kind")},
	} {
		manifests = append(manifests, agent.manifest(t.Context(), work, i, result, nil))
	}

	complete := metav1.Condition{
		Type: "Applied", Status: "True", Reason: "AppliedManifestComplete", Message: "Apply manifest complete", ObservedGeneration: 3,
	}

	for i, want := range [][]metav1.Condition{
		{
			complete,
			{Type: "Available", Status: "True", Reason: "ResourceAvailable", Message: "Resource is available"},
			{Type: "StatusFeedbackSynced", Status: "True", Reason: "NoStatusFeedbackSynced"},
		},
		{complete, {Type: "Available", Status: "False", Reason: "ResourceNotAvailable", Message: "Resource is not available"}},
		{
			{
				Type: "Applied", Status: "False", Reason: "AppliedManifestFailed",
				Message: "Failed to apply manifest: no matches for kind", ObservedGeneration: 3,
			},
			{Type: "Available", Status: "Unknown", Reason: "IncompleteResourceMeta", Message: "Resource meta is incomplete"},
		},
	} {
		if diff := cmp.Diff(said(want), said(manifests[i].Conditions)); diff != "" {
			t.Errorf("manifest %d (-want +got):\n%s", i, diff)
		}
	}

	failed := metav1.Condition{
		Type: "Applied", Status: "False", Reason: "AppliedManifestWorkFailed", Message: "Failed to apply manifest work",
	}
	applied := metav1.Condition{
		Type: "Applied", Status: "True", Reason: "AppliedManifestWorkComplete", Message: "Apply manifest work complete",
	}

	for name, tc := range map[string]struct {
		of   []manifestStatus
		want []metav1.Condition
	}{
		"all there": {manifests[:1], []metav1.Condition{
			applied, {Type: "Available", Status: "True", Reason: "ResourcesAvailable", Message: "All resources are available"},
		}},
		"one missing, one unknown": {manifests, []metav1.Condition{
			failed, {Type: "Available", Status: "False", Reason: "ResourcesNotAvailable", Message: "1 of 3 resources are not available"},
		}},
		"unknown": {manifests[2:], []metav1.Condition{
			failed, {Type: "Available", Status: "Unknown", Reason: "ResourcesStatusUnknown", Message: "1 of 1 resources have unknown status"},
		}},
	} {
		if diff := cmp.Diff(tc.want, summary(tc.of)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// What is said of the work as a whole has the generation that it is about, which expressions
// are told to compare.
func TestTheWorkSaysWhichGeneration(t *testing.T) {
	t.Parallel()

	work := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "work.open-cluster-management.io/v1", "kind": "ManifestWork",
		"metadata": map[string]any{"name": "web", "namespace": "site", "generation": int64(3)},
	}}
	hub := fake.NewSimpleDynamicClient(runtime.NewScheme(), work.DeepCopy())
	agent := &Agent{works: hub.Resource(worksResource()).Namespace("site"), spoke: fake.NewSimpleDynamicClient(runtime.NewScheme())}

	if err := agent.tell(t.Context(), work, []brought{{resource: resource{kind: "Nothing", name: "unknown"}}}); err != nil {
		t.Fatal(err)
	}

	told, err := agent.works.Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}

	var got status
	if err := reread(told.Object["status"], &got); err != nil {
		t.Fatal(err)
	}

	if len(got.Conditions) != 2 {
		t.Errorf("said %+v, want Applied and Available", got.Conditions)
	}

	for _, one := range got.Conditions {
		if one.ObservedGeneration != 3 {
			t.Errorf("%s is about generation %d, want 3", one.Type, one.ObservedGeneration)
		}
	}
}

// A look at an object that fails says nothing about it.
func TestAFailedLookIsUnknown(t *testing.T) {
	t.Parallel()

	got := availability(true, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "x", nil))
	if got.Status != metav1.ConditionUnknown || got.Reason != "FetchingResourceFailed" || got.Message == "" {
		t.Errorf("said %+v", got)
	}
}
