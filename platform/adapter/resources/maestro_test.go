// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/sim/ocm"
	"github.com/hyperfleet/hyperfleet/sim/ocm/ocmtest"
)

// serial is the namespace of the objects on the spoke.
const onSpoke = `
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
      detach: {when: {expression: deleting && flag}}
      delete: {when: {expression: deleting}, propagationPolicy: POLICY}
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

func newSpoke(t *testing.T, policy string) (*fleet, string) {
	t.Helper()

	f := newFleet(t, strings.Replace(onSpoke, "POLICY", policy, 1))
	home := env.Namespace(t)

	ocmtest.New(t, ocm.Options{Hub: env.Config, Cluster: f.ns, Interval: 100 * time.Millisecond})

	return f, home
}

func (f *fleet) work() *unstructured.Unstructured {
	return f.get(f.object("work.open-cluster-management.io/v1", "ManifestWork", "app"))
}

func TestManifestWork(t *testing.T) {
	t.Parallel()

	f, home := newSpoke(t, "Background")
	inside := f.configMap("web")
	inside.SetNamespace(home)

	f.want(event{generation: 1, value: "a", serial: home}, "create/Absent", "none/ApplyWhenFalse")

	// What the agent tells of a manifest is seen by the next entry.
	eventually(t, "the feedback opens the gate", func() bool {
		f.run(event{generation: 1, value: "a", serial: home})

		return f.get(f.configMap("after")) != nil
	})

	if got := f.get(inside).GetAnnotations()[adapter.AnnotationGeneration]; got != "1" {
		t.Errorf("the manifest inside has generation %q", got)
	}

	f.want(event{generation: 2, value: "b", serial: home}, "apply/GenerationChanged", "none/ApplyWhenFalse")
	eventually(t, "the change comes to the spoke", func() bool {
		data, _, _ := unstructured.NestedString(f.get(inside).Object, "data", "value")

		return data == "b"
	})

	// What depends on the work's end waits for it.
	f.want(event{generation: 3, value: "none", deleting: true, serial: home}, "delete/DeleteGate...", "none/ApplyWhenFalse")
	eventually(t, "the work goes, then what waits for it", func() bool {
		f.run(event{generation: 3, value: "none", deleting: true, serial: home})

		return f.work() == nil && f.get(f.configMap("after")) == nil
	})

	if f.get(inside) != nil {
		t.Error("the object inside is left")
	}
}

func TestManifestWorkOrphan(t *testing.T) {
	t.Parallel()

	f, home := newSpoke(t, "Orphan")
	inside := f.configMap("web")
	inside.SetNamespace(home)

	f.want(event{generation: 1, value: "a", serial: home}, "create/Absent", "none/ApplyWhenFalse")
	eventually(t, "the object comes", func() bool { return f.get(inside) != nil })

	eventually(t, "the work goes", func() bool {
		f.run(event{generation: 2, value: "none", deleting: true, serial: home})

		return f.work() == nil
	})

	if f.get(inside) == nil {
		t.Error("the object inside went with the work")
	}
}

// Detaching frees the work, not what is in it.
func TestManifestWorkDetach(t *testing.T) {
	t.Parallel()

	f, home := newSpoke(t, "Background")
	inside := f.configMap("web")
	inside.SetNamespace(home)

	f.want(event{generation: 1, value: "a", serial: home}, "create/Absent", "none/ApplyWhenFalse")
	eventually(t, "the object comes", func() bool { return f.get(inside) != nil })

	f.want(event{generation: 2, value: "none", deleting: true, flag: true, serial: home}, "detach/DetachGate", "none/ApplyWhenFalse")

	if got := f.work(); len(got.GetLabels()) != 0 {
		t.Errorf("the work has labels %v", got.GetLabels())
	}

	f.want(event{generation: 2, value: "none", deleting: true, flag: true, serial: home}, "none/Detached", "none/ApplyWhenFalse")

	if f.get(inside) == nil {
		t.Error("the object inside is gone")
	}
}

func TestManifestWorkRefused(t *testing.T) {
	t.Parallel()

	cases := map[string]struct{ change, to, says string }{
		"no ManifestWork":  {"apiVersion: work.open-cluster-management.io/v1\n      kind: ManifestWork", "apiVersion: v1\n      kind: ConfigMap", "discovery looks for a ManifestWork"},
		"wrong namespace":  {"metadata: {name: app}", "metadata: {name: app, namespace: default}", "discovery looks in namespace"},
		"no cluster":       {`target_cluster: "{{ .ns }}"`, `target_cluster: "{{ if .flag }}x{{ end }}"`, "transport.maestro.target_cluster is empty"},
		"wrong generation": {"metadata: {name: web,", `metadata: {annotations: {hyperfleet.io/generation: "0"}, name: web,`, "manifest 1 (ConfigMap web)"},
		"schema":           {"feedbackRules: [{type: JSONPaths", "feedbackRules: [{type: Nonsense", "Unsupported value"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			taskFile := strings.Replace(onSpoke, "POLICY", "Background", 1)
			f := newFleet(t, strings.Replace(taskFile, tc.change, tc.to, 1))

			result := f.run(event{generation: 1, value: "a", serial: "default"})
			if err := result.Err(); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want %q", err, tc.says)
			}

			if f.work() != nil {
				t.Error("it was made all the same")
			}
		})
	}
}
