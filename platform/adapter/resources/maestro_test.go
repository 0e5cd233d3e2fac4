// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/api/exactjson"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport/maestro"
	"github.com/hyperfleet/hyperfleet/sim/ocm"
	"github.com/hyperfleet/hyperfleet/sim/ocm/ocmtest"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// nestedTask is a task with a ManifestWork whose manifest is applied on the spoke. The variable serial is
// the namespace of the objects on the spoke.
const nestedTask = `
  - name: work
    transport: {client: maestro, maestro: {target_cluster: "{{ .ns }}"}}
    discovery: {by_name: app}
    nested_discoveries:
      - {name: nested, discovery: {by_name: web}}
    manifest:
      apiVersion: work.open-cluster-management.io/v1
      kind: ManifestWork
      metadata: {name: app}
      spec:
        workload:
          manifests:
            - apiVersion: v1
              kind: ConfigMap
              metadata: {name: web, namespace: "{{ .serial }}"}
              data: {value: "{{ .value }}"}
        manifestConfigs:
          - resourceIdentifier: {group: "", resource: configmaps, name: web, namespace: "{{ .serial }}"}
            feedbackRules: [{type: JSONPaths, jsonPaths: [{name: value, path: .data.value}]}]
    lifecycle:
      delete: {when: {expression: deleting}, propagationPolicy: Orphan}
  - name: after
    discovery: {namespace: "{{ .ns }}", by_name: after}
    manifest:
      apiVersion: v1
      kind: ConfigMap
      metadata: {name: after, namespace: "{{ .ns }}"}
    lifecycle:
      apply:
        when:
          expression: "statusFeedbackValue(resources.?nested.?statusFeedback.orValue({}), 'value') == value"
      delete: {when: {expression: "deleting && !resources.?work.hasValue()"}}
`

func (f *fixture) newWork() *unstructured.Unstructured {
	return f.getObject(f.newObject("work.open-cluster-management.io/v1", "ManifestWork", "app"))
}

func TestManifestWork(t *testing.T) {
	t.Parallel()

	f, home := newFixture(t, nestedTask), env.Namespace(t)
	ocmtest.New(t, ocm.Options{Hub: env.Config, Cluster: f.ns, Interval: 100 * time.Millisecond})

	inside := f.newConfigMap("web")
	inside.SetNamespace(home)

	f.requireOutcomes(event{generation: 1, value: "a", serial: home}, "create/Absent", "none/ApplyWhenFalse")

	// The next entry sees the status that the agent reports for a manifest.
	timing.WaitUntil(t, "the feedback opens the gate", func() bool {
		f.runEvent(event{generation: 1, value: "a", serial: home})

		return f.getObject(f.newConfigMap("after")) != nil
	})

	if got := f.getObject(inside).GetAnnotations()[adapter.AnnotationGeneration]; got != "1" {
		t.Errorf("the nested manifest has generation %q", got)
	}

	f.requireOutcomes(event{generation: 2, value: "b", serial: home}, "apply/GenerationChanged", "none/ApplyWhenFalse")
	timing.WaitUntil(t, "the change is applied on the spoke", func() bool {
		data, _, _ := unstructured.NestedString(f.getObject(inside).Object, "data", "value")

		return data == "b"
	})

	// The entry that depends on the deletion of the work waits for it.
	f.requireOutcomes(event{generation: 3, value: "none", deleting: true, serial: home}, "delete/DeleteGate...", "none/ApplyWhenFalse")
	timing.WaitUntil(t, "the work is deleted, and then the object that waits for it", func() bool {
		f.runEvent(event{generation: 3, value: "none", deleting: true, serial: home})

		return f.newWork() == nil && f.getObject(f.newConfigMap("after")) == nil
	})

	if f.getObject(inside) == nil {
		t.Error("the nested object was deleted with the work, although its policy is Orphan")
	}
}

