// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/events"
	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/test/brokers"
	"github.com/hyperfleet/hyperfleet/test/loopback"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/silence"
)

// endingCase is a program and a server that does not answer it.
type endingCase struct {
	program, server string
	// isRunning is true if the server stops answering after the program has become ready. Otherwise the
	// server never answers.
	isRunning bool
}

// endingCases returns each program with each of its servers.
func endingCases() []endingCase {
	var out []endingCase

	for program, servers := range map[string][]string{
		"api":      {"database", "collector"},
		"sentinel": {"rabbitmq", "alarm", "api", "collector"},
		"adapter":  {"api", "kube", "collector"},
		"consumer": {"rabbitmq", "api"},
		"sweep":    {"kube", "collector"},
	} {
		for _, server := range servers {
			if server != "alarm" && (program != "consumer" || server != "api") {
				out = append(out, endingCase{program, server, false})
			}

			// Nothing waits for the collector or is ready without its cluster, and sweep never becomes ready.
			if program != "sweep" && server != "kube" && server != "collector" {
				out = append(out, endingCase{program, server, true})
			}
		}
	}

	return out
}

// TestProgramsEnd checks that each program ends in time after SIGTERM while one of its servers accepts
// connections and does not answer, from the start or in the middle of its work.
func TestProgramsEnd(t *testing.T) {
	t.Parallel()

	in := newInstallation(t)
	in.start("api", "HYPERFLEET_SERVER_", "api", "--config", "api.yaml")

	text, err := call(t.Context(), http.MethodPost, in.api+"/api/hyperfleet/v1/clusters", `{"name": "ending", "spec": {}}`)
	must.Do(t, err)

	var made struct{ ID string }
	must.Do(t, json.Unmarshal([]byte(text), &made))

	const atOnce = 3

	running := make(chan struct{}, atOnce)

	for _, tc := range endingCases() {
		when := "at the start"
		if tc.isRunning {
			when = "in the middle"
		}

		t.Run(tc.program+" "+tc.server+" "+when, func(t *testing.T) {
			t.Parallel()

			running <- struct{}{}
			defer func() { <-running }()

			newEndingSite(t, in, tc).check(t, made.ID)
		})
	}
}

// endingSite is a folder with the files of one program, whose servers are behind proxies.
type endingSite struct {
	endingCase

	in      *installation
	dir     string
	proxies map[string]*silence.Proxy
	broker  *brokers.Server
	env     []string
	// listen is the address of the program if it is the API, health that of its probes.
	listen, health string
}

func newEndingSite(t *testing.T, in *installation, tc endingCase) *endingSite {
	t.Helper()

	s := &endingSite{
		endingCase: tc, in: in, dir: t.TempDir(), proxies: map[string]*silence.Proxy{}, broker: in.broker,
		listen: loopback.Address(t), health: loopback.Address(t),
	}

	if tc.server == "alarm" {
		s.broker = brokers.StartRabbitMQ(t)
	}

	return s
}

// proxy returns the proxy of a server. If the server is the one that never answers, the proxy is silent.
func (s *endingSite) proxy(t *testing.T, server, address string) string {
	t.Helper()

	p := silence.NewProxy(t, address)
	if server == s.server && !s.isRunning || address == "" {
		p.Silence()
	}

	s.proxies[server] = p

	return p.Address
}

