// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// readableObject is an object whose fields TestReads changes.
const readableObject = `{"apiVersion": "v1", "kind": "Any", "metadata": {"name": "x", "resourceVersion": "1",
  "labels": {"a.io/b": "1"}, "annotations": {"c": "1"}},
  "spec": {"hard": {"pods": "1"}}, "status": {"phase": "A", "hard": {"requests.cpu": "1"}, "conditions": [{"type": "Ready"}]}}`

// differ reports whether the states of an object before and after a change of a field differ in what a task file reads.
func differ(t *testing.T, loaded *task.Task, group, kind, field string) bool {
	t.Helper()

	before := &unstructured.Unstructured{}
	must.Do(t, before.UnmarshalJSON([]byte(readableObject)))
	before.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: "v1", Kind: kind})

	after := before.DeepCopy()
	after.SetResourceVersion("2") // differs after each change

	must.Do(t, unstructured.SetNestedField(after.Object, "changed", strings.Split(field, "/")...))

	return loaded.ListReads().Differ(before, after)
}

// TestReads has parts of a task file, and for each the fields of its objects that it reads. The other fields do not count.
func TestReads(t *testing.T) {
	t.Parallel()

	const file = `
params: [{name: id, source: event.id}]
resources:
- name: quota
  manifest: {apiVersion: v1, kind: ResourceQuota, metadata: {name: "{{ .id }}", namespace: n}MANIFEST}
  discovery: {namespace: n, by_name: "{{ .id }}"}
  lifecycle: {LIFECYCLE}
- name: other
  manifest: {apiVersion: v1, kind: ConfigMap, metadata: {name: "{{ .id }}", namespace: OTHER}}
  discovery: {namespace: OTHER, by_name: "{{ .id }}"}
- name: versions
  manifest: {apiVersion: v1, kind: Pod, metadata: {name: 'x-{{ .now | lower | replace ":" "-" }}', namespace: n}}
  discovery: {namespace: n, by_selectors: {label_selector: {hyperfleet.io/resource-name: versions}}}
  retention: {historyLimit: 1RETENTION}
post:
  payloads:
  - {name: report, build: {value: BUILD}}
  post_actions:
  - {name: tell, ACTION api_call: {method: PUT, url: "x", body: "{{ .report }}"}}
`

	fields := []string{"metadata/labels", "metadata/annotations", "spec/hard", "status/phase", "status/hard", "status/conditions"}

	for name, tc := range map[string]struct {
		place, text string
		kind        string
		want        []string
	}{
		"nothing":                   {"", "", "ResourceQuota", nil},
		"a gate":                    {"LIFECYCLE", `delete: {when: {expression: 'resources.quota.status.phase == "A"'}}`, "ResourceQuota", []string{"status/phase"}},
		"the gate of a patch":       {"LIFECYCLE", `patch: [{when: {expression: 'dig(resources.quota, "spec.hard.pods") == "2"'}, document: {a: b}}]`, "ResourceQuota", []string{"spec/hard"}},
		"the document of a patch":   {"LIFECYCLE", `patch: [{when: {expression: "true"}, document: {a: "{{ .resources.quota.status.phase }}"}}]`, "ResourceQuota", []string{"status/phase"}},
		"metadata":                  {"LIFECYCLE", `apply: {when: {expression: 'dig(resources.quota, "metadata.labels.a.io/b") == "1"'}}`, "ResourceQuota", []string{"metadata/labels"}},
		"only whether it exists":    {"LIFECYCLE", `apply: {when: {expression: '!resources.?quota.hasValue()'}}`, "ResourceQuota", nil},
		"another kind":              {"LIFECYCLE", `apply: {when: {expression: 'resources.other.status == ""'}}`, "ResourceQuota", nil},
		"of another kind":           {"LIFECYCLE", `apply: {when: {expression: 'resources.other.status == ""'}}`, "ConfigMap", []string{"status/phase", "status/hard", "status/conditions"}},
		"a removed kind":            {"LIFECYCLE", `apply: {when: {expression: 'resources.other.status == ""'}}`, "Secret", nil},
		"all objects":               {"LIFECYCLE", `apply: {when: {expression: 'resources.exists(n, resources[n].status == "")'}}`, "ResourceQuota", fields},
		"a manifest":                {"MANIFEST", `, data: {a: "{{ .resources.quota.status.phase }}"}`, "ResourceQuota", []string{"status/phase"}},
		"a key":                     {"MANIFEST", `, data: {"{{ .resources.quota.status.phase }}": a}`, "ResourceQuota", []string{"status/phase"}},
		"a whole object":            {"MANIFEST", `, data: {a: "{{ with .resources.quota }}{{ .status.phase }}{{ end }}"}`, "ResourceQuota", fields},
		"all variables":             {"MANIFEST", `, data: {a: "{{ define ` + "`t`" + ` }}{{ .resources.quota.status.phase }}{{ end }}{{ template ` + "`t`" + ` . }}"}`, "ResourceQuota", fields},
		"all variables, with $":     {"MANIFEST", `, data: {a: "{{ $all := $ }}{{ $all.resources.quota.status.phase }}"}`, "ResourceQuota", fields},
		"a discovery":               {"OTHER", `"{{ .resources.quota.status.phase }}"`, "ResourceQuota", []string{"status/phase"}},
		"the item of a retention":   {"RETENTION", `, expression: 'item.status.phase == "A"'`, "Pod", fields},
		"the items of a retention":  {"RETENTION", `, expression: 'items[itemIndex].status.phase == "A"'`, "Pod", fields},
		"resources in a retention":  {"RETENTION", `, expression: 'resources.quota.spec.hard.pods == "1"'`, "ResourceQuota", []string{"spec/hard"}},
		"an expression of a report": {"BUILD", `{expression: 'conditionStatus(resources.quota.status.conditions, "Ready")'}`, "ResourceQuota", []string{"status/conditions"}},
		"a field of a report":       {"BUILD", `{field: resources.quota.status.hard}`, "ResourceQuota", []string{"status/phase", "status/hard", "status/conditions"}},
		"an item of a report":       {"BUILD", `["{{ .resources.quota.status.phase }}"]`, "ResourceQuota", []string{"status/phase"}},
		"the gate of an action":     {"ACTION", `when: {expression: 'resources.quota.status.phase == "A"'}, `, "ResourceQuota", []string{"status/phase"}},
		"a log line":                {"ACTION", `log: {level: info, message: "{{ .resources.quota.status.phase }}"}, `, "ResourceQuota", []string{"status/phase"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			text := file
			for place, otherwise := range map[string]string{"LIFECYCLE": "", "MANIFEST": "", "OTHER": "n", "RETENTION": "", "BUILD": "1", "ACTION": ""} {
				if place == tc.place {
					otherwise = tc.text
				}

				text = strings.ReplaceAll(text, place, otherwise)
			}

			loaded, err := task.Load(fstest.MapFS{"t.yaml": {Data: []byte(text)}}, "t.yaml", nil)
			must.Do(t, err)

			var got []string

			for _, field := range fields {
				if differ(t, loaded, "", tc.kind, field) {
					got = append(got, field)
				}
			}

			if fmt.Sprint(got) != fmt.Sprint(tc.want) {
				t.Errorf("reads %v, want %v", got, tc.want)
			}
		})
	}
}

