// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet-platform/adapter"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/spelling"
)

const goodDeployment = `adapter: {name: demo}
identity_key_file: /run/key
environment: [REGION]
clients:
  hyperfleet_api:
    base_url: http://api:8000
    default_headers: {X-Key: s3cret}
  broker: {subscription_id: demo, topic: clusters}
`

const goodTask = `params:
- {name: id, source: event.id}
- {name: region, source: env.REGION}
resources:
- name: space
  manifest: {apiVersion: v1, kind: Namespace, metadata: {name: "{{ .id }}"}}
  discovery: {by_name: "{{ .id }}"}
`

// runAdapter runs the command, and returns its output with its error at the end, and its exit code.
func runAdapter(t *testing.T, args ...string) (out string, code int) {
	t.Helper()

	out, err := spelling.Execute(adapter.New(), args...)
	if err == nil {
		return out, 0
	}

	if code = cli.ExitCode(err); code == 0 {
		code = -1
	}

	return out + err.Error(), code
}

func TestAdapterValidate(t *testing.T) {
	t.Parallel()

	bad := writeFile(t, "bad.yaml", strings.Replace(goodTask, "Namespace", "\"{{ .idd }}\"", 1)+"  lifecycle: {delete: {when: {expression: deleting}}}\n")
	fine := writeFile(t, "task.yaml", goodTask)
	config := writeFile(t, "config.yaml", goodDeployment)
	worse := writeFile(t, "worse.yaml", strings.Replace(goodDeployment, "topic", "topics", 1))
	secret := writeFile(t, "env.yaml", strings.Replace(goodTask, "REGION", "HOME", 1))

	cases := map[string]struct {
		args []string
		code int
		want []string
	}{
		"valid, with config": {[]string{"validate", fine, "--config", config}, 0, []string{"0 errors, 0 warnings"}},
		"everything at once": {[]string{"validate", bad, fine}, 1, []string{
			bad + ":6:36: resources[0].manifest.kind: unknown variable idd (did you mean id?)",
			bad + ":8:43: resources[0].lifecycle.delete.when.expression: unknown variable or function deleting", "2 errors",
		}},
		"config, too": {[]string{"validate", fine, "--config", worse}, 1, []string{worse + ":8:35: clients.broker.topics: unknown field (did you mean topic?)"}},
		"a Maestro server": {[]string{"validate", fine, "--config", writeFile(t, "maestro.yaml", strings.Replace(goodDeployment, "clients:\n",
			"clients:\n  maestro: {grpc_server_address: 'maestro:8090'}\n", 1))}, 1, []string{"a Maestro server is not supported"}},
		"a variant without a selector": {[]string{"validate", fine, "--config", writeFile(t, "variant.yaml", strings.Replace(goodDeployment, "  broker: {subscription_id: demo, topic: clusters}\n",
			"events: {resource_type: clusters, variant: canary}\n", 1))}, 1, []string{":8:44: events.variant: write lower-case letters and digits, and set resource_selector"}},
		"a variant with a broker": {[]string{"validate", fine, "--config", writeFile(t, "variants.yaml", goodDeployment+"events: {variant: canary}\n")}, 1,
			[]string{"events.variant: needs source: api"}},
		"Google Pub/Sub": {
			[]string{"validate", fine, "--config", config, "--broker-config", writeFile(t, "pubsub.yaml", pubSub)}, 1, []string{"error: ", pubSubProblem},
		},
		"a password in a URL": {[]string{"validate", fine, "--config", writeFile(t, "password.yaml",
			strings.Replace(goodDeployment, "http://api", "http://user:s3cret@api", 1))}, 1, []string{"clients.hyperfleet_api.base_url: is not a URL"}},
		"an empty file":            {[]string{"validate", writeFile(t, "empty.yaml", "# nothing\n")}, 1, []string{"empty.yaml:1:1: the task file is empty"}},
		"a typo in a path":         {[]string{"validate", writeFile(t, "typo.yaml", strings.Replace(goodTask, "event.id", "evnt.id", 1))}, 1, []string{"typo.yaml:2:22: params[0].source: unknown variable evnt (did you mean event?"}},
		"undeclared environment":   {[]string{"validate", secret, "--config", config}, 1, []string{"unknown env.HOME"}},
		"no file":                  {[]string{"validate"}, 2, []string{"pass at least one task file"}},
		"file that is not there":   {[]string{"validate", "/none/x.yaml"}, 1, []string{"error: /none/x.yaml"}},
		"another output":           {[]string{"validate", fine, "-o", "xml"}, 2, []string{"use text, json, yaml or rbac"}},
		"example of the reference": {[]string{"validate", "../../platform/adapter/task/testdata/seed/configuration-reference.yaml"}, 0, []string{"0 errors"}},
	}

	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			out, code := runAdapter(t, test.args...)
			if code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}

			for _, want := range test.want {
				if !strings.Contains(out, want) {
					t.Errorf("printed:\n%s\nwant %s", out, want)
				}
			}
		})
	}
}