// write writes the configuration of the program.
func (s *endingSite) write(t *testing.T) {
	t.Helper()

	database, err := url.Parse(s.in.database)
	must.Do(t, err)

	name := s.name()
	database.Host = s.proxy(t, "database", database.Host)
	rabbit := strings.Replace(s.broker.URL, s.broker.Address, s.proxy(t, "rabbitmq", s.broker.Address), 1)
	api := "http://" + s.proxy(t, "api", strings.TrimPrefix(s.in.api, "http://"))
	collector, kube := s.proxy(t, "collector", ""), s.proxy(t, "kube", "")

	s.env = append(slices.Clone(s.in.env), "HYPERFLEET_HEALTH_ADDRESS="+s.health, "HYPERFLEET_SERVER_HEALTH_ADDRESS="+s.health,
		"HYPERFLEET_METRICS_ADDRESS=0", "HYPERFLEET_SERVER_METRICS_ADDRESS=0")

	if s.server == "collector" {
		s.env = append(s.env, "HYPERFLEET_TRACING_ENABLED=true", "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+collector,
			"OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_BSP_SCHEDULE_DELAY=100")
	}

	source := "events: {source: broker}\nclients: {hyperfleet_api: {base_url: %q}, broker: {topic: %[3]s, subscription_id: %[2]s}}\n"
	taskText := task

	if s.program == "adapter" {
		source = "events: {resource_type: clusters}\nclients: {hyperfleet_api: {base_url: %q}, kubernetes: {kube_config_path: kubeconfig}}\n"

		if s.server == "kube" {
			taskText += "resources:\n- name: space\n  manifest: {apiVersion: v1, kind: Namespace, metadata: {name: x}}\n  discovery: {by_name: x}\n"
		}
	}

	for file, text := range map[string]string{
		"key":          strings.Repeat("0123456789abcdef", 3),
		"url":          database.String(),
		"rabbitmq-url": rabbit,
		"broker.yaml":  "broker: {type: rabbitmq, rabbitmq: {url_file: rabbitmq-url}}\n",
		"task.yaml":    taskText,
		"kubeconfig": "apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: 'http://" + kube + "'}}]\n" +
			"users: [{name: a, user: {}}]\ncontexts: [{name: a, context: {cluster: a, user: a}}]\ncurrent-context: a\n",
		"api.yaml": fmt.Sprintf("server: {address: %q}\ndatabase: {url_file: url}\n", s.listen),
		"sentinel.yaml": fmt.Sprintf("resource_type: clusters\ntopic: %[2]s\nlease: %[2]s\nclients: {hyperfleet_api: {base_url: %[1]q}}\n"+
			"broker: {type: rabbitmq, rabbitmq: {url_file: rabbitmq-url}}\npoll_interval: 200ms\nmax_age_not_reconciled: 200ms\n", api, name),
		"adapter.yaml": fmt.Sprintf("adapter: {name: %[2]s, version: 1.0.0}\nidentity_key_file: key\n"+
			strings.ReplaceAll(strings.ReplaceAll(source, "%q", "%[1]q"), "%s", "%[2]s"), api, name, name),
		"sweep.yaml": fmt.Sprintf("identity_key_file: key\nkube_config_path: kubeconfig\nclients: {hyperfleet_api: {base_url: %q}}\n", api),
	} {
		must.Do(t, os.WriteFile(filepath.Join(s.dir, file), []byte(text), 0o600))
	}
}

// causes are parts of the readiness error of programs whose server cannot do its work.
var causes = map[string]string{"alarm": "free memory or disk space", "kube": "cluster kubernetes does not answer"}

// waitUntilUnready waits until the program is not ready and names the cause.
func (s *endingSite) waitUntilUnready(t *testing.T, cause string) {
	t.Helper()

	for end := time.Now().Add(waitTimeout); ; time.Sleep(pollInterval) {
		_, err := call(t.Context(), http.MethodGet, "http://"+s.health+"/readyz", "")
		if err != nil && strings.Contains(err.Error(), cause) {
			return
		}

		if time.Now().After(end) {
			t.Fatalf("readiness: %v, want %q", err, cause)
		}
	}
}

// check starts the program, makes its server silent, and ends the program.
func (s *endingSite) check(t *testing.T, id string) {
	t.Helper()
	s.write(t)

	process := s.start(t)
	silent := s.proxies[s.server]

	switch {
	case s.isRunning:
		s.waitUntilReady(t, process)
		s.work(t, id)
	case s.server == "collector" && s.program == "api":
		s.waitUntilReady(t, process)
		s.request(t)
		silent.WaitForConnection(t)
	default:
		silent.WaitForConnection(t)
	}

	if cause := causes[s.server]; cause != "" && s.program != "sweep" {
		s.waitUntilUnready(t, cause)
	}

	silence.Stop(t, process)
}