// An entry whose kind is a template can have objects of any kind.
func TestReadsOfUnknownKinds(t *testing.T) {
	t.Parallel()

	loaded, err := task.Load(fstest.MapFS{"t.yaml": {Data: []byte(`
params: [{name: id, source: event.id}]
resources:
- name: any
  manifest: {apiVersion: v1, kind: "{{ .id }}", metadata: {name: x}}
  discovery: {by_name: x}
  lifecycle: {delete: {when: {expression: 'resources.any.status.phase == "A"'}}}
`)}}, "t.yaml", nil)
	must.Do(t, err)

	if !differ(t, loaded, "", "Secret", "status/phase") || differ(t, loaded, "", "Secret", "status/hard") {
		t.Error("want the field that the gate reads, and no other")
	}
}

// The deletion of an object counts even if nothing reads the object, because its entry fails until the object is gone. So does
// another object of the same name.
func TestReadsOfDeletion(t *testing.T) {
	t.Parallel()

	loaded, err := task.Load(fstest.MapFS{"t.yaml": {Data: []byte(`
resources:
- name: space
  manifest: {apiVersion: v1, kind: Namespace, metadata: {name: x}}
  discovery: {by_name: x}
`)}}, "t.yaml", nil)
	must.Do(t, err)

	for field, want := range map[string]bool{"deletionTimestamp": true, "uid": true, "generateName": false} {
		before := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace"}}
		after := before.DeepCopy()
		must.Do(t, unstructured.SetNestedField(after.Object, "2026-01-02T03:04:05Z", "metadata", field))

		if got := loaded.ListReads().Differ(before, after); got != want {
			t.Errorf("%s: differ is %v, want %v", field, got, want)
		}
	}
}

// Of the sample's objects, the quota controller changes only what the task file does not read.
func TestReadsOfSample(t *testing.T) {
	t.Parallel()

	loaded, err := task.LoadFile("../../../deploy/samples/platform/clusters/task.yaml", nil)
	must.Do(t, err)

	for kind, want := range map[string]map[string]bool{
		"/ResourceQuota": {"status/hard": false, "spec/hard": true, "metadata/labels": false},
		"/Namespace":     {"status/phase": true, "status/conditions": false, "metadata/labels": true, "spec/hard": false},
		"batch/Job":      {"status/conditions": true, "status/phase": false, "metadata/labels": false},
	} {
		for field, isRead := range want {
			group, name, _ := strings.Cut(kind, "/")
			if differ(t, loaded, group, name, field) != isRead {
				t.Errorf("%s %s: want read: %v", kind, field, isRead)
			}
		}
	}
}
