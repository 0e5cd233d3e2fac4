// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/platform/adapter/pipeline"
	"github.com/hyperfleet/hyperfleet/platform/adapter/serve"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport/kubernetes"
	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/test/capture"
	"github.com/hyperfleet/hyperfleet/test/fleetapi"
	"github.com/hyperfleet/hyperfleet/test/must"
)

var serial atomic.Int64

// configTask has one ConfigMap for each cluster.
const configTask = `
params:
  - {name: id, source: event.id, required: true}
  - {name: generation, source: event.generation, type: int, required: true}
preconditions:
  - name: cluster
    api_call: {method: GET, url: "clusters/{{ .id }}"}
resources:
  - name: config
    manifest:
      apiVersion: v1
      kind: ConfigMap
      metadata: {name: "{{ .id }}", namespace: NAMESPACE}
      data: {tier: "{{ .cluster.spec.tier }}"}
    discovery: {namespace: NAMESPACE, by_name: "{{ .id }}"}
    lifecycle:
      delete: {when: {expression: 'cluster.?deleted_time.hasValue()'}}
post:
  payloads:
    - name: report
      build:
        adapter: "{{ .adapter.name }}"
        observed_generation: {expression: generation}
        observed_time: "{{ now }}"
        conditions:
          - {type: Applied, status: "True"}
          - {type: Available, status: {expression: 'resources.?config.hasValue() ? "True" : "False"'}}
          - {type: Finalized, status: {expression: '!resources.?config.hasValue() ? "True" : "False"'}}
          - {type: Health, status: "True"}
  post_actions:
    - name: tell
      when: {expression: 'adapter.executionStatus == "success"'}
      api_call: {method: PUT, url: "clusters/{{ .id }}/statuses", body: "{{ .report }}"}
`

// source is a queue in this process, as an adapter without a broker has.
type source struct {
	*broker.Queue

	// dead receives the dead letters.
	dead chan broker.Letter
	// subscribeErr is the error of Subscribe and Health.
	subscribeErr error
}

func newSource(t testing.TB, conf platform.Broker) *source {
	t.Helper()

	brokerMetrics, err := broker.NewMetrics(nil)
	must.Do(t, err)

	s := &source{dead: make(chan broker.Letter, 10)}
	s.Queue = broker.NewQueue(broker.QueueOptions{
		Conf: conf, Topic: "clusters", Subscription: "landing", Log: slog.New(slog.DiscardHandler), Metrics: brokerMetrics,
		GiveUp: func(given broker.Letter) error {
			s.dead <- given

			return nil
		},
	})

	return s
}

// publishEvent adds an event to the queue.
func (s *source) publishEvent(event cloudevents.Event) {
	_ = s.Publish(context.Background(), s.Topic, event)
}

// Subscribe implements serve.Source.
func (s *source) Subscribe(ctx context.Context, topic, id string, handle broker.Handler) error {
	switch {
	case s.subscribeErr != nil:
		return s.subscribeErr
	case topic != s.Topic || id != s.Subscription:
		return fmt.Errorf("no topic %s and subscription %s", topic, id)
	}

	s.Run(ctx, handle)

	return nil
}

// Standby is optional for a serve.Source.
func (s *source) Standby() string { return "another task file" }

// Health implements serve.Source.
func (s *source) Health(context.Context) error { return s.subscribeErr }

// newDeployment returns the configuration of the adapters in these tests.
func newDeployment() adapter.Deployment {
	return adapter.Deployment{
		Adapter: adapter.Identity{Name: "landing", Version: "7"},
		Clients: adapter.Clients{
			HyperFleetAPI: task.NewDeploymentSpec(task.FileOptional).Default.Clients.HyperFleetAPI,
			Broker:        adapter.Broker{SubscriptionID: "landing", Topic: "clusters"},
		},
		DebugConfig: true, EventTimeout: waitTimeout, HealthAddress: "127.0.0.1:0", MetricsAddress: "127.0.0.1:0",
	}
}

// runningAdapter is an adapter that runs with a queue in this process.
type runningAdapter struct {
	t               testing.TB
	source          *source
	registry        *prometheus.Registry
	health, metrics string
	// stop stops the adapter and returns its error.
	stop func() error
}

type handler = func(context.Context, cloudevents.Event) pipeline.Result

// startAdapter runs an adapter with a handler until the end of the test.
func startAdapter(t testing.TB, handle handler, looks *serve.Requeuer) *runningAdapter {
	t.Helper()

	s := &runningAdapter{t: t, registry: prometheus.NewRegistry(), source: newSource(t, platform.Broker{
		Parallelism: 4, MaxDeliveries: 1000, MinBackoff: 10 * time.Millisecond, MaxBackoff: 50 * time.Millisecond,
	})}
	logs := &capture.Buffer{}
	ctx, cancel := context.WithCancel(context.Background())
	listening, ended := make(chan string, 1), make(chan error, 1)

	go func() {
		ended <- serve.Run(ctx, serve.Options{
			Deployment: newDeployment(), Version: "1.2.3", Events: s.source, Handle: handle, Requeuer: looks, Registry: s.registry,
			Log:      slog.New(slog.NewJSONHandler(logs, nil)),
			Config:   http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, "the configuration") }),
			OnListen: func(health, metrics string) { s.metrics = metrics; listening <- health },
		})
	}()

	select {
	case s.health = <-listening:
	case err := <-ended:
		t.Fatal(err)
	}

	s.stop = sync.OnceValue(func() error {
		cancel()

		return <-ended
	})
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}

		if t.Failed() {
			t.Log(logs.String())
		}
	})

	return s
}

