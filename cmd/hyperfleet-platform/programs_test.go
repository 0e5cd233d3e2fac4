// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/test/brokers"
	"github.com/hyperfleet/hyperfleet/test/kubelet/volume"
	"github.com/hyperfleet/hyperfleet/test/loopback"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/otlp"
	"github.com/hyperfleet/hyperfleet/test/postgres"
)

const (
	// envProgram makes the test binary run as hyperfleet-platform.
	envProgram = "HYPERFLEETTEST_PROGRAM"

	waitTimeout  = 3 * time.Minute
	pollInterval = 50 * time.Millisecond
	// exportToken is in the headers of trace exports. apiWord is in requests of users to the API.
	exportToken = "t0ken-of-the-receiver"
	apiWord     = "w0rd-of-a-user"
)

// database is the database server for all tests.
var database *postgres.Server

func TestMain(m *testing.M) {
	if os.Getenv(envProgram) != "" {
		main()
	}

	os.Exit(postgres.Run(m, func(s *postgres.Server) { database = s }))
}

// installation has the programs of the platform, each as a separate process.
type installation struct {
	t        *testing.T
	dir      string
	api      string
	database string
	broker   *brokers.Server
	// sentinel is the content of Sentinel's configuration file in the folder mounted.
	sentinel, mounted string
	processes         map[string]*procrun.Process
	// metrics and health have the addresses of these endpoints by program.
	metrics, health map[string]string
	env             []string
}

// newInstallation returns an installation with a broker.
func newInstallation(t *testing.T, env ...string) *installation {
	t.Helper()

	in := newAPIInstallation(t, env...)
	in.write("key", strings.Repeat("0123456789abcdef", 3)+"\n")
	in.broker = brokers.StartRabbitMQ(t)
	in.write("rabbitmq-url", in.broker.URL+"\n")
	in.write("broker.yaml", "broker: {type: rabbitmq, rabbitmq: {url_file: rabbitmq-url}}\n")
	in.sentinel = fmt.Sprintf(`
resource_type: clusters
resource_selector: [{label: tier, value: gold}]
clients: {hyperfleet_api: {base_url: %q}}
log: {level: debug}
`, in.api)
	volume.Mount(t, in.mounted, map[string]string{"sentinel.yaml": in.sentinel})
	in.write("adapter.yaml", fmt.Sprintf(`
adapter: {name: teller, version: 1.0.0}
identity_key_file: key
clients: {hyperfleet_api: {base_url: %q}, broker: {topic: clusters, subscription_id: teller}}
log: {level: debug}
`, in.api))
	in.write("task.yaml", task)

	return in
}

// newAPIInstallation returns an installation with a database and the configuration of the API.
func newAPIInstallation(t *testing.T, env ...string) *installation {
	t.Helper()

	in := &installation{
		t: t, dir: t.TempDir(), mounted: t.TempDir(), processes: map[string]*procrun.Process{}, metrics: map[string]string{},
		health: map[string]string{}, env: []string{envProgram + "=1"},
	}

	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "OTEL_") && !strings.HasPrefix(entry, "HYPERFLEET") && !strings.HasPrefix(entry, "BROKER_") {
			in.env = append(in.env, entry)
		}
	}

	in.env = append(in.env, env...)
	in.api = "http://" + loopback.Address(t)
	in.database = database.NewDatabase(t)
	in.write("url", in.database+"\n")
	in.write("api.yaml", fmt.Sprintf(`
server: {address: %q}
database: {url_file: url}
entities: [{kind: Cluster, plural: clusters, name_min_len: 3, name_max_len: 53, required_adapters: [teller]}]
log: {level: debug}
`, strings.TrimPrefix(in.api, "http://")))

	t.Cleanup(in.stop)

	return in
}

