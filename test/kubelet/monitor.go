// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/test/exe"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/loopback"
)

// MonitorCRDs is a shell script that creates the CRDs of the Prometheus operator without a schema, so that
// clients can apply objects of these kinds.
const MonitorCRDs = `
for kind in ServiceMonitor PodMonitor PrometheusRule; do
plural=$(echo ${kind}s | tr A-Z a-z)
kubectl apply -f - <<END
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: $plural.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {kind: $kind, plural: $plural}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
END
kubectl wait crd/$plural.monitoring.coreos.com --for=condition=Established --timeout=1m
done
`

// Monitor is a ServiceMonitor or PodMonitor on the API server.
type Monitor struct {
	Kind, Namespace, Name string
	// Token is the bearer token with which Prometheus scrapes. It is empty if no token is needed.
	Token string
}

// monitorSpec is the part of a monitor's spec that selects the targets and configures the scrapes.
type monitorSpec struct {
	Selector   metav1.LabelSelector
	Endpoints  []endpoint
	PodMetrics []endpoint `json:"podMetricsEndpoints"`
}

type endpoint struct {
	Port, Scheme, Interval string
	HonorLabels            bool
	TLSConfig              map[string]any
}

// CheckScrapes runs Prometheus with the configuration of a monitor until it has scraped all pods and a
// query returns want series. It fails the test if that takes longer than a minute. It returns at once if
// Prometheus is not installed.
func CheckScrapes(t testing.TB, env *kube.Env, m Monitor, query string, want int, pods ...*Pod) {
	t.Helper()

	program, err := exe.FindTool("watch", "prometheus")
	if err != nil {
		t.Log(err)

		return
	}

	dir, address := t.TempDir(), loopback.Address(t)
	file := filepath.Join(dir, "prometheus.yaml")

	config, err := yaml.Marshal(map[string]any{"scrape_configs": newScrapeConfigs(t, env, m, pods)})
	if err == nil {
		err = os.WriteFile(file, config, 0o600)
	}

	if err != nil {
		t.Fatal(err)
	}

	process, err := procrun.Start(t.Context(), procrun.Spec{
		Name: "prometheus", Path: program, Dir: dir, LogPath: filepath.Join(dir, "log"), Env: []string{"HOME=" + dir, "no_proxy=*"},
		Args: []string{"--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + address},
	})
	if err != nil {
		t.Fatal(err)
	}

	defer func() { _ = process.Stop() }()

	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		up, found := countSeries(t, address, "up == 1"), countSeries(t, address, query)
		if up == len(pods) && found == want {
			return
		}

		if time.Now().After(deadline) {
			t.Fatalf("Prometheus scrapes %d of %d pods by %s %s, and %s has %d series, want %d:\n%s\n%s",
				up, len(pods), m.Kind, m.Name, query, found, want, config, process.LogTail())
		}
	}
}

// newScrapeConfigs returns the scrape configurations that the Prometheus operator would generate for a
// monitor.
func newScrapeConfigs(t testing.TB, env *kube.Env, m Monitor, pods []*Pod) []map[string]any {
	t.Helper()

	object := &unstructured.Unstructured{}
	object.SetAPIVersion("monitoring.coreos.com/v1")
	object.SetKind(m.Kind)

	if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: m.Namespace, Name: m.Name}, object); err != nil {
		t.Fatal(err)
	}

	var spec struct{ Spec monitorSpec }

	text, err := object.MarshalJSON()
	if err == nil {
		err = json.Unmarshal(text, &spec)
	}

	if err != nil {
		t.Fatal(err)
	}

	selector, err := metav1.LabelSelectorAsSelector(&spec.Spec.Selector)
	if err != nil {
		t.Fatal(err)
	}

	var out []map[string]any

	for i, end := range append(spec.Spec.Endpoints, spec.Spec.PodMetrics...) {
		var targets []string

		for _, pod := range pods {
			if address := targetAddress(t, env, m, selector, end.Port, pod); address != "" {
				targets = append(targets, address)
			}
		}

		job := map[string]any{
			"job_name": fmt.Sprintf("%s/%s/%d", m.Namespace, m.Name, i), "scrape_interval": "1s", "honor_labels": end.HonorLabels,
			"static_configs": []any{map[string]any{"targets": targets}},
		}

		if end.Scheme != "" {
			job["scheme"] = end.Scheme
		}

		if end.TLSConfig["insecureSkipVerify"] == true {
			job["tls_config"] = map[string]any{"insecure_skip_verify": true}
		}

		if m.Token != "" {
			job["authorization"] = map[string]any{"credentials": m.Token}
		}

		out = append(out, job)
	}

	return out
}

// targetAddress returns the address at which Prometheus would scrape a pod, "" if the monitor does not
// select the pod.
func targetAddress(t testing.TB, env *kube.Env, m Monitor, selector labels.Selector, port string, pod *Pod) string {
	t.Helper()

	if m.Kind == "PodMonitor" {
		if !selector.Matches(labels.Set(pod.labels)) {
			return ""
		}

		return pod.addressOf(port)
	}

	var services corev1.ServiceList

	listOptions := &client.ListOptions{Namespace: m.Namespace, LabelSelector: selector}
	if err := env.Client.List(t.Context(), &services, listOptions); err != nil {
		t.Fatal(err)
	}

	for i := range services.Items {
		service := &services.Items[i]
		if !labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(pod.labels)) {
			continue
		}

		for _, servicePort := range service.Spec.Ports {
			if servicePort.Name == port {
				return pod.addressOf(servicePort.TargetPort.String())
			}
		}
	}

	return ""
}

// countSeries returns the number of series that a query returns, 0 as long as Prometheus does not respond.
func countSeries(t testing.TB, address, query string) int {
	t.Helper()

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		"http://"+address+"/api/v1/query?query="+url.QueryEscape(query), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}

	httpClient := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

	response, err := httpClient.Do(request)
	if err != nil {
		return 0
	}
	defer func() { _ = response.Body.Close() }()

	var result struct {
		Data struct{ Result []json.RawMessage }
	}
	if err := json.NewDecoder(response.Body).Decode(&result); err != nil {
		return 0
	}

	return len(result.Data.Result)
}