func TestAdapterValidateAsJSON(t *testing.T) {
	t.Parallel()

	out, code := runAdapter(t, "validate", "-o", "json", writeFile(t, "bad.yaml", "resorces: []\n"))

	var got struct {
		Valid    bool
		Problems []struct {
			Hint string
			Line int
		}
		Warnings []any
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 1 || got.Valid || len(got.Problems) != 1 ||
		got.Problems[0].Line != 1 || got.Problems[0].Hint == "" || got.Warnings == nil {
		t.Errorf("exit code %d, report: %s, %v", code, out, err)
	}

	if out, code := runAdapter(t, "validate", "-o", "yaml", writeFile(t, "good.yaml", goodTask)); code != 0 || !strings.HasSuffix(out, "\nvalid: true\nwarnings: []\n") {
		t.Errorf("exit code %d, YAML: %s", code, out)
	}
}

// TestAdapterAccessOfSamples checks that the roles in the samples match the printed roles.
func TestAdapterAccessOfSamples(t *testing.T) {
	t.Parallel()

	const samples = "../../deploy/samples/platform/"

	for _, folder := range []string{"clusters", "nodepools", "agents"} {
		want, err := os.ReadFile(samples + folder + "/rbac.yaml")
		must.Do(t, err)

		out, code := runAdapter(t, "validate", samples+folder+"/task.yaml", "--config", samples+folder+"/adapter.yaml", "-o", "rbac")
		if diff := cmp.Diff(string(want), out); diff != "" || code != 0 {
			t.Errorf("%s: exit code %d (-want +got):\n%s", folder, code, diff)
		}
	}
}

func TestAdapterAccessOfSeveralFiles(t *testing.T) {
	t.Parallel()

	one := writeFile(t, "one.yaml", goodTask)
	two := writeFile(t, "two.yaml", goodTask+"  lifecycle: {delete: {when: {expression: 'true'}}}\n"+
		"- name: work\n  transport: {client: maestro, maestro: {target_cluster: c}}\n"+
		"  manifest: {apiVersion: work.open-cluster-management.io/v1, kind: ManifestWork, metadata: {name: x}, spec: {}}\n"+
		"  discovery: {by_name: x}\n")

	out, code := runAdapter(t, "validate", one, two, "-o", "rbac", "--namespace", "fleet")
	if code != 0 || strings.Count(out, "kind: ClusterRole\nmetadata") != 2 || strings.Count(out, "namespaces]") != 1 {
		t.Errorf("exit code %d:\n%s", code, out)
	}

	for _, want := range []string{
		"on its cluster.", "on its hub.", "namespace: fleet", "name: hyperfleet-adapter\n",
		"[namespaces]\n  verbs: [create, delete, get, list, patch, watch]",
		"[manifestworks]\n  verbs: [create, get, list, patch, watch]",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("printed:\n%s\nwant %s", out, want)
		}
	}

	unknown := writeFile(t, "unknown.yaml", strings.Replace(goodTask, "Namespace", "\"{{ .id }}\"", 1))
	if out, code := runAdapter(t, "validate", unknown, "-o", "rbac"); code != 1 || !strings.Contains(out, "the kind is unknown before an event") {
		t.Errorf("exit code %d:\n%s", code, out)
	}

	if out, code := runAdapter(t, "validate", writeFile(t, "bad.yaml", "resorces: []\n"), "-o", "rbac"); code != 1 || strings.Contains(out, "ClusterRole") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}

func TestAdapterConfigDump(t *testing.T) {
	t.Parallel()

	config := writeFile(t, "config.yaml", goodDeployment)

	out, code := runAdapter(t, "config-dump", "--config", config, "--clients-hyperfleet-api-timeout=3s", "--environment", "A,B")
	if code != 0 || strings.Contains(out, "s3cret") {
		t.Fatalf("exit code %d:\n%s", code, out)
	}

	for _, want := range []string{"name: demo", "timeout: 3s", "- A", "X-Key: REDACTED", "event_timeout: 2m0s"} {
		if !strings.Contains(out, want) {
			t.Errorf("printed:\n%s\nwant %s", out, want)
		}
	}

	again, code := runAdapter(t, "config-dump", "-o", "json", "--config", writeFile(t, "again.yaml", out))
	if code != 0 || !json.Valid([]byte(again)) {
		t.Errorf("the printed configuration cannot be loaded: %d\n%s", code, again)
	}

	if out, code := runAdapter(t, "config-dump"); code != 1 || !strings.Contains(out, "adapter.name") {
		t.Errorf("without a file: %d\n%s", code, out)
	}
}