// get sends a request to the adapter's probe server.
func (s *runningAdapter) get(path string) (int, string) {
	s.t.Helper()

	address := s.health
	if path == "/metrics" {
		address = s.metrics
	}

	response, err := http.Get("http://" + address + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()

	body, _ := io.ReadAll(response.Body)

	return response.StatusCode, string(body)
}

// hasMetric returns true if the adapter's metrics contain a line.
func (s *runningAdapter) hasMetric(metric string) bool {
	_, text := s.get("/metrics")

	return strings.Contains(text, "hyperfleet_adapter_"+metric)
}

// sendEvent publishes an event of a cluster.
func (s *runningAdapter) sendEvent(id string, generation int32) {
	s.t.Helper()
	s.source.publishEvent(newReconcileEvent(id, generation))
}

// newReconcileEvent returns an event as Sentinel sends it for a cluster.
func newReconcileEvent(id string, generation int32) cloudevents.Event {
	out := cloudevents.NewEvent()
	out.SetID(fmt.Sprintf("event-%d", serial.Add(1)))
	out.SetSource("hyperfleet-sentinel")
	out.SetType("io.hyperfleet.cluster.reconcile")
	out.SetExtension("partitionkey", id)

	data, _ := json.Marshal(map[string]any{"id": id, "kind": "Cluster", "href": "/clusters/" + id, "generation": generation})
	if err := out.SetData("application/json", json.RawMessage(data)); err != nil {
		panic(err)
	}

	return out
}

// adapterFixture is a complete adapter with a real Kubernetes cluster and a fleet API.
type adapterFixture struct {
	t         testing.TB
	url       string
	namespace string
	looks     *serve.Requeuer
	handle    handler
	cluster   *kubernetes.Client
	// calls has the metrics of the calls.
	calls *prometheus.Registry
}

// instantClock is a clock whose timers fire at once, so that retries follow each other without a delay.
type instantClock struct{ clock.RealClock }

func (c instantClock) NewTimer(time.Duration) clock.Timer { return c.RealClock.NewTimer(0) }

func newAdapterFixture(t testing.TB, namespace string, api http.Handler) *adapterFixture {
	t.Helper()

	return newAdapterFixtureOf(t, configTask, namespace, api)
}

// newAdapterFixtureOf is newAdapterFixture with a task file, in which NAMESPACE stands for the namespace.
func newAdapterFixtureOf(t testing.TB, text, namespace string, api http.Handler) *adapterFixture {
	t.Helper()

	listening := httptest.NewServer(api)
	t.Cleanup(listening.Close)

	w := &adapterFixture{
		t: t, url: listening.URL, namespace: namespace, looks: serve.NewRequeuer(), calls: prometheus.NewRegistry(),
	}
	calls, err := metrics.NewCallMetrics(w.calls, nil)
	must.Do(t, err)

	deployment := newDeployment()
	deployment.Clients.HyperFleetAPI.BaseURL = w.url

	loaded, err := task.Load(fstest.MapFS{"t.yaml": {Data: []byte(strings.ReplaceAll(text, "NAMESPACE", namespace))}}, "t.yaml", &deployment)
	must.Do(t, err)

	w.cluster, err = kubernetes.New(kubernetes.Options{
		Config: env.Config, Adapter: "landing", OnChange: w.looks.EnqueueChange, OnUnread: w.looks.EnqueueIfFailed,
		Differ: loaded.ListReads().Differ, Calls: calls,
	})
	must.Do(t, err)

	watching, end := context.WithCancel(context.Background())
	ended := make(chan struct{})

	go func() {
		defer close(ended)

		_ = w.cluster.Run(watching)
	}()

	t.Cleanup(func() {
		end()
		<-ended
	})

	made, err := pipeline.New(pipeline.Options{
		Deployment: &deployment, Task: loaded, Clients: map[string]transport.Client{transport.Kubernetes: w.cluster}, Calls: calls,
		Keys: newKeys(t, strings.Repeat("k", 32)), FrameworkVersion: "1.2.3", Clock: instantClock{}, Log: slog.New(slog.DiscardHandler),
	})
	must.Do(t, err)

	w.handle = made.Handle

	return w
}

// call sends a request to the API, which has to succeed.
func (w *adapterFixture) call(method, path, body string) (out openapi.Resource) {
	w.t.Helper()
	fleetapi.Call(w.t, method, w.url, path, body, &out)

	return out
}

// getAvailable returns the status of the condition Available in the adapter's report.
func (w *adapterFixture) getAvailable(id string) string {
	list, err := api.Store.Statuses(w.t.Context(), id)
	if err != nil || len(list) == 0 {
		return "none"
	}

	for _, condition := range list[0].Conditions {
		if condition.Type == "Available" {
			return condition.Status
		}
	}

	return ""
}

// getConfigMap returns the cluster's ConfigMap, or nil if there is none.
func (w *adapterFixture) getConfigMap(id string) *corev1.ConfigMap {
	var out corev1.ConfigMap
	if env.Client.Get(context.Background(), kubeclient.ObjectKey{Namespace: w.namespace, Name: id}, &out) != nil {
		return nil
	}

	return &out
}
