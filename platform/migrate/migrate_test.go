// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package migrate_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/platform/migrate"
)

// convert converts a text.
func convert(t *testing.T, text string) *migrate.Result {
	t.Helper()

	name := filepath.Join(t.TempDir(), "upstream.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	accept := func(string, []byte) strictyaml.Problems { return nil }

	result, err := migrate.File(name, migrate.Checks{API: accept, Sentinel: accept})
	if err != nil {
		t.Fatal(err)
	}

	return result
}

// lines returns the problems without the name of the file.
func lines(problems strictyaml.Problems) []string {
	out := make([]string, 0, len(problems))

	for _, problem := range problems {
		problem.File = ""
		out = append(out, problem.String())
	}

	return out
}

// TestFile checks what becomes of the keys that upstream's configurations and charts have.
func TestFile(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		in string
		// want is the converted text. left and notes are parts of the problems and the notes, in order.
		want        string
		left, notes []string
	}{
		"API with issuers and tenants": {
			in: `server:
  host: 0.0.0.0
  port: 8443
  timeouts: {read: 5s, write: 30s}
  tls: {enabled: true, cert_file: /tls/crt, key_file: /tls/key}
  jwt:
    enabled: true
    configs:
    - {issuer_url: "https://idp.example.com", jwk_cert_file: keys.json, header: Authorization}
  tenant: {enabled: true, system_header: X-System, dimensions: [{header: X-Org, key: org, required: true}]}
database:
  host: db.example.com
  username: fleet
  password: swordfish
  ssl: {mode: verify-full, root_cert_file: /ca.crt}
  pool: {max_connections: 20, max_idle_connections: 5}
logging: {level: debug, format: text, output: stdout, masking: {enabled: true}}
metrics: {port: 9191, reconciliation_stuck_threshold: 15m}
entities:
- {kind: Cluster, plural: clusters, required_adapters: [dns]}
`,
			want: `database:
  max_connections: 20
  url_file: database-url
entities:
  - kind: Cluster
    plural: clusters
    required_adapters:
      - dns
log:
  format: text
  level: debug
roles:
  - role: admin
    values:
      - '*'
  - role: sentinel
    values:
      - '*'
  - adapters:
      - dns
    role: adapter
    values:
      - '*'
server:
  address: :8443
  health_address: localhost:8080
  jwt:
    configs:
      - header: Authorization
        identity_claim: email
        issuer_url: https://idp.example.com
        jwk_cert_file: keys.json
  metrics_address: localhost:9191
  tenant:
    dimensions:
      - header: X-Org
        key: org
        required: true
    system_header: X-System
  tls_cert_file: /tls/crt
  tls_key_file: /tls/key
stuck_after: 15m
`,
			notes: []string{
				"line 4, column 20: server.timeouts.read: left out",
				"line 4, column 31: server.timeouts.write: left out",
				"line 7, column 5: server.jwt: every caller with a valid token has all permissions",
				"line 12, column 3: database: the connection is in a file of its own (write this line into the file database-url " +
					"beside the configuration: postgres://fleet:PASSWORD@db.example.com:5432/hyperfleet?sslmode=verify-full&sslrootcert=%2Fca.crt",
				"line 16, column 9: database.pool: only max_connections is converted",
				"line 17, column 64: logging.masking: left out",
			},
		},
		"API with what has no counterpart": {
			in: `server:
  jwt:
    configs:
    - issuer_url: https://a.example.com
      identity_claim_pattern: "@example[.]com$"
    - {issuer_url: "https://b.example.com", identity_header: X-Identity}
metrics: {tls: {enabled: true}}
logging: {output: stderr}
entities: [{kind: Cluster, plural: clusters, spec_schema_name: ClusterSpec, colour: red}]
`,
			left: []string{
				"line 5, column 31: server.jwt.configs[0].identity_claim_pattern: @example[.]com$ has no counterpart (grant the callers roles",
				"line 6, column 62: server.jwt.configs[1].identity_header: X-Identity has no counterpart",
				"line 7, column 26: metrics.tls.enabled: true has no counterpart",
				"line 8, column 19: logging.output: stderr has no counterpart",
				"line 9, column 85: entities[0].colour: unknown key",
			},
		},
		"API without authentication": {
			in:    "server: {jwt: {enabled: false, configs: [{issuer_url: x}]}}\n",
			left:  nil,
			notes: []string{"database: the connection", "every client that reaches the API has all permissions"},
			want: "database:\n  url_file: database-url\ninsecure_no_authentication: true\nserver:\n  address: localhost:8000\n" +
				"  health_address: localhost:8080\n  metrics_address: localhost:9090\nstuck_after: 10m\n",
		},
		"Sentinel": {
			in: `sentinel: {name: clusters}
debug_config: true
tracing_enabled: false
log: {level: info, output: stdout}
clients:
  hyperfleet_api:
    base_url: http://api:8000
    version: v1
    page_size: 20
    auth: {token_path: /token, token_cache_ttl: 30s}
  broker: {topic: events}
resource_type: clusters
poll_interval: 2s
resource_selector: [{label: shard, value: "1"}]
message_decision:
  params: [{name: isNew, expr: 'resource.generation == 1'}]
  result: isNew
message_data: {id: resource.id, ownerReferences: {kind: resource.kind}}
`,
			want: `clients:
  hyperfleet_api:
    base_url: http://api:8000
    token_file: /token
log:
  level: info
message_data:
  id: resource.id
  ownerReferences:
    kind: resource.kind
message_decision:
  params:
    - expr: resource.generation == 1
      name: isNew
  result: isNew
page_size: 20
poll_interval: 2s
resource_selector:
  - label: shard
    value: "1"
resource_type: clusters
topic: events
`,
			notes: []string{"sentinel.name: left out", "debug_config: left out", "token_cache_ttl: left out", "clients.broker: the broker is in a file"},
		},
		"Sentinel with a typo": {
			in:   "sentinel: {name: a}\nresource_typ: clusters\nclients: {hyperfleet_api: {version: v2}}\n",
			left: []string{"line 2, column 15: resource_typ: unknown key", "version: v2 has no counterpart (the API has one version)"},
		},
		"Sentinel with typos whose values are empty": {
			in: "resource_type: clusters\nresource_selectr: []\nmessage_dta: {}\ntopc:\nclients: {hyperfleet_api: {auth: {}}, brokr: {}}\n" +
				"log:\nresource_selector: []\n",
			left: []string{
				"line 2, column 19: resource_selectr: unknown key", "line 3, column 14: message_dta: unknown key",
				"topc: unknown key", "line 5, column 46: clients.brokr: unknown key",
			},
		},
		"RabbitMQ": {
			in: `broker:
  type: rabbitmq
  rabbitmq: {url: "amqp://user:pw@mq:5672/", exchange_type: topic, prefetch_count: 10}
subscriber: {parallelism: 3}
log_config: false
`,
			want: "broker:\n  parallelism: 3\n  rabbitmq:\n    exchange_type: topic\n    prefetch_count: 10\n" +
				"    url_file: rabbitmq-url\n  type: rabbitmq\n",
			notes: []string{"line 3, column 19: broker.rabbitmq.url: the URL has a password"},
		},
		"Google Pub/Sub": {
			in:   "broker:\n  type: googlepubsub\n  googlepubsub: {project_id: p}\n",
			left: []string{"line 2, column 9: broker.type: broker googlepubsub is not supported (use RabbitMQ"},
		},
		"values of the API": {
			in: `replicaCount: 3
image: {repository: api, tag: "1"}
config:
  server: {port: 8000, jwt: {enabled: false}}
  database: {host: db}
  entities: []
resources: {limits: {cpu: 1}}
sidecars: [{name: proxy}]
autoscaling: {enabled: true, minReplicas: 1, maxReplicas: 4, targetCPUUtilizationPercentage: 80}
database: {postgresql: {enabled: true}}
monitoring: {podMonitoring: {enabled: true, additionalLabels: {release: prometheus}}}
`,
			left: []string{
				"line 8, column 11: sidecars: the value has no counterpart",
				"line 10, column 34: database.postgresql.enabled: the chart does not install PostgreSQL",
			},
			want: `monitoring:
  enabled: true
  labels:
    release: prometheus
parts:
  api:
    autoscaling:
      maxReplicas: 4
      metrics:
        - resource:
            name: cpu
            target:
              averageUtilization: 80
              type: Utilization
          type: Resource
      minReplicas: 1
    config:
      entities: []
      insecure_no_authentication: true
      stuck_after: 10m
    replicas: 3
    resources:
      limits:
        cpu: 1
`,
			notes: []string{"image.repository: left out", "image.tag: left out", "config.server.jwt: every client"},
		},
		"values of the API with the default limit of replicas": {
			in:   "config: {entities: [], server: {jwt: {enabled: false}}}\nresources: {limits: {cpu: 1}}\nautoscaling: {enabled: true, minReplicas: 2}\n",
			left: []string{"line 3, column 24: autoscaling.enabled: the limit is a default of upstream's chart (set autoscaling.maxReplicas)"},
		},
		"broker with settings of RabbitMQ that have no effect": {
			in:   "broker: {type: rabbitmq, rabbitmq: {url: 'amqp://h:1', prefetch_size: 0, consumer_tag: c}}\n",
			want: "broker:\n  rabbitmq:\n    url: amqp://h:1\n  type: rabbitmq\n", notes: []string{"consumer_tag: left out"},
		},
		"a manifest": {
			in:   "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n",
			left: []string{"line 2, column 7: kind: a Kubernetes object is no configuration (a manifest that a task file names"},
		},
		"values of Sentinel": {
			in: `config:
  resourceType: clusters
  pollInterval: 5s
  clients: {hyperfleetApi: {baseUrl: "http://api", auth: {enabled: false, tokenPath: /token}}}
  messageData: {ownerReferences: resource.id}
broker: {type: googlepubsub, topic: t, googlepubsub: {projectId: p}}
`,
			left: []string{"line 6, column 16: broker.type: broker googlepubsub is not supported"},
			want: "clients:\n  hyperfleet_api:\n    base_url: http://api\nmessage_data:\n  ownerReferences: resource.id\n" +
				"poll_interval: 5s\nresource_type: clusters\ntopic: t\n",
			notes: []string{"the chart does not install Sentinel"},
		},
		"values of an adapter": {
			in: `adapterConfig:
  hyperfleetApi: {baseUrl: "http://api"}
  log: {level: debug}
  yaml: {adapter: {name: dns, version: "1"}, events: {resource_type: clusters}}
adapterTaskConfig: {yaml: {params: []}, files: {task.yaml: a}}
rbac: {resources: [jobs], rules: [{apiGroups: [batch], resources: [jobs], verbs: [get]}]}
broker: {googlepubsub: {topic: t}}
env: [{name: A, value: b}]
autoscaling: {enabled: true}
`,
			left: []string{
				"line 7, column 32: broker.googlepubsub.topic: Google Pub/Sub is not supported",
				"line 9, column 24: autoscaling.enabled: autoscaling has no counterpart in the chart (only the leader works",
			},
			want: `adapters:
  dns:
    config:
      adapter:
        version: "1"
      events:
        resource_type: clusters
      log:
        level: debug
    env:
      - name: A
        value: b
    rules:
      - apiGroups:
          - batch
        resources:
          - jobs
        verbs:
          - get
    task: |
      params: []
`,
			notes: []string{"baseUrl: left out", "task file is copied", "files are not in the values: task.yaml", "rbac.resources: left out"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got := convert(t, test.in)
			if test.want != "" && string(got.Text) != test.want {
				t.Errorf("converted to\n%s\nwant\n%s", got.Text, test.want)
			}

			if strings.Contains(string(got.Text)+strings.Join(lines(got.Notes), ""), "swordfish") {
				t.Error("the output contains the password")
			}

			requireParts(t, "problems", lines(got.Left), test.left)

			if test.notes != nil {
				requireParts(t, "notes", lines(got.Notes), test.notes)
			}
		})
	}
}