// task is a task file that reads a cluster and reports its status. It has no objects.
const task = `
params:
- {name: id, source: event.id, required: true}
preconditions:
- name: cluster
  api_call: {method: GET, url: "clusters/{{ .id }}"}
  conditions: [{field: cluster.name, operator: exists}]
post:
  payloads:
  - name: report
    build:
      adapter: "{{ .adapter.name }}"
      observed_generation: {expression: event.generation}
      observed_time: "{{ .now }}"
      conditions:
      - {type: Applied, status: "True"}
      - {type: Available, status: "True"}
      - {type: Health, status: "True"}
  post_actions:
  - name: report
    api_call: {method: PUT, url: "clusters/{{ .id }}/statuses", body: "{{ .report }}"}
`

func (in *installation) write(name, text string) {
	in.t.Helper()

	if err := os.WriteFile(filepath.Join(in.dir, name), []byte(text), 0o600); err != nil {
		in.t.Fatal(err)
	}
}

func (in *installation) readLog(name string) string {
	in.t.Helper()

	data, err := os.ReadFile(filepath.Join(in.dir, name+".log"))
	if err != nil {
		in.t.Fatal(err)
	}

	return string(data)
}

// start starts a program and waits until it is ready.
func (in *installation) start(name, prefix string, args ...string) {
	in.t.Helper()

	self, err := os.Executable()
	if err != nil {
		in.t.Fatal(err)
	}

	health := loopback.Address(in.t)
	in.health[name] = health
	in.metrics[name] = loopback.Address(in.t)

	process, err := procrun.Start(context.Background(), procrun.Spec{
		Name: name, Path: self, Args: args, Dir: in.dir, LogPath: filepath.Join(in.dir, name+".log"), GracePeriod: waitTimeout,
		Env: append([]string{prefix + "HEALTH_ADDRESS=" + health, prefix + "METRICS_ADDRESS=" + in.metrics[name]}, in.env...),
	})
	if err != nil {
		in.t.Fatal(err)
	}

	in.processes[name] = process

	ctx, cancel := context.WithTimeout(in.t.Context(), waitTimeout)
	defer cancel()

	if err := process.WaitReady(ctx, func(ctx context.Context) error {
		_, err := call(ctx, http.MethodGet, "http://"+health+"/readyz", "")

		return err
	}); err != nil {
		in.t.Fatalf("start %s: %v\n%s", name, err, process.LogTail())
	}
}

func (in *installation) startAPI() {
	in.t.Helper()
	in.start("api", "HYPERFLEET_SERVER_", "api", "--config", "api.yaml")
}

// startAll starts all programs of the platform.
func (in *installation) startAll() {
	in.t.Helper()
	in.startAPI()
	in.env = append(in.env, "BROKER_CONFIG_FILE=broker.yaml")
	in.start("adapter", "HYPERFLEET_", "adapter", "serve", "--config", "adapter.yaml", "--task-config", "task.yaml")
	in.start("sentinel", "HYPERFLEET_", "sentinel", "--config", filepath.Join(in.mounted, "sentinel.yaml"))
}

// stop stops all programs and checks that their exit code is 0.
func (in *installation) stop() {
	for name, process := range in.processes {
		if err := process.Stop(); err != nil || process.ExitCode() != 0 {
			in.t.Errorf("stop %s: %v, exit code %d\n%s", name, err, process.ExitCode(), process.LogTail())
		}
	}

	in.processes = map[string]*procrun.Process{}
}

// create creates a cluster whose spec contains apiWord, and waits until it is reconciled.
func (in *installation) create(name string) string {
	in.t.Helper()

	text, err := call(in.t.Context(), http.MethodPost, in.api+"/api/hyperfleet/v1/clusters",
		fmt.Sprintf(`{"name": %q, "spec": {"note": %q}, "labels": {"tier": "gold"}}`, name, apiWord))
	if err != nil {
		in.t.Fatal(err)
	}

	var made struct{ ID string }
	if err := json.Unmarshal([]byte(text), &made); err != nil || made.ID == "" {
		in.t.Fatalf("%v: %s", err, text)
	}

	in.eventually("the cluster is reconciled", func() bool {
		var seen struct {
			Status struct {
				Conditions []struct{ Type, Status string }
			}
		}

		text, err = call(in.t.Context(), http.MethodGet, in.api+"/api/hyperfleet/v1/clusters/"+made.ID, "")
		if err == nil {
			err = json.Unmarshal([]byte(text), &seen)
		}

		for _, one := range seen.Status.Conditions {
			if one.Type == "Reconciled" && one.Status == "True" {
				return true
			}
		}

		return false
	})

	return made.ID
}

