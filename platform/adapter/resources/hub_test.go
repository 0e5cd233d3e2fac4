// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport/kubernetes"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport/maestro"
)

func newHub(t *testing.T) maestro.Client {
	t.Helper()

	c, err := maestro.New(kubernetes.Options{Config: env.Config, Adapter: "dns"})
	if err != nil {
		t.Fatal(err)
	}

	return c
}

// nested is a manifest inside of a work.
func nested(name string, annotations map[string]any) map[string]any {
	metadata := map[string]any{"name": name, "namespace": "home"}
	if annotations != nil {
		metadata["annotations"] = annotations
	}

	return map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
}

func work(cluster, generation string, manifests ...any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{
			"name": "app", "namespace": cluster,
			"labels":      map[string]any{adapter.LabelAdapter: "dns"},
			"annotations": map[string]any{adapter.AnnotationGeneration: generation},
		},
		"spec": map[string]any{"workload": map[string]any{"manifests": manifests}},
	}}
	o.SetGroupVersionKind(task.ManifestWork())

	return o
}

// generations are those of the manifests in a work.
func generations(t *testing.T, work *unstructured.Unstructured) []string {
	t.Helper()

	list, _, err := unstructured.NestedSlice(work.Object, "spec", "workload", "manifests")
	if err != nil {
		t.Fatal(err)
	}

	var found []string

	for _, item := range list {
		object, _ := item.(map[string]any)
		manifest := &unstructured.Unstructured{Object: object}
		found = append(found, manifest.GetName()+"="+manifest.GetAnnotations()[adapter.AnnotationGeneration])
	}

	return found
}

func TestHubWorks(t *testing.T) {
	t.Parallel()

	c, cluster := newHub(t), env.Namespace(t)
	first := work(cluster, "1", nested("one", nil), nested("two", map[string]any{adapter.AnnotationGeneration: "7"}))

	if err := maestro.Complete(first); err != nil {
		t.Fatal(err)
	}

	made, err := c.Create(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}

	if diff := cmp.Diff([]string{"one=1", "two=7"}, generations(t, made)); diff != "" {
		t.Errorf("made: %s", diff)
	}

	// The hub's own and others' labels stay, the spec is the manifest's.
	ref := transport.RefTo(made)

	labelled, err := c.Patch(t.Context(), ref, map[string]any{
		"metadata": map[string]any{"labels": map[string]any{"theirs": "x"}},
		"spec":     map[string]any{"deleteOption": map[string]any{"propagationPolicy": "Orphan"}},
	})
	if err != nil {
		t.Fatal(err)
	}

	applied, _, err := c.Apply(t.Context(), labelled, work(cluster, "2", nested("one", nil)))
	if err != nil {
		t.Fatal(err)
	}

	if diff := cmp.Diff([]string{"one="}, generations(t, applied)); diff != "" || applied.GetLabels()["theirs"] != "x" {
		t.Errorf("applied: %s, labels %v", diff, applied.GetLabels())
	}

	if _, there, _ := unstructured.NestedMap(applied.Object, "spec", "deleteOption"); there {
		t.Error("what the manifest does not say is still in the spec")
	}

	if _, _, err := c.Apply(t.Context(), labelled, work(cluster, "3")); !errors.Is(err, transport.ErrConflict) {
		t.Errorf("apply on a stale read: %v", err)
	}

	found, err := c.Find(t.Context(), transport.Query{
		GVK: task.ManifestWork(), Namespace: cluster, Labels: map[string]string{adapter.LabelAdapter: "dns"},
	}, transport.Live)
	if err != nil || len(found) != 1 {
		t.Errorf("Find() = %d, %v", len(found), err)
	}
}