// The labels of ownership, patches and a detachment change the ManifestWork itself, and not its manifests.
func TestGatesOfManifestWorks(t *testing.T) {
	t.Parallel()

	work, _, _ := strings.Cut(nestedTask, "  - name: after")
	f := newFixture(t, strings.NewReplacer("delete: {when: {expression: deleting}, propagationPolicy: Orphan}",
		"detach: {when: {expression: deleting}}\n      patch: [{when: {expression: flag}, document: {metadata: {annotations: {note: '{{ .value }}'}}}}]",
		"metadata: {name: web,", "metadata: {labels: {"+adapter.LabelAdapter+": theirs}, name: web,").Replace(work))

	f.requireOutcomes(event{generation: 1, value: "a", serial: "home"}, "create/Absent")

	if got := f.newWork().GetLabels(); got[adapter.LabelAdapter] != adapterName || got[adapter.LabelResourceID] != f.id {
		t.Errorf("labels of the work: %v", got)
	}

	f.requireOutcomes(event{generation: 1, value: "a", serial: "home"}, "none/GenerationUnchanged")
	f.requireOutcomes(event{generation: 2, value: "b", serial: "home", flag: true}, "patch/PatchGate")

	patched := f.newWork()
	if got := patched.GetAnnotations(); got["note"] != "b" || got[adapter.AnnotationGeneration] != "1" {
		t.Errorf("annotations of the patched work: %v", got)
	}

	f.requireOutcomes(event{generation: 2, value: "b", serial: "home"}, "apply/GenerationChanged")

	if patched = f.newWork(); patched.GetAnnotations()[adapter.AnnotationGeneration] != "2" {
		t.Errorf("annotations of the applied work: %v", patched.GetAnnotations())
	}

	f.requireOutcomes(event{generation: 3, serial: "home", deleting: true}, "detach/DetachGate")

	left := f.newWork()
	if left == nil || len(left.GetLabels()) != 0 || left.GetUID() != patched.GetUID() || left.GetAnnotations()[adapter.AnnotationGeneration] != "2" {
		t.Fatalf("the detached work: %v", left)
	}

	if diff := cmp.Diff(patched.Object["spec"], left.Object["spec"]); diff != "" {
		t.Errorf("the detachment changed the manifests: %s", diff)
	}

	f.requireOutcomes(event{generation: 3, serial: "home", deleting: true}, "none/Detached")
}

func TestManifestWorkRefused(t *testing.T) {
	t.Parallel()

	cases := map[string]struct{ change, to, wantText string }{
		"no ManifestWork":  {"apiVersion: work.open-cluster-management.io/v1\n      kind: ManifestWork", "apiVersion: v1\n      kind: ConfigMap", "discovery looks for a ManifestWork"},
		"wrong namespace":  {"metadata: {name: app}", "metadata: {name: app, namespace: default}", "discovery looks in namespace"},
		"no cluster":       {`target_cluster: "{{ .ns }}"`, `target_cluster: "{{ if .flag }}x{{ end }}"`, "transport.maestro.target_cluster is empty"},
		"wrong generation": {"metadata: {name: web,", `metadata: {annotations: {hyperfleet.io/generation: "0"}, name: web,`, "manifest 1 (ConfigMap web)"},
		"schema":           {"feedbackRules: [{type: JSONPaths", "feedbackRules: [{type: Nonsense", "Unsupported value"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t, strings.Replace(nestedTask, tc.change, tc.to, 1))

			result := f.runEvent(event{generation: 1, value: "a", serial: "default"})
			if err := result.Err(); err == nil || !strings.Contains(err.Error(), tc.wantText) {
				t.Errorf("error %v, want %q", err, tc.wantText)
			}

			if f.newWork() != nil {
				t.Error("the object was created nevertheless")
			}
		})
	}
}