func (in *installation) eventually(what string, condition func() bool) {
	in.t.Helper()

	for deadline := time.Now().Add(waitTimeout); !condition(); time.Sleep(pollInterval) {
		if time.Now().After(deadline) {
			for name := range in.processes {
				in.t.Logf("%s:\n%s", name, in.readLog(name))
			}

			in.t.Fatalf("timed out after %s: %s", waitTimeout, what)
		}
	}
}

func call(ctx context.Context, method, url, body string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return "", err
	}

	request.Header.Set("Content-Type", "application/json")

	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()

	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode >= http.StatusMultipleChoices {
		err = fmt.Errorf("%s %s: %s: %s", method, url, answer.Status, text)
	}

	return string(text), err
}

// TestProgramsTogether checks the trace of one change through all programs, the metrics of Sentinel, and that each
// program stops cleanly for different reasons.
func TestProgramsTogether(t *testing.T) {
	t.Parallel()

	receiver := otlp.StartGRPC(t)
	in := newInstallation(t, "HYPERFLEET_TRACING_ENABLED=true", "OTEL_EXPORTER_OTLP_ENDPOINT="+receiver.URL,
		"OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20"+exportToken)
	in.startAll()

	id := in.create("traced")

	for _, body := range []string{
		`{"name": 7, "spec": "WORD"}`, `{"name": "abc", "spec": {}, "labels": {"a": "WORD !"}}`, `{"name": "abc", "spec": {"a": WORD}}`, `"WORD"`,
	} {
		body = strings.ReplaceAll(body, "WORD", apiWord)
		if _, err := call(t.Context(), http.MethodPost, in.api+"/api/hyperfleet/v1/clusters", body); err == nil {
			t.Errorf("the API accepted an invalid body: %s", body)
		}
	}

	in.checkMetrics()
	in.checkStopOnChangedFile()
	in.checkStopDuringLongPoll()
	in.stop() // the programs export the remaining spans
	checkTrace(t, in, receiver.Spans(), id)
}

// checkMetrics checks the metrics of Sentinel.
func (in *installation) checkMetrics() {
	in.t.Helper()

	page, err := call(in.t.Context(), http.MethodGet, "http://"+in.metrics["sentinel"]+"/metrics", "")
	if err != nil {
		in.t.Fatal(err)
	}

	for _, want := range []string{
		`hyperfleet_sentinel_known_resources{resource_selector="tier=gold",resource_type="clusters"} 1`,
		`program="hyperfleet-platform"`, `hyperfleet_sentinel_leader{`, `hyperfleet_sentinel_last_successful_poll_timestamp_seconds{`,
		`hyperfleet_external_call_duration_seconds_count{code="2xx",operation="list",system="hyperfleet-api"}`,
	} {
		if !strings.Contains(page, want) {
			in.t.Errorf("no %s in\n%s", want, page)
		}
	}
}

// checkStopOnChangedFile changes the mounted configuration of Sentinel, and checks that Sentinel stops
// cleanly.
func (in *installation) checkStopOnChangedFile() {
	in.t.Helper()

	ctx, cancel := context.WithTimeout(in.t.Context(), waitTimeout)
	defer cancel()

	volume.Mount(in.t, in.mounted, map[string]string{"sentinel.yaml": in.sentinel + "\npoll_interval: 3s\n"})

	if err := in.processes["sentinel"].Wait(ctx); err != nil {
		in.t.Fatalf("Sentinel did not stop after its file had changed: %v", err)
	}
}

