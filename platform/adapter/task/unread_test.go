// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"testing/fstest"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// TestUnreadFieldsChangeNoResult changes each part of an object, and checks that each change that changes the value of an
// expression or a template counts as a change of what the task file reads.
func TestUnreadFieldsChangeNoResult(t *testing.T) {
	t.Parallel()

	const object = `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "generation": 1, "resourceVersion": "1",
	  "labels": {"a.io/b": "1"}, "annotations": {"c": "1"}, "finalizers": ["f"], "ownerReferences": [{"uid": "u"}]},
	  "data": {"config.yaml": "1", "config": "2"}, "spec": {"hard": {"pods": "1", "requests.cpu": "1"}, "list": [{"a": "1"}, {"a": "2"}], "empty": {}},
	  "status": {"phase": "A", "conditions": [{"type": "Ready", "status": "True"}]}}`

	before, changes := &unstructured.Unstructured{}, map[string]*unstructured.Unstructured{}
	must.Do(t, before.UnmarshalJSON([]byte(object)))

	for _, path := range listPaths(before.Object, nil) {
		for _, to := range []any{removed, nil, map[string]any{}, map[string]any{"x": "1"}, map[string]any{"x": nil}, []any{}, "changed"} {
			after := before.DeepCopy()
			setPath(after.Object, path, to)
			changes[fmt.Sprintf("%v at %v", to, path)] = after
		}
	}

	for _, expression := range []string{
		`o.status.phase`, `o["status"]["phase"]`, `o.?status.?phase`, `o[?"status"][?"phase"].orValue("n")`, `"1"`,
		`has(o.status)`, `has(o.status.phase)`, `has(o.spec.hard.pods)`, `o.?spec.?empty.hasValue()`, `has(o.spec.empty.x)`, `o.spec.empty.?x.hasValue()`,
		`o.spec.list[1].a`, `o.spec.list.exists(l, l.a == "2")`, `o.spec.list.map(l, l.a)`, `o.spec.list.filter(quota, quota.a == "2").size()`,
		`o.spec.list.all(l, o.status.phase == "A" && l.a != "")`, `[o].map(r, r.status.phase)`, `[o].exists(r, r.status.phase == "A")`,
		`quantity(o.spec.hard.pods).isGreaterThan(quantity("0"))`, `toJson(o)`, `toJson(o.spec)`, `o == {}`, `dyn(o).status.phase`,
		`dig(o, "spec.hard").pods`, `dig(o, "spec.hard")["requests.cpu"]`, `dig(o, "spec.hard").?pods.orValue("0")`, `dig(o, "spec.hard.requests.cpu")`,
		`dig(o, "data.config.yaml")`, `dig(o, "metadata.labels.a.io/b")`, `dig(o.metadata, "labels.a.io/b")`, `dig(o.metadata.labels, "a.io/b")`,
		`dig(o, "metadata.ownerReferences.0.uid")`, `dig(o, "metadata.labels")["a.io/b"]`, `dig(o, "")`, `dig(resources, "quota")`,
		`dig(resources, "quota.status").phase`, `dig(resources, "quota.spec.hard").pods`, `dig(o, "spec." + "hard.pods")`,
		`resources["qu" + "ota"].status.phase`, `resources.map(n, resources[n].?status.?phase)`, `resources.exists(n, n == "quota")`,
		`resources.?quota.optMap(q, q.status.phase)`, `resources.?quota.optFlatMap(q, q.?status.?phase)`,
		`resources.?quota.or(resources.?other).value().status.phase`, `resources.?quota.orValue({}).?status.?phase.orValue("n")`,
		`(1 == 1 ? o : resources.other).status.phase`, `{"a": o.status}.a.phase`, `{"a": [o]}["a"][0].status.phase`,
		`size(resources)`, `resources.size()`, `"quota" in resources`, `"status" in o`, `"phase" in o.status`, `size(o.spec.list)`, `size(o)`,
		`conditionStatus(o.?status.?conditions, "Ready")`, `conditionStatus(o.status.conditions, o.status.conditions[0].type)`,
		`o.metadata.generation`, `o.metadata.finalizers`, `o.metadata.ownerReferences[0].uid`, `o.metadata.annotations.c`, `o.metadata.labels["a.io/b"]`,
	} {
		text := regexp.MustCompile(`\bo\b`).ReplaceAllString(expression, "resources.quota")
		checkReads(t, before, changes, fmt.Sprintf("{expression: %q, default: none}", text))
	}

	for _, template := range []string{
		`{{ .resources.quota.status.phase }}`, `{{ $x := .resources.quota }}{{ $x.status.phase }}`, `{{ $.resources.quota.status.phase }}`,
		`{{ $x := . }}{{ $x.resources.quota.status.phase }}`, `{{ $x := .resources }}{{ with $x.quota }}{{ .status.phase }}{{ end }}`,
		`{{ with .resources }}{{ .quota.status.phase }}{{ end }}`, `{{ with . }}{{ .resources.quota.status.phase }}{{ end }}`,
		`{{ range .resources }}{{ if .status }}{{ .status.phase }}{{ end }}{{ end }}`, `{{ range $n, $o := .resources }}{{ $o.spec.hard.pods }}{{ end }}`,
		`{{ range .resources.quota.spec.list }}{{ .a }}{{ $.resources.quota.status.phase }}{{ end }}`, `{{ (.resources.quota).status.phase }}`,
		`{{ range .resources.quota.none }}x{{ else }}{{ .resources.quota.status.phase }}{{ end }}`,
		`{{ define "t" }}{{ .status.phase }}{{ end }}{{ template "t" .resources.quota }}`, `{{ block "t" . }}{{ .resources.quota.status.phase }}{{ end }}`,
		`{{ define "t" }}{{ .resources.quota.status.phase }}{{ end }}{{ with .resources.other }}{{ template "t" $ }}{{ end }}`,
		`{{ if .resources.quota.spec.empty.x }}1{{ end }}`, `{{ if .resources.quota.status }}1{{ end }}`, `{{ .resources.quota.status.phase | default "n" }}`,
		`{{ if eq .resources.quota.status.phase "A" }}1{{ end }}`, `{{ if and .resources.quota.status (eq .resources.quota.spec.hard.pods "1") }}1{{ end }}`,
	} {
		checkReads(t, before, changes, strconv.Quote(template))
	}

	for _, field := range []string{"resources", "resources.quota", "resources.quota.spec.hard", "resources.quota.metadata.labels.a.io/b",
		"resources.quota.spec.list.1.a", "resources.quota.data.config.yaml"} {
		checkReads(t, before, changes, "{field: "+field+"}")
	}
}