// What becomes of the objects on the cluster is set before the work is deleted.
func TestHubDeleteSetsTheOption(t *testing.T) {
	t.Parallel()

	for policy, want := range map[metav1.DeletionPropagation]string{
		metav1.DeletePropagationBackground: "SelectivelyOrphan",
		metav1.DeletePropagationForeground: "Foreground",
		metav1.DeletePropagationOrphan:     "Orphan",
	} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()

			c, cluster := newHub(t), env.Namespace(t)
			held := work(cluster, "1", nested("one", nil))
			held.SetFinalizers([]string{"example.io/hold"})

			if err := unstructured.SetNestedField(held.Object, "SelectivelyOrphan", "spec", "deleteOption", "propagationPolicy"); err != nil {
				t.Fatal(err)
			}

			made, err := c.Create(t.Context(), held)
			if err != nil {
				t.Fatal(err)
			}

			if err := c.Delete(t.Context(), transport.RefTo(made), policy); err != nil {
				t.Fatal(err)
			}

			got, err := one(t.Context(), c, transport.Ref{GVK: task.ManifestWork(), Namespace: cluster, Name: "app"}, transport.Live)
			if err != nil {
				t.Fatal(err)
			}

			option, _, _ := unstructured.NestedString(got.Object, "spec", "deleteOption", "propagationPolicy")
			if got.GetDeletionTimestamp() == nil || option != want {
				t.Errorf("deletion %v, option %q, want %q", got.GetDeletionTimestamp(), option, want)
			}

			if _, err := c.Patch(t.Context(), transport.RefTo(got), map[string]any{"metadata": map[string]any{"finalizers": nil}}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestWorksThatCanNotBeCompleted(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		work *unstructured.Unstructured
		want string
	}{
		"generation of the work": {work("c1", "x", nested("one", nil)), `"x" is no whole number`},
		"generation of a manifest": {
			work("c1", "1", nested("one", nil), nested("two", map[string]any{adapter.AnnotationGeneration: "0"})),
			`manifest 2 (ConfigMap two): annotation hyperfleet.io/generation: "0"`,
		},
		"manifest that is no object": {work("c1", "1", "text"), "manifest 1 is no object"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if err := maestro.Complete(tc.work); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Complete() = %v, want %q", err, tc.want)
			}
		})
	}
}

func TestHubCheck(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		config adapter.Maestro
		want   string
	}{
		"hub":     {config: adapter.Maestro{KubeConfigPath: "hub.kubeconfig"}},
		"gRPC":    {config: adapter.Maestro{KubeConfigPath: "hub.kubeconfig", GRPCServerAddress: "maestro:8090"}, want: "is not supported"},
		"HTTP":    {config: adapter.Maestro{HTTPServerAddress: "http://maestro:8000"}, want: "is not supported"},
		"nothing": {want: "set kube_config_path"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			err := maestro.Check(&tc.config)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("Check() = %v, want %q", err, tc.want)
			}
		})
	}
}

func TestHubNested(t *testing.T) {
	t.Parallel()

	labelled := func(name, generation string) map[string]any {
		object := nested(name, map[string]any{adapter.AnnotationGeneration: generation})
		if err := unstructured.SetNestedField(object, "web", "metadata", "labels", "app"); err != nil {
			t.Fatal(err)
		}

		return object
	}
	full := work("c1", "9", labelled("a", "1"), labelled("c", "10"), labelled("b", "10"), nested("d", nil))
	full.Object["status"] = map[string]any{"resourceStatus": map[string]any{"manifests": []any{
		map[string]any{
			"resourceMeta":   map[string]any{"kind": "ConfigMap", "group": "", "namespace": "home", "name": "b"},
			"statusFeedback": map[string]any{"values": []any{map[string]any{"name": "x"}}},
			"conditions":     []any{map[string]any{"type": "Applied", "status": "True"}},
		},
		map[string]any{"resourceMeta": map[string]any{"kind": "Secret", "namespace": "home", "name": "b"}, "conditions": []any{}},
	}}}

	cases := map[string]struct {
		wanted transport.Query
		want   string
		told   bool
	}{
		"by name":               {wanted: transport.Query{Name: "a"}, want: "a"},
		"by name, elsewhere":    {wanted: transport.Query{Name: "a", Namespace: "other"}},
		"highest, then by name": {wanted: transport.Query{Labels: map[string]string{"app": "web"}}, want: "b", told: true},
		"none":                  {wanted: transport.Query{Labels: map[string]string{"app": "db"}}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, err := maestro.Nested(full.DeepCopy(), tc.wanted)
			if err != nil {
				t.Fatal(err)
			}

			if got == nil {
				if tc.want != "" {
					t.Errorf("Nested() finds nothing, want %s", tc.want)
				}

				return
			}

			_, feedback := got.Object["statusFeedback"]
			if got.GetName() != tc.want || feedback != tc.told {
				t.Errorf("Nested() = %s, told %v; want %s, %v", got.GetName(), feedback, tc.want, tc.told)
			}
		})
	}

	if _, there := full.Object["spec"].(map[string]any)["statusFeedback"]; there {
		t.Error("the work was changed")
	}
}
