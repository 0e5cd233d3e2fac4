// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestUpstreamExamples checks what becomes of each file in testdata/upstream: it is converted without a problem, or each
// problem has its line and its reason. The files have the forms of the examples that upstream publishes for its API, for
// Sentinel and for adapters, with values of their own.
func TestUpstreamExamples(t *testing.T) {
	t.Parallel()

	const (
		dir     = "testdata/upstream"
		maestro = "a Maestro server is not supported: remove the key, and set kube_config_path to use the Open Cluster Management hub"
		pubSub  = "(use RabbitMQ, or no broker: an adapter with events.source: api reads the change feed of the API)"
	)

	// kind is the kind of the file, and left are the beginnings of the problems: line, column, key and reason.
	outcomes := map[string]struct {
		kind string
		left []string
	}{
		"api/plain.yaml": {kind: "configuration of the API"},
		"api/dev.yaml": {"configuration of the API", []string{
			"converted file:61:15: spec_schemas: read spec_schemas: open openapi/openapi.yaml: no such file or directory",
		}},
		"api/values.yaml": {"Helm values of the API", []string{
			"values.yaml:3:3: config.server.jwt: authentication is enabled without an issuer (set server.jwt.configs, or server.jwt.enabled: false)",
		}},
		"sentinel/rabbitmq.yaml": {kind: "configuration of Sentinel"},
		// An event has an ID also if message_data names none.
		"sentinel/blank-id.yaml": {kind: "configuration of Sentinel"},
		"sentinel/unknown-key.yaml": {"configuration of Sentinel", []string{
			"unknown-key.yaml:7:15: resource_typ: unknown key (remove it, or write what it should do here by hand)",
		}},
		"sentinel/values.yaml": {kind: "Helm values of Sentinel"},
		"sentinel/broker.yaml": {kind: "configuration of the broker"},
		"sentinel/broker-pubsub.yaml": {"configuration of the broker", []string{
			"broker-pubsub.yaml:2:9: broker.type: broker googlepubsub is not supported " + pubSub,
		}},
		"adapter/kubernetes/adapter-config.yaml":  {kind: "file of an adapter"},
		"adapter/kubernetes/task-config.yaml":     {kind: "file of an adapter"},
		"adapter/kubernetes/task-config-ref.yaml": {kind: "file of an adapter"},
		"adapter/kubernetes/task-config-missing.yaml": {"file of an adapter", []string{
			"task-config-missing.yaml:20:21: resources[0].manifest.ref: read missing.yaml: no such file or directory",
		}},
		"adapter/kubernetes/task-config-invalid.yaml": {"file of an adapter", []string{
			"task-config-invalid.yaml:7:22: preconditions[0].expression: Syntax error",
			"task-config-invalid.yaml:15:15: resources[0].manifest.metadata.name: unknown variable missing",
			"task-config-invalid.yaml:17:16: resources[0].discovery.by_name: unknown variable missing",
		}},
		"adapter/kubernetes/job.yaml": {"Kubernetes object", []string{
			"job.yaml:2:7: kind: a Kubernetes object is no configuration (a manifest that a task file names with ref stays as it is",
		}},
		"adapter/kubernetes/configmap.yaml": {"", []string{"configmap.yaml:6:1: a second YAML document"}},
		"adapter/kubernetes/values.yaml": {"Helm values of an adapter", []string{
			"values.yaml:16:22: broker.googlepubsub.deadLetterTopic: Google Pub/Sub is not supported " + pubSub,
		}},
		"adapter/maestro/adapter-config.yaml": {"file of an adapter", []string{
			"adapter-config.yaml:13:26: clients.maestro.grpc_server_address: " + maestro,
			"adapter-config.yaml:14:26: clients.maestro.http_server_address: " + maestro,
		}},
		// The work of a Maestro server goes through the hub.
		"adapter/maestro/task-config.yaml": {kind: "file of an adapter"},
	}

	var files []string

	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			files = append(files, path)
		}

		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	for _, file := range files {
		want, ok := outcomes[file]
		if !ok {
			t.Errorf("%s has no row", file)

			continue
		}

		delete(outcomes, file)
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			checkOutcome(t, filepath.Join(dir, file), want.kind, want.left)
		})
	}

	if len(outcomes) > 0 {
		t.Errorf("rows without a file: %v", outcomes)
	}
}

// checkOutcome checks the kind and the problems of a file.
func checkOutcome(t *testing.T, file, kind string, left []string) {
	t.Helper()

	out, code := runMigrate("migrate", file)

	var got []string

	for line := range strings.Lines(out) {
		line = strings.ReplaceAll(strings.TrimSpace(line), filepath.Dir(file)+"/", "")

		switch problem, isLeft := strings.CutPrefix(line, "left: "); {
		case isLeft:
			got = append(got, problem)
		case kind == "" && strings.Contains(line, ":6:1: "): // a file that is not parsed has only an error
			got = append(got, line)
		}
	}

	if kind != "" && !strings.Contains(out, "file: "+kind+"\n") {
		t.Errorf("it is not %q:\n%s", kind, out)
	}

	if isLeft := len(left) > 0; (code == 0) == isLeft || code > 1 {
		t.Errorf("exit code %d with %d problems", code, len(left))
	}

	isSame := slices.EqualFunc(left, got, func(want, got string) bool { return strings.Contains(got, want) })
	if !isSame {
		t.Errorf("problems (-want +got):\n%s", cmp.Diff(left, got))
	}
}