// requireParts checks that each line contains the part of the same index.
func requireParts(t *testing.T, what string, got, parts []string) {
	t.Helper()

	if len(got) != len(parts) {
		t.Errorf("%d %s, want %d:\n%s", len(got), what, len(parts), strings.Join(got, "\n"))

		return
	}

	for i, part := range parts {
		if !strings.Contains(got[i], part) {
			t.Errorf("%s[%d]: %s\nwant %s", what, i, got[i], part)
		}
	}
}

// TestConvertedFileIsChecked checks that what the program would refuse is a problem, and that files which are no
// configuration are errors.
func TestConvertedFileIsChecked(t *testing.T) {
	t.Parallel()

	name := filepath.Join(t.TempDir(), "upstream.yaml")
	if err := os.WriteFile(name, []byte("sentinel: {name: a}\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	refuse := func(file string, text []byte) strictyaml.Problems {
		return strictyaml.Problems{{File: file, Message: "refused: " + string(text)}}
	}

	got, err := migrate.File(name, migrate.Checks{Sentinel: refuse})
	if err != nil || len(got.Left) != 1 || !strings.Contains(got.Left[0].String(), "converted file: refused") {
		t.Errorf("%+v, %v", got, err)
	}

	for _, text := range []string{"a: [", "--- 1\n--- 2\n", "- list\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}

		if _, err := migrate.File(name, migrate.Checks{}); err == nil {
			t.Errorf("no error for %q", text)
		}
	}
}