func (s *endingSite) start(t *testing.T) *procrun.Process {
	t.Helper()

	args := map[string][]string{
		"api":      {"api", "--config", "api.yaml"},
		"sentinel": {"sentinel", "--config", "sentinel.yaml"},
		"adapter":  {"adapter", "serve", "--config", "adapter.yaml", "--task-config", "task.yaml"},
		"consumer": {"adapter", "serve", "--config", "adapter.yaml", "--task-config", "task.yaml", "--broker-config", "broker.yaml"},
		"sweep":    {"sweep", "--config", "sweep.yaml"},
	}[s.program]

	self, err := os.Executable()
	must.Do(t, err)

	process, err := procrun.Start(context.Background(), procrun.Spec{
		Name: s.program, Path: self, Args: args, Dir: s.dir, LogPath: filepath.Join(s.dir, "log"), Env: s.env,
	})
	must.Do(t, err)

	t.Cleanup(func() { _ = process.Kill() })

	return process
}

func (s *endingSite) waitUntilReady(t *testing.T, process *procrun.Process) {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()

	if err := process.WaitReady(ctx, func(ctx context.Context) error {
		_, err := call(ctx, http.MethodGet, "http://"+s.health+"/readyz", "")

		return err
	}); err != nil {
		t.Fatalf("%v\n%s", err, process.LogTail())
	}
}

// work makes the server silent, and gives the program work for which it calls the server.
func (s *endingSite) work(t *testing.T, id string) {
	t.Helper()

	if s.server == "alarm" {
		s.broker.SetAlarm(t, true)
	} else {
		s.proxies[s.server].Silence()
	}

	switch s.program {
	case "api":
		s.request(t)
	case "consumer":
		sendEvent(t, s.in, s.name(), id)
	}

	_, err := call(t.Context(), http.MethodPatch, s.in.api+"/api/hyperfleet/v1/clusters/"+id, `{"spec": {"for": "`+filepath.Base(s.dir)+`"}}`)
	must.Do(t, err)

	// Nothing shows that a call does not return. All programs call their servers at least once in this time.
	time.Sleep(callDelay)
}

// sendEvent sends an event to an adapter, which then reads the resource from the API.
func sendEvent(t *testing.T, in *installation, topic, id string) {
	t.Helper()

	b, err := broker.Open(t.Context(), platform.Broker{RabbitMQ: platform.BrokerRabbit{URLFile: filepath.Join(in.dir, "rabbitmq-url")}}, nil, nil)
	must.Do(t, err)

	defer b.Close()

	event := cloudevents.NewEvent()
	event.SetID(id)
	event.SetSource(events.Source)
	event.SetType(events.TypePrefix + "cluster" + events.TypeSuffix)
	must.Do(t, event.SetData(events.ContentType, map[string]any{"id": id, "kind": "Cluster", "generation": 1}))
	must.Do(t, b.Publish(t.Context(), topic, event))
}

// name returns the name of the adapter, topic and lease of the case.
func (s *endingSite) name() string { return fmt.Sprintf("%s-%s-%t", s.program, s.server, s.isRunning) }

// callDelay is the time in which each program calls each of its servers.
const callDelay = 2 * time.Second

// request lets clients of the API read and write.
func (s *endingSite) request(t *testing.T) {
	t.Helper()

	base := "http://" + s.listen + "/api/hyperfleet/v1/"

	for _, request := range []struct{ method, path, body string }{
		{http.MethodGet, "clusters", ""}, {http.MethodPost, "clusters", `{"name": "another", "spec": {}}`},
	} {
		go func() { _, _ = call(t.Context(), request.method, base+request.path, request.body) }()
	}
}