// checkStopDuringLongPoll stops the API while a client waits for changes, and checks that the client gets a
// response.
func (in *installation) checkStopDuringLongPoll() {
	in.t.Helper()

	changes := in.api + "/api/hyperfleet/v1/changes"
	cursor := func(query string) (next string) {
		var page struct{ Next string }

		text, err := call(in.t.Context(), http.MethodGet, changes+query, "")
		if err = errors.Join(err, json.Unmarshal([]byte(text), &page)); err != nil {
			in.t.Error(err)
		}

		return page.Next
	}
	now, answered := cursor(""), make(chan string, 1)

	go func() { answered <- cursor("?wait=55&after=" + now) }()

	in.eventually("a client waits for changes", func() bool {
		page, err := call(in.t.Context(), http.MethodGet, "http://"+in.metrics["api"]+"/metrics", "")

		return err == nil && strings.Contains(page, "hyperfleet_api_requests_in_flight 1")
	})

	if err := in.processes["api"].Stop(); err != nil {
		in.t.Error(err)
	}

	if next := <-answered; next != now {
		in.t.Errorf("the waiting client got the cursor %q, want %q", next, now)
	}

	if strings.Contains(in.readLog("api"), in.database) {
		in.t.Error("the log contains the URL of the database")
	}
}

// checkTrace checks the spans of the change of one resource.
func checkTrace(t *testing.T, in *installation, spans []otlp.Span, id string) {
	t.Helper()

	children := map[string][]otlp.Span{}

	var sent *otlp.Span

	for _, span := range spans {
		children[span.Parent] = append(children[span.Parent], span)

		if strings.Contains(span.Text, exportToken) || strings.Contains(span.Text, apiWord) {
			t.Errorf("a span contains a secret: %s", span.Text)
		}

		if span.Name == "send event" && span.Attributes["hyperfleet.resource.id"] == id && sent == nil {
			sent = &span
		}
	}

	if sent == nil || sent.Service != "hyperfleet-sentinel" || sent.Parent != "" || sent.Kind != tracepb.Span_SPAN_KIND_PRODUCER ||
		sent.Attributes["messaging.destination.name"] != "clusters" || sent.Attributes["hyperfleet.reason"] == "" {
		t.Fatalf("Sentinel's span: %+v", sent)
	}

	events := children[sent.ID]
	if len(events) != 1 || events[0].Name != "adapter event" || events[0].Service != "hyperfleet-adapter-teller" ||
		events[0].TraceID != sent.TraceID || events[0].Attributes["hyperfleet.resource.id"] != id {
		t.Fatalf("children of Sentinel's span: %+v", events)
	}

	seen := map[string]bool{}

	for _, made := range children[events[0].ID] {
		requests := children[made.ID]
		if len(requests) != 1 || made.Service != events[0].Service || made.Kind != tracepb.Span_SPAN_KIND_CLIENT ||
			requests[0].TraceID != sent.TraceID || requests[0].Service != "hyperfleet-api" || requests[0].Kind != tracepb.Span_SPAN_KIND_SERVER {
			t.Errorf("call %+v with children %+v", made, requests)

			continue
		}

		seen[requests[0].Name] = true
	}

	if !seen["GET /{plural}/{id}"] || !seen["PUT /{plural}/{id}/statuses"] {
		t.Errorf("children of the adapter's calls: %v", seen)
	}

	for _, name := range []string{"api", "sentinel", "adapter"} {
		// The log lines of the event have its trace ID.
		log := in.readLog(name)
		if strings.Contains(log, exportToken) || !strings.Contains(log, "spans are exported") || !strings.Contains(log, sent.TraceID) {
			t.Errorf("log of %s, with trace %s:\n%s", name, sent.TraceID, log)
		}
	}
}

