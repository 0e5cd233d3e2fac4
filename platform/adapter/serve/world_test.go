// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package serve_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/adapter/pipeline"
	"github.com/hyperfleet/hyperfleet/platform/adapter/serve"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport/kubernetes"
	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
	"github.com/hyperfleet/hyperfleet/test/capture"
	"github.com/hyperfleet/hyperfleet/test/fleetapi"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// patience is for what has to happen some time on a machine with much else to do.
const patience = time.Minute

var (
	env   *kube.Env
	fleet *fleetapi.API
	names atomic.Int64
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())

	os.Exit(fleetapi.With(func(a *fleetapi.API) { fleet = a }, func() int {
		return kube.Run(m, func(e *kube.Env) { env = e }, kube.WithCRDs("testdata"))
	}, platform.Entity{Kind: "Cluster", Plural: "clusters", RequiredAdapters: []string{"landing"}, NameMinLen: 3, NameMaxLen: 53}))
}

// taskFile keeps one ConfigMap for each cluster.
const taskFile = `
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
      data: {tier: "{{ .cluster.spec.tier }}", refuse: "{{ .cluster.spec.refuse }}"}
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

// source is a queue of this process, as an adapter without a broker has.
type source struct {
	*broker.Queue

	// dead are events that were given up.
	dead chan broker.Letter
	// away is why nobody can subscribe.
	away error
}

func newSource(t testing.TB, conf platform.Broker, log *slog.Logger) *source {
	t.Helper()

	metrics, err := broker.NewMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}

	s := &source{dead: make(chan broker.Letter, 10)}
	s.Queue = broker.NewQueue(broker.QueueOptions{
		Conf: conf, Topic: "clusters", Subscription: "landing", Log: log, Metrics: metrics,
		GiveUp: func(given broker.Letter) error {
			select {
			case s.dead <- given:
			default:
			}

			return nil
		},
	})

	return s
}

// Subscribe implements serve.Source.
func (s *source) Subscribe(ctx context.Context, topic, id string, handle broker.Handler) error {
	switch {
	case s.away != nil:
		return s.away
	case topic != s.Topic || id != s.Subscription:
		return fmt.Errorf("no topic %s and subscription %s", topic, id)
	}

	s.Run(ctx, handle)

	return nil
}

// Health implements serve.Source.
func (s *source) Health(context.Context) error { return s.away }

// world is an adapter on a real cluster, a real fleet API, and a queue in this process.
type world struct {
	t          testing.TB
	namespace  string
	url        string
	api        *client.Client
	deployment adapter.Deployment
	source     *source
	registry   *prometheus.Registry
	log        *capture.Buffer
	handle     func(context.Context, cloudevents.Event) pipeline.Result
	looks      *serve.Looks
	health     string
	metrics    string
	// stop ends the adapter, and gives its error.
	stop func() error
	down atomic.Bool
	// stub answers in the API's place, for benchmarks of the adapter alone.
	stub http.Handler
}

// instant is a clock whose timers are over at once: tries follow each other.
type instant struct{ clock.RealClock }

func (c instant) NewTimer(time.Duration) clock.Timer { return c.RealClock.NewTimer(0) }

func newWorld(t testing.TB, namespace string) *world {
	t.Helper()

	w := &world{t: t, namespace: namespace, registry: prometheus.NewRegistry(), log: &capture.Buffer{}, looks: serve.NewLooks(nil)}
	listening := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if w.down.Load() {
			rw.WriteHeader(http.StatusServiceUnavailable)

			return
		}

		if w.stub != nil {
			w.stub.ServeHTTP(rw, r)

			return
		}

		fleet.ServeHTTP(rw, r)
	}))
	t.Cleanup(listening.Close)

	w.url = listening.URL
	w.deployment = adapter.Deployment{
		Adapter:      adapter.Identity{Name: "landing", Version: "7"},
		Clients:      adapter.Clients{HyperFleetAPI: task.Deployment(false).Default.Clients.HyperFleetAPI, Broker: adapter.Broker{SubscriptionID: "landing", Topic: "clusters"}},
		DebugConfig:  true,
		EventTimeout: patience, HealthAddress: "127.0.0.1:0", MetricsAddress: "127.0.0.1:0",
	}
	w.deployment.Clients.HyperFleetAPI.BaseURL = w.url

	logger := slog.New(slog.NewJSONHandler(w.log, nil))

	var err error
	if w.api, err = client.New(platform.APIClient{BaseURL: w.url}, client.Options{Clock: instant{}}); err != nil {
		t.Fatal(err)
	}

	w.source = newSource(t, platform.Broker{
		Parallelism: 4, MaxDeliveries: 1000, MinBackoff: 10 * time.Millisecond, MaxBackoff: 50 * time.Millisecond,
	}, logger)

	loaded, err := task.Load(fstest.MapFS{"t.yaml": {Data: []byte(strings.ReplaceAll(taskFile, "NAMESPACE", namespace))}}, "t.yaml", &w.deployment)
	if err != nil {
		t.Fatal(err)
	}

	keys, err := stamp.ParseKeys([]byte("0123456789abcdef0123456789abcdef"))
	if err != nil {
		t.Fatal(err)
	}

	cluster, err := kubernetes.New(kubernetes.Options{
		Config: env.Config, Adapter: "landing", Changed: w.looks.Changed, Log: logger,
	})
	if err != nil {
		t.Fatal(err)
	}

	watching, end := context.WithCancel(context.Background())
	ended := make(chan struct{})

	go func() {
		defer close(ended)
		_ = cluster.Run(watching)
	}()

	t.Cleanup(func() {
		end()
		<-ended
	})

	made, err := pipeline.New(pipeline.Options{
		Deployment: &w.deployment, Task: loaded, Clients: map[string]transport.Client{transport.Kubernetes: cluster},
		Keys: keys, FrameworkVersion: "1.2.3", Clock: instant{}, Log: logger,
	})
	if err != nil {
		t.Fatal(err)
	}

	w.handle = made.Handle

	return w
}

// start runs the adapter.
func (w *world) start() {
	w.t.Helper()

	ctx, cancel := context.WithCancel(context.Background())
	listening, ended := make(chan string, 1), make(chan error, 1)
	subscribed := make(chan struct{})
	listens := sync.OnceFunc(func() { close(subscribed) })

	go func() {
		ended <- serve.Run(ctx, serve.Options{
			Deployment: w.deployment, Version: "1.2.3", Events: w.source,
			Handle: func(ctx context.Context, event cloudevents.Event) pipeline.Result {
				if event.ID() == "ping" {
					listens()

					return pipeline.Result{Status: pipeline.Success}
				}

				return w.handle(ctx, event)
			},
			Looks: w.looks, Registry: w.registry, Log: slog.New(slog.NewJSONHandler(w.log, nil)),
			Config:    http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, "the configuration") }),
			Listening: func(health, metrics string) { w.metrics = metrics; listening <- health },
		})
	}()

	select {
	case w.health = <-listening:
	case err := <-ended:
		w.t.Fatal(err)
	}

	ping := event("ping", 1)
	ping.SetID("ping")
	w.source.Add(ping)
	w.eventually("the subscription", func() bool {
		select {
		case <-subscribed:
			return true
		default:
			return false
		}
	})

	w.stop = sync.OnceValue(func() error {
		cancel()

		return <-ended
	})
	w.t.Cleanup(func() {
		if err := w.stop(); err != nil {
			w.t.Error(err)
		}
	})
}

// get asks the adapter's own server.
func (w *world) get(path string) (int, string) {
	w.t.Helper()

	address := w.health
	if path == "/metrics" {
		address = w.metrics
	}

	response, err := http.Get("http://" + address + path)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()

	body, _ := io.ReadAll(response.Body)

	return response.StatusCode, string(body)
}

// cluster makes one in the API.
func (w *world) cluster(spec string) openapi.Resource {
	w.t.Helper()

	body := fmt.Sprintf(`{"name":"test-%d","spec":%s}`, names.Add(1), spec)

	return w.call(http.MethodPost, "/clusters", body)
}

func (w *world) call(method, path, body string) openapi.Resource {
	w.t.Helper()

	request, err := http.NewRequest(method, w.url+"/api/hyperfleet/v1"+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}

	request.Header.Set("Content-Type", "application/json")

	response, err := http.DefaultClient.Do(request)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()

	var out openapi.Resource
	if data, _ := io.ReadAll(response.Body); response.StatusCode > 299 || json.Unmarshal(data, &out) != nil {
		w.t.Fatalf("%s %s: %d %s", method, path, response.StatusCode, data)
	}

	return out
}

// send puts an event of the cluster in line.
func (w *world) send(id string, generation int32) {
	w.t.Helper()
	w.source.Add(event(id, generation))
}

func event(id string, generation int32) cloudevents.Event {
	out := cloudevents.NewEvent()
	out.SetID(fmt.Sprintf("event-%d", names.Add(1)))
	out.SetSource("hyperfleet-sentinel")
	out.SetType("io.hyperfleet.cluster.reconcile")
	out.SetExtension("partitionkey", id)

	data, _ := json.Marshal(map[string]any{"id": id, "kind": "Cluster", "href": "/clusters/" + id, "generation": generation})
	if err := out.SetData("application/json", json.RawMessage(data)); err != nil {
		panic(err)
	}

	return out
}

// eventually waits for what has to become true.
func (w *world) eventually(what string, is func() bool) {
	w.t.Helper()

	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if is() {
			return
		}
	}

	w.t.Fatalf("not in time: %s\n%s", what, w.log.String())
}

// available is "STATUS REASON" of the adapter's report.
func (w *world) available(id string) string {
	list, err := fleet.Store.Statuses(w.t.Context(), id)
	if err != nil || len(list) == 0 {
		return "none"
	}

	for _, condition := range list[0].Conditions {
		if condition.Type == "Available" {
			return strings.TrimSpace(condition.Status + " " + condition.Reason)
		}
	}

	return ""
}

// object is the cluster's ConfigMap; nil if there is none.
func (w *world) object(id string) *corev1.ConfigMap {
	var out corev1.ConfigMap
	if env.Client.Get(context.Background(), kubeclient.ObjectKey{Namespace: w.namespace, Name: id}, &out) != nil {
		return nil
	}

	return &out
}