// checkReads checks a value of a payload with each change of the object quota.
func checkReads(t *testing.T, before *unstructured.Unstructured, changes map[string]*unstructured.Unstructured, value string) {
	t.Helper()

	loaded, err := task.Load(fstest.MapFS{"t.yaml": {Data: []byte(`
resources:
- name: quota
  manifest: {apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: n}}
  discovery: {namespace: n, by_name: x}
- name: other
  manifest: {apiVersion: v1, kind: Secret, metadata: {name: x, namespace: n}}
  discovery: {namespace: n, by_name: x}
post:
  payloads:
  - {name: report, build: {value: ` + value + `}}
  post_actions:
  - {name: tell, api_call: {method: PUT, url: "x", body: "{{ .report }}"}}
`)}}, "t.yaml", nil)
	must.Do(t, err)

	render := func(quota *unstructured.Unstructured) string {
		value, err := loaded.Payloads[0].Build.Render(t.Context(), map[string]any{
			"resources": map[string]any{"quota": quota.Object, "other": before.Object},
		})

		return fmt.Sprint(value, err != nil)
	}

	reads, rendered := loaded.ListReads(), render(before)

	for change, after := range changes {
		// Both directions, so that fields also appear.
		differs := reads.Differ(before, after) && reads.Differ(after, before)
		if got := render(after); got != rendered && !differs {
			t.Errorf("%s: %s changes %s to %s, but is not read", value, change, rendered, got)
		}
	}
}

// removed is the value of a field to remove.
var removed = struct{}{}

// listPaths returns the paths of all values below a value. It omits those that name the object.
func listPaths(value any, path []any) (out [][]any) {
	add := func(key, child any) {
		childPath := append(slices.Clone(path), key)
		out = append(append(out, childPath), listPaths(child, childPath)...)
	}

	switch typed := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(typed)) {
			if !slices.Contains([]string{"apiVersion", "kind", "metadata", "name"}, key) || len(path) > 1 {
				add(key, typed[key])
			} else if key == "metadata" {
				out = append(out, listPaths(typed[key], []any{key})...)
			}
		}
	case []any:
		for i, item := range typed {
			add(i, item)
		}
	}

	return out
}

func setPath(value any, path []any, to any) {
	for ; len(path) > 1; path = path[1:] {
		if key, isKey := path[0].(string); isKey {
			value = value.(map[string]any)[key]
		} else {
			value = value.([]any)[path[0].(int)]
		}
	}

	switch fields, isMap := value.(map[string]any); {
	case !isMap && to == removed:
	case !isMap:
		value.([]any)[path[0].(int)] = to
	case to == removed:
		delete(fields, path[0].(string))
	default:
		fields[path[0].(string)] = to
	}
}