// runOnce runs a program until it exits, and returns its output and exit code.
func runOnce(t *testing.T, dir string, env []string, args ...string) (text string, code int) {
	t.Helper()

	self, err := os.Executable()
	must.Do(t, err)

	process, err := procrun.Start(t.Context(), procrun.Spec{
		Name: args[0], Path: self, Args: args, Dir: dir, LogPath: filepath.Join(dir, "log"),
		Env: append([]string{envProgram + "=1"}, env...),
	})
	must.Do(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()

	_ = process.Wait(ctx) // the caller checks the exit code

	data, err := os.ReadFile(filepath.Join(dir, "log"))
	must.Do(t, err)

	return string(data), process.ExitCode()
}

// TestProgramsReadTracingSettings starts each program without its servers, because a program reads the
// settings for tracing before it connects to its servers.
func TestProgramsReadTracingSettings(t *testing.T) {
	t.Parallel()

	const nowhere = "http://127.0.0.1:1"

	files := map[string]string{
		"key": strings.Repeat("0123456789abcdef", 3), "url": "postgres://nobody@127.0.0.1:1/none?connect_timeout=1",
		"broker.yaml": "broker: {type: rabbitmq, rabbitmq: {url: 'amqp://127.0.0.1:1'}}\n", "task.yaml": task,
		"api.yaml":      "server: {address: '127.0.0.1:0'}\ndatabase: {url_file: url}\n",
		"sentinel.yaml": "resource_type: clusters\nclients: {hyperfleet_api: {base_url: '" + nowhere + "'}}\nbroker: {type: rabbitmq, rabbitmq: {url: 'amqp://127.0.0.1:1'}}\n",
		"adapter.yaml":  "adapter: {name: teller, version: 1.0.0}\nidentity_key_file: key\nclients: {hyperfleet_api: {base_url: '" + nowhere + "'}, broker: {topic: clusters, subscription_id: teller}}\n",
		"sweep.yaml":    "identity_key_file: key\nkube_config_path: kubeconfig\nclients: {hyperfleet_api: {base_url: '" + nowhere + "', timeout: 1s}}\n",
		"kubeconfig":    "apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}]\nusers: [{name: a, user: {}}]\ncontexts: [{name: a, context: {cluster: a, user: a}}]\ncurrent-context: a\n",
	}

	for name, args := range map[string][]string{
		"api":      {"api", "--config", "api.yaml"},
		"sentinel": {"sentinel", "--config", "sentinel.yaml"},
		"adapter":  {"adapter", "serve", "--config", "adapter.yaml", "--task-config", "task.yaml"},
		"sweep":    {"sweep", "--config", "sweep.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			dir := t.TempDir()
			for file, text := range files {
				must.Do(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
			}

			receiver := otlp.StartHTTP(t)
			env := []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + receiver.URL, "PATH=" + os.Getenv("PATH")}

			output, code := runOnce(t, dir, append(env, "HYPERFLEET_TRACING_ENABLED=perhaps"), args...)
			if want := `HYPERFLEET_TRACING_ENABLED: "perhaps": want true or false`; code == 0 || !strings.Contains(output, want) {
				t.Errorf("exit code %d, want an error with %q:\n%s", code, want, output)
			}

			// TestProgramsTogether checks the exports of the other programs.
			if name == "sweep" {
				output, code = runOnce(t, dir, append(env, "HYPERFLEET_TRACING_ENABLED=true"), args...)
				if code == 0 || !strings.Contains(output, "spans are exported") || !strings.Contains(output, receiver.URL) {
					t.Errorf("exit code %d:\n%s", code, output)
				}

				checkFailedRun(t, receiver.Spans())
			}
		})
	}
}

// checkFailedRun checks that the spans have one failed run of sweep, and that all other spans are calls of
// this run.
func checkFailedRun(t *testing.T, spans []otlp.Span) {
	t.Helper()

	at := slices.IndexFunc(spans, func(s otlp.Span) bool { return s.Name == "sweep run" && s.Failed })
	if at < 0 {
		t.Fatalf("no failed run: %+v", spans)
	}

	for i, span := range spans {
		if i != at && (span.Parent != spans[at].ID || span.Kind != tracepb.Span_SPAN_KIND_CLIENT) {
			t.Errorf("span is not a call of the run: %+v", span)
		}
	}
}
