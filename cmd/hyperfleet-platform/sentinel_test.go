// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet-platform/sentinel"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/spelling"
)

const goodSentinel = `
resource_type: clusters
resource_selector: [{label: tier, value: gold}]
clients: {hyperfleet_api: {base_url: "http://127.0.0.1:1"}}
broker: {type: rabbitmq, rabbitmq: {url: "amqp://127.0.0.1:1"}}
message_decision:
  params:
    - {name: old, expr: 'now - condition("Reconciled").last_updated_time > duration("10s")'}
  result: old && resource.generation > 0
message_data:
  shard: resource.labels.shard
  origin: {region: '"eu"', number: 3}
`

func runSentinel(t *testing.T, args ...string) error {
	t.Helper()

	_, err := spelling.Execute(sentinel.New(), args...)

	return err
}

func TestSentinelValidate(t *testing.T) {
	for name, tc := range map[string]struct {
		config string
		args   []string
		want   []string
	}{
		"good": {config: goodSentinel},
		"nothing": {
			config: "{}\n", want: []string{"resource_type", "clients.hyperfleet_api.base_url", "broker.type"},
		},
		"an unknown field": {config: goodSentinel + "pol_interval: 3s\n", want: []string{"pol_interval", "poll_interval"}},
		"expressions": {
			config: strings.ReplaceAll(strings.ReplaceAll(goodSentinel, "old && ", "odl && "), "resource.labels.shard", "resourc.id"),
			want:   []string{"message_decision.result", "odl", "message_data.shard", "resourc"},
		},
		"a result that is not a bool": {
			config: strings.ReplaceAll(goodSentinel, "old && resource.generation > 0", `"yes"`), want: []string{"message_decision.result", "bool"},
		},
		"numbers": {
			config: goodSentinel, args: []string{"--page-size=500", "--poll-interval=1ms"}, want: []string{"page_size", "poll_interval"},
		},
		"another broker":  {config: goodSentinel, args: []string{"--broker-type=memory"}, want: []string{`broker.type: "memory": set rabbitmq`}},
		"an unknown flag": {config: goodSentinel, args: []string{"--pol-interval=3s"}, want: []string{"--pol-interval"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := runSentinel(t, append([]string{"config", "validate", "--config", writeFile(t, "sentinel.yaml", tc.config)}, tc.args...)...)
			if len(tc.want) == 0 {
				must.Do(t, err)

				return
			}

			if code := cli.ExitCode(err); code != cli.ExitUsage {
				t.Fatalf("exit code %d of %v", code, err)
			}

			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %v\ndoes not contain %q", err, want)
				}
			}
		})
	}
}

// pubSub is a broker's file of upstream, whose type comes before the keys that only Pub/Sub has.
const (
	pubSub        = "broker:\n  type: googlepubsub\n  googlepubsub: {project_id: p}\n"
	pubSubProblem = "pubsub.yaml:2:9: broker.type: Google Pub/Sub is not supported"
)

func TestSentinelBrokerFile(t *testing.T) {
	t.Setenv(broker.EnvFile, writeFile(t, "sentinel.yaml", "broker: {type: rabbitmq, rabbitmq: {url: 'amqp://127.0.0.1:1'}}\n"))

	config := writeFile(t, "sentinel.yaml", strings.ReplaceAll(goodSentinel, `broker: {type: rabbitmq, rabbitmq: {url: "amqp://127.0.0.1:1"}}`+"\n", ""))
	must.Do(t, runSentinel(t, "config", "validate", "--config", config))

	t.Setenv(broker.EnvFile, writeFile(t, "pubsub.yaml", pubSub))

	if err := runSentinel(t, "config", "validate", "--config", config); err == nil || !strings.Contains(err.Error(), pubSubProblem) {
		t.Errorf("error %v", err)
	}
}

func TestSentinelConnects(t *testing.T) {
	config := writeFile(t, "sentinel.yaml", goodSentinel)

	// Check that Sentinel tries to connect to RabbitMQ.
	err := runSentinel(t, "--config", config, "--health-address=0", "--metrics-address=0")
	if err == nil || !strings.Contains(err.Error(), "connect to RabbitMQ") {
		t.Errorf("error %v", err)
	}
}
