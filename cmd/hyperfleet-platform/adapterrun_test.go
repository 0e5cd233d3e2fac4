// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"
)

const testEvent = `{"specversion":"1.0","id":"e1","source":"hyperfleet-sentinel","type":"io.hyperfleet.cluster.reconcile",
"datacontenttype":"application/json","data":{"id":"c1","kind":"Cluster","generation":1}}`

func TestAdapterDryRun(t *testing.T) {
	taskFile, event := file(t, "task.yaml", goodTask), file(t, "event.json", testEvent)
	config := file(t, "config.yaml", strings.Replace(goodDeployment, "user:s3cret@", "", 1))

	t.Setenv("REGION", "north")

	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"without a configuration": {[]string{"--task", taskFile, "--event", event}, 0, "create: Absent"},
		"a variable is listed":    {[]string{"--task", taskFile, "--event", event, "--config", config}, 0, `= "north"`},
		"a variable is given":     {[]string{"--task", taskFile, "--event", event, "--env", "REGION=south"}, 0, `= "south"`},
		"verbose":                 {[]string{"--task", taskFile, "--event", event, "--verbose"}, 0, "Cluster in the end"},
		"nothing to play":         {[]string{"--task", taskFile}, 2, "--event"},
		"no such file":            {[]string{"--task", taskFile, "--event", "/nowhere"}, 1, "/nowhere"},
		"a task that is wrong":    {[]string{"--task", file(t, "bad.yaml", "parms: []\n"), "--event", event}, 1, "bad.yaml:1:1"},
		"an event that fails":     {[]string{"--task", taskFile, "--event", file(t, "e.json", strings.Replace(testEvent, `"generation":1`, `"generation":"one"`, 1))}, 1, "put to the dead letters"},
		"an unknown output":       {[]string{"--task", taskFile, "--event", event, "--output", "xml"}, 2, "text or json"},
	} {
		t.Run(name, func(t *testing.T) {
			out, code := runAdapter(t, append([]string{"dry-run"}, tc.args...)...)
			if code != tc.code || !strings.Contains(out, tc.want) {
				t.Errorf("exit code %d, want %d and %q:\n%s", code, tc.code, tc.want, out)
			}
		})
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
	taskFile, config := file(t, "task.yaml", goodTask), file(t, "config.yaml", goodDeployment)
	events := file(t, "broker.yaml", "broker: {type: rabbitmq, rabbitmq: {url: 'amqp://127.0.0.1:1'}}\n")

	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no configuration":      {nil, 1, "no configuration file"},
		"no task file":          {[]string{"--config", config, "--broker-config", events}, 2, "--task-config"},
		"no broker":             {[]string{"--config", config, "--task-config", taskFile}, 1, "broker.type"},
		"a broker inside of it": {[]string{"--config", config, "--task-config", taskFile, "--broker-config", file(t, "b.yaml", "broker: {type: memory}\n")}, 1, "events.source: api"},
		"an unknown key":        {[]string{"--config", config, "--task-config", taskFile, "--broker-config", file(t, "b.yaml", "broker: {kind: x}\n")}, 1, "broker.kind"},
		"a broker that nobody asks": {[]string{
			"--config", file(t, "c.yaml", strings.Replace(goodDeployment, "  broker: {subscription_id: demo, topic: clusters}\n", "events: {resource_type: clusters}\n", 1)),
			"--task-config", taskFile, "--broker-config", events,
		}, 2, "events.source: broker"},
		"nothing to follow": {[]string{
			"--config", file(t, "d.yaml", strings.Replace(goodDeployment, "  broker: {subscription_id: demo, topic: clusters}\n", "", 1)),
			"--task-config", taskFile,
		}, 1, "events.resource_type"},
		"no key":                     {[]string{"--config", config, "--task-config", taskFile, "--broker-config", events}, 1, "identity_key_file"},
		"another framework":          {[]string{"--config", config, "--task-config", taskFile, "--broker-config", events, "--adapter-framework-version", "0.1"}, 1, ""},
		"a flag that there is not":   {[]string{"--dry"}, 2, "--dry"},
		"a task file that is broken": {[]string{"--config", config, "--task-config", file(t, "t.yaml", "params: 1\n"), "--broker-config", events}, 1, "t.yaml:1"},
	} {
		t.Run(name, func(t *testing.T) {
			out, code := runAdapter(t, append([]string{"serve"}, tc.args...)...)
			if code != tc.code || !strings.Contains(out, tc.want) {
				t.Errorf("exit code %d, want %d and %q:\n%s", code, tc.code, tc.want, out)
			}
		})
	}
}