// newNestedManifest returns a manifest inside a work.
func newNestedManifest(name string, annotations map[string]any) map[string]any {
	metadata := map[string]any{"name": name, "namespace": "home"}
	if annotations != nil {
		metadata["annotations"] = annotations
	}

	return map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
}

func newManifestWork(cluster, generation string, manifests ...any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{
			"name": "app", "namespace": cluster,
			"labels":      map[string]any{adapter.LabelAdapter: "dns"},
			"annotations": map[string]any{adapter.AnnotationGeneration: generation},
		},
		"spec": map[string]any{"workload": map[string]any{"manifests": manifests}},
	}}
	o.SetGroupVersionKind(task.ManifestWorkKind())

	return o
}

// listNestedGenerations returns the generations of the manifests in a work.
func listNestedGenerations(t *testing.T, work *unstructured.Unstructured) []string {
	t.Helper()

	list, _, err := unstructured.NestedSlice(work.Object, "spec", "workload", "manifests")
	must.Do(t, err)

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

	c, cluster := clients[transport.Maestro], env.Namespace(t)
	first := newManifestWork(cluster, "1", newNestedManifest("one", nil), newNestedManifest("two", map[string]any{adapter.AnnotationGeneration: "7"}))

	must.Do(t, maestro.Complete(first))

	made, err := c.Create(t.Context(), first)
	must.Do(t, err)

	if diff := cmp.Diff([]string{"one=1", "two=7"}, listNestedGenerations(t, made)); diff != "" {
		t.Errorf("generations of the created work: %s", diff)
	}

	// Labels of the hub and of others stay. The spec is that of the manifest.
	ref := transport.RefTo(made)

	labelled, err := c.Patch(t.Context(), ref, map[string]any{
		"metadata": map[string]any{"labels": map[string]any{"theirs": "x"}},
		"spec":     map[string]any{"deleteOption": map[string]any{"propagationPolicy": "Orphan"}},
	})
	must.Do(t, err)

	applied, _, err := c.Apply(t.Context(), labelled, newManifestWork(cluster, "2", newNestedManifest("one", nil)))
	must.Do(t, err)

	if diff := cmp.Diff([]string{"one="}, listNestedGenerations(t, applied)); diff != "" || applied.GetLabels()["theirs"] != "x" {
		t.Errorf("generations of the applied work: %s, labels %v", diff, applied.GetLabels())
	}

	if _, there, _ := unstructured.NestedMap(applied.Object, "spec", "deleteOption"); there {
		t.Error("the spec still has a field that the manifest does not have")
	}

	if _, _, err := c.Apply(t.Context(), labelled, newManifestWork(cluster, "3")); !errors.Is(err, transport.ErrConflict) {
		t.Errorf("apply with a stale object: %v", err)
	}

	found, err := c.Find(t.Context(), transport.Query{
		GVK: task.ManifestWorkKind(), Namespace: cluster, Labels: map[string]string{adapter.LabelAdapter: "dns"},
	}, transport.Live)
	if err != nil || len(found) != 1 {
		t.Errorf("Find() = %d, %v", len(found), err)
	}
}

// TestHubKeepsNumbers checks that a change of an integer above 2^53 is applied, and arrives as it is. As float64, both
// values are the same.
func TestHubKeepsNumbers(t *testing.T) {
	t.Parallel()

	c, cluster := clients[transport.Maestro], env.Namespace(t)

	newNumber := func(number int64) *unstructured.Unstructured {
		manifest := newNestedManifest("one", nil)
		manifest["data"] = map[string]any{"number": number, "list": []any{map[string]any{"number": number}}}

		return newManifestWork(cluster, "1", manifest)
	}

	live, err := c.Create(t.Context(), newNumber(9007199254740992))
	must.Do(t, err)

	applied, _, err := c.Apply(t.Context(), live, newNumber(9007199254740993))
	must.Do(t, err)

	if diff := cmp.Diff(newNumber(9007199254740993).Object["spec"], applied.Object["spec"]); diff != "" {
		t.Errorf("spec of the applied work: %s", diff)
	}
}