const testEvent = `{"specversion":"1.0","id":"e1","source":"hyperfleet-sentinel","type":"io.hyperfleet.cluster.reconcile",
"datacontenttype":"application/json","data":{"id":"c1","kind":"Cluster","generation":1}}`

func TestAdapterDryRun(t *testing.T) {
	taskFile, event := writeFile(t, "task.yaml", goodTask), writeFile(t, "event.json", testEvent)
	config := writeFile(t, "config.yaml", goodDeployment)

	t.Setenv("REGION", "north")

	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"without a configuration": {[]string{"--task", taskFile, "--event", event}, 0, "create: Absent"},
		"a variable is listed":    {[]string{"--task", taskFile, "--event", event, "--config", config}, 0, `= "north"`},
		"a variable is given":     {[]string{"--task", taskFile, "--event", event, "--env", "REGION=south"}, 0, `= "south"`},
		"verbose":                 {[]string{"--task", taskFile, "--event", event, "--verbose"}, 0, "Final objects on the cluster"},
		"no event":                {[]string{"--task", taskFile}, 2, "--event"},
		"no such file":            {[]string{"--task", taskFile, "--event", "/nowhere"}, 1, "/nowhere"},
		"an invalid task":         {[]string{"--task", writeFile(t, "bad.yaml", "parms: []\n"), "--event", event}, 1, "bad.yaml:1:1"},
		"an event that fails":     {[]string{"--task", taskFile, "--event", writeFile(t, "e.json", strings.Replace(testEvent, `"generation":1`, `"generation":"one"`, 1))}, 1, "moved to the dead letters"},
	} {
		t.Run(name, func(t *testing.T) {
			out, code := runAdapter(t, append([]string{"dry-run"}, tc.args...)...)
			if code != tc.code || !strings.Contains(out, tc.want) {
				t.Errorf("exit code %d, want %d and %q:\n%s", code, tc.code, tc.want, out)
			}
		})
	}

	if out, _ := runAdapter(t, "dry-run", "--task", taskFile, "--event", event, "-o", "yaml"); !strings.Contains(out, "\nresources:\n") {
		t.Errorf("YAML is:\n%s", out)
	}

	out, _ := runAdapter(t, "dry-run", "--task", taskFile, "--event", event, "--output", "json")

	var report struct {
		Resources []struct{ Operation string }
		Result    struct{ Status string }
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil || report.Result.Status != "success" || report.Resources[0].Operation != "create" {
		t.Errorf("%v:\n%s", err, out)
	}
}

func TestAdapterServeNeedsItsFiles(t *testing.T) {
	taskFile, config := writeFile(t, "task.yaml", goodTask), writeFile(t, "config.yaml", goodDeployment)
	events := writeFile(t, "broker.yaml", "broker: {type: rabbitmq, rabbitmq: {url: 'amqp://127.0.0.1:1'}}\n")

	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no configuration":    {nil, 1, "no configuration file"},
		"no task file":        {[]string{"--config", config, "--broker-config", events}, 2, "--task-config"},
		"no broker":           {[]string{"--config", config, "--task-config", taskFile}, 1, "broker.type"},
		"an in-memory broker": {[]string{"--config", config, "--task-config", taskFile, "--broker-config", writeFile(t, "b.yaml", "broker: {type: memory}\n")}, 1, "events.source: api"},
		"an unknown key":      {[]string{"--config", config, "--task-config", taskFile, "--broker-config", writeFile(t, "b.yaml", "broker: {kind: x}\n")}, 1, "broker.kind"},
		"an unused broker": {[]string{
			"--config", writeFile(t, "c.yaml", strings.Replace(goodDeployment, "  broker: {subscription_id: demo, topic: clusters}\n", "events: {resource_type: clusters}\n", 1)),
			"--task-config", taskFile, "--broker-config", events,
		}, 2, "events.source: broker"},
		"no resource type": {[]string{
			"--config", writeFile(t, "d.yaml", strings.Replace(goodDeployment, "  broker: {subscription_id: demo, topic: clusters}\n", "", 1)),
			"--task-config", taskFile,
		}, 1, "events.resource_type"},
		"no key":               {[]string{"--config", config, "--task-config", taskFile, "--broker-config", events}, 1, "identity_key_file"},
		"another framework":    {[]string{"--config", config, "--task-config", taskFile, "--broker-config", events, "--adapter-framework-version", "0.1"}, 1, ""},
		"an invalid task file": {[]string{"--config", config, "--task-config", writeFile(t, "t.yaml", "params: 1\n"), "--broker-config", events}, 1, "t.yaml:1"},
	} {
		t.Run(name, func(t *testing.T) {
			out, code := runAdapter(t, append([]string{"serve"}, tc.args...)...)
			if code != tc.code || !strings.Contains(out, tc.want) {
				t.Errorf("exit code %d, want %d and %q:\n%s", code, tc.code, tc.want, out)
			}
		})
	}
}
