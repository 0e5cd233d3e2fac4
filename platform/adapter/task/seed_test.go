// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task_test

import (
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	testclock "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/test/must"
)

var start = time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)

func withFixedClock() task.Option { return task.WithClock(testclock.NewFakePassiveClock(start)) }

// TestExamplesOfTheDocument loads every example of document 001, including its configuration reference.
func TestExamplesOfTheDocument(t *testing.T) {
	t.Parallel()

	files, err := filepath.Glob("testdata/seed/*.yaml")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d examples, %v", len(files), err)
	}

	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()

			loaded, err := task.LoadFile(file, nil, withFixedClock())
			must.Do(t, err)

			if len(loaded.Resources) == 0 {
				t.Error("no resources")
			}
		})
	}
}

// TestConfigurationReferenceIsComplete checks that each field of the reference is loaded.
func TestConfigurationReferenceIsComplete(t *testing.T) {
	t.Parallel()

	loaded, err := task.LoadFile("testdata/seed/configuration-reference.yaml", nil, withFixedClock())
	must.Do(t, err)

	r := loaded.Resources[1]
	if r.Name != "example" || r.When == nil || r.Manifest == nil || r.Discovery.Labels == nil || r.Owner != "anotherAlias" ||
		*r.Retention.HistoryLimit != 3 || r.Retention.TTL != 24*time.Hour || r.Apply == nil || len(r.Patches) != 1 || r.Detach == nil ||
		r.Recreate == nil || r.Delete == nil || r.PropagationPolicy != "Background" || r.Transport != transport.Kubernetes {
		t.Errorf("resource: %+v", r)
	}

	namespace, name, labels, err := r.Discovery.Render(map[string]any{"namespace": "n", "resourceId": "r"})
	if err != nil || namespace != "n" || name != "" || !maps.Equal(labels, map[string]string{adapter.LabelResourceID: "r"}) {
		t.Errorf("discovery in namespace %q by name %q and labels %v: %v", namespace, name, labels, err)
	}

	var warnings []string
	for _, warning := range loaded.Warnings {
		warnings = append(warnings, warning.String())
	}

	for _, want := range []string{"alias is a deprecated form", "orphan is a deprecated form", "ignores maestro", "the name has to vary", "also finds objects"} {
		if !strings.Contains(strings.Join(warnings, "\n"), want) {
			t.Errorf("warnings: %q, want %s", warnings, want)
		}
	}
}

// TestConditionsExample checks that the old form of a precondition becomes an API call, and that the error
// of an expression names the API's spelling of a field.
func TestConditionsExample(t *testing.T) {
	t.Parallel()

	loaded, err := task.LoadFile("testdata/seed/5-conditions.yaml", nil, withFixedClock())
	must.Do(t, err)

	if len(loaded.Warnings) != 1 || !strings.HasSuffix(loaded.Warnings[0].String(), "type: hyperfleet_api is a deprecated form of api_call "+
		"(write name: clusterResource, and api_call: {method: GET, url: resources/{{ .clusterId }}})") {
		t.Errorf("warnings: %v", loaded.Warnings)
	}

	call := loaded.Preconditions[0]
	if call.Name != "clusterResource" || call.APICall.Method != http.MethodGet {
		t.Errorf("precondition: %+v", call)
	}

	url, err := call.APICall.URL.Render(map[string]any{"clusterId": "c1"})
	if err != nil || url != "resources/c1" {
		t.Errorf("url: %s, %v", url, err)
	}

	gate := func(conditions ...any) (bool, error) {
		return loaded.Resources[0].Patches[0].When.EvalBool(t.Context(), map[string]any{
			"resources":       map[string]any{"certSecret": map[string]any{}},
			"clusterResource": map[string]any{"status": map[string]any{"conditions": conditions}},
		})
	}

	if yes, err := gate(map[string]any{"type": "Ready"}); !yes || err != nil {
		t.Errorf("rotation before its time: %t, %v", yes, err)
	}

	_, err = gate(map[string]any{"type": "CertRotated", "last_transition_time": "2026-05-06T07:08:09Z"})
	if err == nil || !strings.Contains(err.Error(), "conditions of the fleet API have last_transition_time") {
		t.Errorf("error of the other spelling: %v", err)
	}
}

// TestExamplesOfTheGuide loads the guide's examples.
func TestExamplesOfTheGuide(t *testing.T) {
	t.Parallel()

	data, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "guides", "lifecycle-gates.md"))
	must.Do(t, err)

	const head = `params:
- {name: clusterId, source: event.id}
- {name: namespace, source: event.id}
- {name: clusterStatus, source: event.status, default: new}
- {name: is_deleting, source: {expression: 'dig(event, "deleted_time") != null'}}
resources:
- {name: other, manifest: {apiVersion: v1, kind: Namespace, metadata: {name: other}}, discovery: {by_name: other}}
`

	const body = "  manifest: {apiVersion: v1, kind: Namespace, metadata: {name: x}}\n  discovery: {by_name: x}\n"

	name := regexp.MustCompile(`resources\.\??(\w+)`)

	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(data), -1)
	if len(blocks) < 8 {
		t.Fatalf("%d examples", len(blocks))
	}

	for _, block := range blocks {
		text := block[1]
		called := "thing"

		if match := name.FindStringSubmatch(text); match != nil {
			called = match[1]
		}

		switch {
		case strings.HasPrefix(text, "    "):
			text = "- name: " + called + "\n" + body + "  lifecycle:\n" + text
		case strings.HasPrefix(text, "  "):
			text = "- name: " + called + "\n" + body + text
		case !strings.Contains(text, "discovery:"):
			text += body
		}

		loaded, err := loadTask(head+text, nil)
		if err != nil {
			t.Errorf("%v\n%s", err, text)
		} else if len(loaded.Warnings) > 0 {
			t.Errorf("warnings: %v\n%s", loaded.Warnings, text)
		}
	}
}