func TestMergePatches(t *testing.T) {
	t.Parallel()

	parse := func(text string) (out map[string]any) {
		must.Do(t, exactjson.Unmarshal([]byte(text), &out))

		return out
	}

	for _, test := range []struct{ name, from, to, patch string }{
		{"nothing", `{"a": 1, "b": {"c": [1]}}`, `{"a": 1, "b": {"c": [1]}}`, `{}`},
		{"the same number", `{"a": 100}`, `{"a": 1e2}`, `{}`},
		{"large integers", `{"a": 9007199254740992}`, `{"a": 9007199254740993}`, `{"a": 9007199254740993}`},
		{"larger than int64", `{"a": 18446744073709551614}`, `{"a": 18446744073709551615}`, `{"a": 18446744073709551615}`},
		{"decimals", `{"a": 0.1}`, `{"a": 0.1000000000000000000000001}`, `{"a": 0.1000000000000000000000001}`},
		{"added and removed", `{"a": {"b": 1, "c": 2}}`, `{"a": {"c": 2, "d": 3}}`, `{"a": {"b": null, "d": 3}}`},
		{"another type", `{"a": {"b": 1}, "c": 1}`, `{"a": 1, "c": {"d": 1}}`, `{"a": 1, "c": {"d": 1}}`},
		{"lists as a whole", `{"a": [{"b": 1, "c": 1}]}`, `{"a": [{"b": 1}]}`, `{"a": [{"b": 1}]}`},
	} {
		from, to := parse(test.from), parse(test.to)

		patch, err := transport.CreateMergePatch(from, to)
		if diff := cmp.Diff(parse(test.patch), patch); diff != "" || err != nil {
			t.Errorf("%s: %v, (-want +got):\n%s", test.name, err, diff)
		}

		patched, err := transport.ApplyMergePatch(from, patch)
		if again, errAgain := transport.CreateMergePatch(patched, to); len(again) > 0 || err != nil || errAgain != nil {
			t.Errorf("%s: %v remains after the patch, %v, %v", test.name, again, err, errAgain)
		}
	}

	// Null removes a field at any depth, also in an object that does not exist (RFC 7396).
	patched, err := transport.ApplyMergePatch(parse(`{"a": 1}`), parse(`{"a": null, "b": {"c": null, "d": 9007199254740993}}`))
	if diff := cmp.Diff(parse(`{"b": {"d": 9007199254740993}}`), patched); diff != "" || err != nil {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
}

// The deletion option for the objects on the cluster is set before the work is deleted.
func TestHubDeleteSetsDeleteOption(t *testing.T) {
	t.Parallel()

	for policy, want := range map[metav1.DeletionPropagation]string{
		metav1.DeletePropagationBackground: "SelectivelyOrphan",
		metav1.DeletePropagationForeground: "Foreground",
		metav1.DeletePropagationOrphan:     "Orphan",
	} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()

			c, cluster := clients[transport.Maestro], env.Namespace(t)
			held := newManifestWork(cluster, "1", newNestedManifest("one", nil))
			held.SetFinalizers([]string{"example.io/hold"})

			must.Do(t, unstructured.SetNestedField(held.Object, "SelectivelyOrphan", "spec", "deleteOption", "propagationPolicy"))

			made, err := c.Create(t.Context(), held)
			must.Do(t, err)

			must.Do(t, c.Delete(t.Context(), transport.RefTo(made), policy))

			got, err := findOne(t.Context(), c, transport.Ref{GVK: task.ManifestWorkKind(), Namespace: cluster, Name: "app"}, transport.Live)
			must.Do(t, err)

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

func TestHubNested(t *testing.T) {
	t.Parallel()

	labelled := func(name, generation string) map[string]any {
		object := newNestedManifest(name, map[string]any{adapter.AnnotationGeneration: generation})
		must.Do(t, unstructured.SetNestedField(object, "web", "metadata", "labels", "app"))

		return object
	}
	full := newManifestWork("c1", "9", labelled("a", "1"), labelled("c", "10"), labelled("b", "10"), newNestedManifest("d", nil))
	full.Object["status"] = map[string]any{"resourceStatus": map[string]any{"manifests": []any{
		map[string]any{
			"resourceMeta":   map[string]any{"kind": "ConfigMap", "group": "", "namespace": "home", "name": "b"},
			"statusFeedback": map[string]any{"values": []any{map[string]any{"name": "x"}}},
			"conditions":     []any{map[string]any{"type": "Applied", "status": "True"}},
		},
		map[string]any{"resourceMeta": map[string]any{"kind": "Secret", "namespace": "home", "name": "b"}, "conditions": []any{}},
	}}}

	for name, tc := range map[string]struct {
		wanted transport.Query
		want   string
	}{
		"by name":               {transport.Query{Name: "a"}, "a"},
		"by name, elsewhere":    {transport.Query{Name: "a", Namespace: "other"}, ""},
		"highest, then by name": {transport.Query{Labels: map[string]string{"app": "web"}}, "b with status"},
		"none":                  {transport.Query{Labels: map[string]string{"app": "db"}}, ""},
	} {
		found, err := maestro.FindNested(full.DeepCopy(), tc.wanted)
		must.Do(t, err)

		got := ""
		if found != nil {
			got = found.GetName()
			if _, hasStatus := found.Object["statusFeedback"]; hasStatus {
				got += " with status"
			}
		}

		if got != tc.want {
			t.Errorf("%s: Nested() = %q, want %q", name, got, tc.want)
		}
	}
}

// The feedback for an earlier spec of the work says nothing about its manifests.
func TestHubNestedOfAnEarlierSpec(t *testing.T) {
	t.Parallel()

	for observed, want := range map[int64]bool{1: false, 2: true} {
		work := newManifestWork("c1", "2", newNestedManifest("a", nil))
		work.SetGeneration(2)
		work.Object["status"] = map[string]any{"resourceStatus": map[string]any{"manifests": []any{map[string]any{
			"resourceMeta":   map[string]any{"kind": "ConfigMap", "group": "", "namespace": "home", "name": "a"},
			"statusFeedback": map[string]any{"values": []any{map[string]any{"name": "x"}}},
			"conditions": []any{
				map[string]any{"type": "Applied", "status": "True", "observedGeneration": observed},
				map[string]any{"type": "Available", "status": "True"},
			},
		}}}}

		found, err := maestro.FindNested(work, transport.Query{Name: "a"})
		must.Do(t, err)

		_, hasFeedback := found.Object["statusFeedback"]
		_, hasConditions := found.Object["conditions"]

		if hasFeedback != want || hasConditions != want {
			t.Errorf("observed generation %d: feedback %v, conditions %v, want %v", observed, hasFeedback, hasConditions, want)
		}
	}
}

// requireConditions compares the conditions of a status with prefixes of the form "type status reason, of
// the generation: message".
func requireConditions(t *testing.T, what string, of map[string]any, want []string) {
	t.Helper()

	list, _, err := unstructured.NestedSlice(of, "conditions")
	if err != nil || len(list) != len(want) {
		t.Errorf("%s: conditions %v, %v, want %v", what, list, err, want)

		return
	}

	for i, item := range list {
		one, _ := item.(map[string]any)
		text := fmt.Sprintf("%s %s %s", one["type"], one["status"], one["reason"])

		if one["observedGeneration"] != nil {
			text += ", of the generation"
		}

		if text += fmt.Sprintf(": %s", one["message"]); !strings.HasPrefix(text, want[i]) {
			t.Errorf("%s: condition %q, want %q", what, text, want[i])
		}
	}
}

// newHidingAPIServer returns the configuration of an API server that does not show the objects of a name.
func newHidingAPIServer(name string) *rest.Config {
	out := rest.CopyConfig(env.Config)
	out.Wrap(func(to http.RoundTripper) http.RoundTripper {
		return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/"+name) {
				return &http.Response{StatusCode: http.StatusForbidden, Body: http.NoBody, Request: r}, nil
			}

			return to.RoundTrip(r)
		})
	})

	return out
}

