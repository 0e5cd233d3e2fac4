// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task_test

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
)

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
		"kind unknown": {resources: strings.Replace(config, "ConfigMap", `"{{ .id }}"`, 1), err: "resources[0] (one): its kind is known only when an event comes"},
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
				rules, err = loaded.Access(tc.transport)
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