func TestAccess(t *testing.T) {
	t.Parallel()

	const (
		byName = "\n  discovery: {namespace: n, by_name: x}\n"
		config = "- name: one\n  manifest: {apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: n}}" + byName
		labels = "\n  discovery: {namespace: n, by_selectors: {label_selector: {a: b}}}\n"
		yes    = "{expression: 'true'}"
		work   = "- name: one\n  transport: {client: maestro, maestro: {target_cluster: c}}\n" +
			"  manifest: {apiVersion: work.open-cluster-management.io/v1, kind: ManifestWork, metadata: {name: x}, spec: {}}\n  discovery: {by_name: x}\n"
	)

	cases := map[string]struct {
		resources string
		transport string
		// want is "resource.group: verbs" line by line.
		want string
		err  string
	}{
		"a manifest": {resources: config, want: "configmaps.: create get list patch watch"},
		"deletion":   {resources: config + "  lifecycle: {delete: {when: " + yes + "}}", want: "configmaps.: create delete get list patch watch"},
		"recreation": {resources: config + "  lifecycle: {recreate: {when: " + yes + "}}", want: "configmaps.: create delete get list patch watch"},
		"detachment": {resources: config + "  lifecycle: {detach: {when: " + yes + "}}", want: "configmaps.: create get list patch watch"},
		"a history": {
			resources: "- name: one\n  manifest: {apiVersion: batch/v1, kind: Job, metadata: {name: 'x-{{ .id }}', namespace: n}}" + labels +
				"  retention: {historyLimit: 1}",
			want: "jobs.batch: create delete get list patch watch",
		},
		"patches only": {resources: strings.Replace(config, "manifest: {apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: n}}", "lifecycle: {patch: [{when: "+yes+", document: {data: {a: b}}}]}", 1), err: "needs api_version"},
		"patches of what is found by labels": {
			resources: "- name: one\n  lifecycle: {patch: [{when: " + yes + ", document: {data: {a: b}}}]}" +
				strings.Replace(labels, "{namespace", "{api_version: networking.k8s.io/v1, kind: Ingress, namespace", 1),
			want: "ingresses.networking.k8s.io: list patch watch",
		},
		"found by labels": {
			resources: "- name: one\n  manifest: {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: x, namespace: n}}" + labels,
			want:      "networkpolicies.networking.k8s.io: create get list patch watch",
		},
		"a block": {
			resources: "- name: one\n  manifest: |\n    apiVersion: apps/v1\n    kind: \"Deployment\" # of one\n    metadata: {name: x, namespace: n}" + byName,
			want:      "deployments.apps: create get list patch watch",
		},
		"two of one kind, and another": {
			resources: config + strings.Replace(config, "one", "two", 1) + "  lifecycle: {delete: {when: " + yes + "}}\n" +
				strings.NewReplacer("one", "three", "ConfigMap", "Secret").Replace(config),
			want: "configmaps.: create delete get list patch watch\nsecrets.: create get list patch watch",
		},
		"a hub":        {resources: work, transport: transport.Maestro, want: "manifestworks.work.open-cluster-management.io: create get list patch watch"},
		"another's":    {resources: work, want: ""},
		"kind unknown": {resources: strings.Replace(config, "ConfigMap", `"{{ .id }}"`, 1), err: "resources[0] (one): the kind is unknown before an event"},
		"kind of discovery": {
			resources: strings.NewReplacer("ConfigMap", `"{{ .id }}"`, "{namespace: n, by", "{api_version: v1, kind: Secret, namespace: n, by").Replace(config),
			want:      "secrets.: create get list patch watch",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if tc.transport == "" {
				tc.transport = transport.Kubernetes
			}

			text := "params: [{name: id, source: event.id}]\nresources:\n" + tc.resources

			loaded, err := task.Load(fstest.MapFS{"t.yaml": {Data: []byte(text)}}, "t.yaml", nil)

			var rules []task.Rule
			if err == nil {
				rules, err = loaded.RequiredRules(tc.transport)
			}

			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want %q", err, tc.err)
				}

				return
			}

			if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}

			var got []string
			for _, rule := range rules {
				got = append(got, rule.Resource+"."+rule.Group+": "+strings.Join(rule.Verbs, " "))
			}

			if diff := cmp.Diff(tc.want, strings.Join(got, "\n")); diff != "" {
				t.Errorf("rules (-want +got):\n%s", diff)
			}
		})
	}
}