// TestWorkAgentStatus compares the simulated work agent with the statuses that the real agent was observed
// to report for existing and missing manifests, and for kinds that the cluster does not know or show. Only
// the conditions of the work and the condition Applied have the generation.
func TestWorkAgentStatus(t *testing.T) {
	t.Parallel()

	const (
		applied, failed      = "Applied True AppliedManifestComplete, of the generation", "Applied False AppliedManifestFailed, of the generation"
		complete, incomplete = "Applied True AppliedManifestWorkComplete, of the generation", "Applied False AppliedManifestWorkFailed, of the generation"
	)

	f := newFixture(t, newSimpleTask())
	manifest := func(kind, name string, data any) map[string]any {
		return map[string]any{"apiVersion": "v1", "kind": kind, "metadata": map[string]any{"name": name, "namespace": f.ns}, "data": data}
	}
	agent, err := ocm.Start(ocm.Options{Hub: env.Config, Spoke: newHidingAPIServer("hidden"), Cluster: f.ns, Interval: 100 * time.Millisecond})
	must.Do(t, err)

	t.Cleanup(agent.Close)

	for name, tc := range map[string]struct {
		manifests []any
		want      [][]string
		of        []string
	}{
		"there": {
			[]any{manifest("ConfigMap", "there", nil)},
			[][]string{{applied, "Available True ResourceAvailable", "StatusFeedbackSynced True NoStatusFeedbackSynced"}},
			[]string{complete, "Available True ResourcesAvailable, of the generation: All resources are available"},
		},
		"unknown": {
			[]any{manifest("Nothing", "unknown", nil), manifest("ConfigMap", "hidden", nil)},
			[][]string{{failed, "Available Unknown IncompleteResourceMeta"}, {"Applied", "Available Unknown FetchingResourceFailed"}},
			[]string{incomplete, "Available Unknown ResourcesStatusUnknown, of the generation: 2 of 2 resources have unknown status"},
		},
		"missing": {
			[]any{manifest("ConfigMap", "missing", map[string]any{"no/key": "x"}), manifest("Nothing", "unknown", nil)},
			[][]string{{failed, "Available False ResourceNotAvailable"}, {failed, "Available Unknown IncompleteResourceMeta"}},
			[]string{incomplete, "Available False ResourcesNotAvailable, of the generation: 1 of 2 resources are not available"},
		},
	} {
		work := newManifestWork(f.ns, "1", tc.manifests...)
		work.SetName(name)

		must.Do(t, env.Client.Create(t.Context(), work))

		var manifests []any

		status := map[string]any{}

		timing.WaitUntil(t, "the agent reports the conditions", func() bool {
			status, _, _ = unstructured.NestedMap(f.getObject(work).Object, "status")
			manifests, _, _ = unstructured.NestedSlice(status, "resourceStatus", "manifests")

			return len(manifests) == len(tc.manifests)
		})

		for i, item := range manifests {
			requireConditions(t, name, item.(map[string]any), tc.want[i])
		}

		requireConditions(t, name, status, tc.of)
	}

	// The agent deletes the objects that it created. Kubernetes' garbage collector deletes the rest.
	must.Do(t, env.Client.Delete(t.Context(), f.newObject("work.open-cluster-management.io/v1", "ManifestWork", "there")))
	timing.WaitUntil(t, "the agent's object is deleted", func() bool {
		made := f.getObject(f.newConfigMap("there"))

		return made == nil || made.GetDeletionTimestamp() != nil
	})
}
