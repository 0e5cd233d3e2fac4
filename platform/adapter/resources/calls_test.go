// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// quotaTask has one ResourceQuota for each cluster. The cluster is available unless the quota has a pod.
const quotaTask = `
params:
  - {name: id, source: event.id, required: true}
  - {name: generation, source: event.generation, type: int, required: true}
preconditions:
  - name: cluster
    api_call: {method: GET, url: "clusters/{{ .id }}"}
resources:
  - name: quota
    manifest:
      apiVersion: v1
      kind: ResourceQuota
      metadata: {name: "{{ .id }}", namespace: NAMESPACE}
      spec: {hard: {pods: "{{ .cluster.spec.pods }}"}}
    discovery: {namespace: NAMESPACE, by_name: "{{ .id }}"}
post:
  payloads:
    - name: report
      build:
        adapter: "{{ .adapter.name }}"
        observed_generation: {expression: generation}
        observed_time: "{{ now }}"
        conditions:
          - {type: Applied, status: "True"}
          - {type: Available, status: {expression: 'resources.quota.?status.?used.?pods.orValue("") != "1" ? "True" : "False"'}}
          - {type: Health, status: "True"}
  post_actions:
    - {name: tell, api_call: {method: PUT, url: "clusters/{{ .id }}/statuses", body: "{{ .report }}"}}
`

// TestCallsPerEvent counts the calls of each kind of event.
func TestCallsPerEvent(t *testing.T) {
	t.Parallel()

	w := newAdapterFixtureOf(t, quotaTask, env.Namespace(t), api)
	s := startAdapter(t, w.handle, w.looks)
	first := w.call(http.MethodPost, "/clusters", `{"name":"first-quota","spec":{"pods":"3"}}`).Id

	second, events, requeues := "", 1, 0
	waitUntilHandled := func(what string) {
		timing.WaitUntil(t, what, func() bool {
			return s.hasMetric(fmt.Sprintf("events_processed_total{adapter_name=%q,status=%q} %d\n", "landing", "success", events)) &&
				s.hasMetric(fmt.Sprintf("looks_total{adapter_name=%q,status=%q} %d\n", "landing", "success", requeues))
		})
	}

	// The first event discovers the kind, and starts its watch.
	s.sendEvent(first, 1)
	waitUntilHandled("the first event is handled")
	w.waitForQuota(first, "3")

	for _, tc := range []struct {
		name string
		do   func()
		want map[string]int
	}{
		{"create", func() {
			second = w.call(http.MethodPost, "/clusters", `{"name":"second-quota","spec":{"pods":"4"}}`).Id
			s.sendEvent(second, 1)
			w.waitForQuota(second, "4")

			events++
		}, map[string]int{"hyperfleet-api get": 1, "hyperfleet-api put-status": 1, "kubernetes GET": 1, "kubernetes POST": 1}},
		{"no change", func() {
			s.sendEvent(second, 1)

			events++
		}, map[string]int{"hyperfleet-api get": 1, "hyperfleet-api put-status": 1}},
		// The first apply after a create needs two patches.
		{"change", func() {
			w.call(http.MethodPatch, "/clusters/"+second, `{"spec":{"pods":"5"}}`)
			s.sendEvent(second, 2)
			w.waitForQuota(second, "5")

			events++
		}, map[string]int{"hyperfleet-api get": 1, "hyperfleet-api put-status": 1, "kubernetes GET": 1, "kubernetes PATCH": 2}},
		{"the status of the object has changed, and the report has not", func() {
			w.setUsed(second, "0")

			requeues++
		}, map[string]int{}},
		{"the status of the object has changed, and so has the report", func() {
			w.setUsed(first, "1")

			requeues++
		}, map[string]int{"hyperfleet-api get": 1, "hyperfleet-api put-status": 1}},
		// The first change is not read. Its requeue would precede that of the second one.
		{"a part of the status that is not read has changed, and then one that is", func() {
			w.updateStatus(second, func(status *corev1.ResourceQuotaStatus) { status.Hard = newPods("7") })
			w.setUsed(first, "0")

			requeues++
		}, map[string]int{"hyperfleet-api get": 1, "hyperfleet-api put-status": 1}},
	} {
		before := w.countCalls()

		tc.do()
		waitUntilHandled(tc.name)

		got := map[string]int{}

		for call, count := range w.countCalls() {
			if count > before[call] {
				got[call] = count - before[call]
			}
		}

		t.Logf("%s: %v", tc.name, got)

		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: calls (-want +got):\n%s", tc.name, diff)
		}
	}

	for _, id := range []string{first, second} {
		if got := w.getAvailable(id); got != "True" {
			t.Errorf("Available of %s is %s", id, got)
		}
	}
}

// waitForQuota waits until the watch has the cluster's ResourceQuota with a number of pods.
func (w *adapterFixture) waitForQuota(id, pods string) {
	w.t.Helper()

	query := transport.Query{GVK: corev1.SchemeGroupVersion.WithKind("ResourceQuota"), Namespace: w.namespace, Name: id}

	timing.WaitUntil(w.t, "the watch has the quota", func() bool {
		found, err := w.cluster.Find(w.t.Context(), query, transport.CacheOnly)
		if err != nil || len(found) == 0 {
			return false
		}

		hard, _, _ := unstructured.NestedString(found[0].Object, "spec", "hard", "pods")

		return hard == pods
	})
}

// setUsed sets the used pods in the status of the cluster's ResourceQuota, as the controller of quotas does.
func (w *adapterFixture) setUsed(id, pods string) {
	w.t.Helper()
	w.updateStatus(id, func(status *corev1.ResourceQuotaStatus) { status.Used = newPods(pods) })
}

func newPods(number string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourcePods: resource.MustParse(number)}
}

// updateStatus changes the status of the cluster's ResourceQuota.
func (w *adapterFixture) updateStatus(id string, change func(*corev1.ResourceQuotaStatus)) {
	w.t.Helper()

	quota := &corev1.ResourceQuota{}
	must.Do(w.t, env.Client.Get(w.t.Context(), kubeclient.ObjectKey{Namespace: w.namespace, Name: id}, quota))
	change(&quota.Status)
	must.Do(w.t, env.Client.Status().Update(w.t.Context(), quota))
}

// countCalls returns the number of calls by system and operation, without watches.
func (w *adapterFixture) countCalls() map[string]int {
	w.t.Helper()

	families, err := w.calls.Gather()
	must.Do(w.t, err)

	out := map[string]int{}

	for _, family := range families {
		if family.GetName() != "hyperfleet_external_call_duration_seconds" {
			continue
		}

		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}

			if labels["operation"] != "watch" {
				out[labels["system"]+" "+labels["operation"]] += int(metric.GetHistogram().GetSampleCount())
			}
		}
	}

	return out
}
