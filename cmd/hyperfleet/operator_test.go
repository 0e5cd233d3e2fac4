// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/operator"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/root"
	"github.com/hyperfleet/hyperfleet/test/otlp"
	"github.com/hyperfleet/hyperfleet/test/spelling"
	"github.com/hyperfleet/hyperfleet/test/tpm"
)

// TestOperatorExports checks that the operator logs where it exports spans before it connects to the API server.
func TestOperatorExports(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	for name, text := range map[string]string{
		"operator.yaml": "apiVersion: config.hyperfleet.io/v1alpha1\nkind: OperatorConfig\nnamespace: hyperfleet-system\n",
		"kubeconfig": "apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}]\n" +
			"users: [{name: a, user: {}}]\ncontexts: [{name: a, context: {cluster: a, user: a}}]\ncurrent-context: a\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	receiver := otlp.StartHTTP(t)

	for enabled, want := range map[string][]string{
		"perhaps": {`HYPERFLEET_TRACING_ENABLED: "perhaps": want true or false`},
		"true":    {"spans are exported", receiver.URL},
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "operator", "--config", "operator.yaml", "--kubeconfig", "kubeconfig")
		cmd.Dir = dir
		cmd.Env = []string{
			envProgram + "=1", "PATH=" + os.Getenv("PATH"),
			"OTEL_EXPORTER_OTLP_ENDPOINT=" + receiver.URL, "HYPERFLEET_TRACING_ENABLED=" + enabled,
		}

		out, err := cmd.CombinedOutput()
		if err == nil {
			t.Errorf("%s: it ended well without an API server", enabled)
		}

		for _, text := range want {
			if !strings.Contains(string(out), text) {
				t.Errorf("%s: the output does not contain %q:\n%s", enabled, text, out)
			}
		}
	}
}

func TestFlagSpelling(t *testing.T) {
	t.Parallel()

	program := root.New()
	spelling.CheckFlags(t, program)

	cmd, _, err := program.Find([]string{"operator"})
	if err != nil {
		t.Fatal(err)
	}

	for _, name := range []string{
		"hosts-linux-vm-egress-cidrs", "hosts-linux-vm-dns-ip", "hosts-mac-vm-dns-ip", "bridge-hypershift-namespace",
		"bridge-metallb-namespace", "bridge-registry-ca-file", "identity-devid-key-file", "identity-spire-workload-api", "operator-uid",
	} {
		if cmd.Flags().Lookup(name) == nil {
			t.Errorf("there is no flag --%s", name)
		}
	}
}

// TestAllAreasRunByDefault checks that all areas are enabled by default, and that the Lease has the names of the areas.
func TestAllAreasRunByDefault(t *testing.T) {
	t.Parallel()

	cfg := v1alpha1.Default()
	if want := []string{"runners", "networking", "hosts", "bridge"}; !slices.Equal(cfg.Controllers, want) {
		t.Errorf("%v, want %v", cfg.Controllers, want)
	}

	if err := operator.NewConfigSpec().Validate(&cfg); err != nil {
		t.Errorf("the default configuration: %v", err)
	}

	cfg.Controllers = []string{"runners", "dns"}
	if err := operator.NewConfigSpec().Validate(&cfg); err == nil || !strings.Contains(err.Error(), `unknown area "dns": use any of runners, networking, hosts, bridge`) {
		t.Errorf("an area that there is not: %v", err)
	}
}

// shardSettings are the settings of one of several operators.
func shardSettings() []invalidConfig {
	row := func(name, want string, edit func(*v1alpha1.OperatorConfig)) invalidConfig {
		return invalidConfig{"shard, " + name, func(c *v1alpha1.OperatorConfig) {
			c.Controllers, c.Namespaces = []string{"runners"}, []string{"team-a", "team-b"}
			c.Shard = v1alpha1.Shard{Name: "a", Operators: 3}
			edit(c)
		}, want}
	}

	return []invalidConfig{
		row("in order", "", func(*v1alpha1.OperatorConfig) {}),
		row("without a name", "shard.name: an operator with namespaces needs a name", func(c *v1alpha1.OperatorConfig) { c.Shard.Name = "" }),
		row("with a bad name", "shard.name", func(c *v1alpha1.OperatorConfig) { c.Shard.Name = "a.b" }),
		row("without namespaces", "shard.name: it needs namespaces", func(c *v1alpha1.OperatorConfig) { c.Namespaces = nil }),
		row("a pattern", `namespaces: "team-*" is not the name`, func(c *v1alpha1.OperatorConfig) { c.Namespaces = []string{"team-*"} }),
		row("other areas", "only the area runners can be divided", func(c *v1alpha1.OperatorConfig) { c.Controllers = v1alpha1.Areas() }),
		row("no operators", "shard.operators", func(c *v1alpha1.OperatorConfig) { c.Shard.Operators = 0 }),
	}
}

// invalidConfig is a change of the default configuration and a part of the validation error. If want is empty, the
// configuration is valid.
type invalidConfig struct {
	name string
	edit func(*v1alpha1.OperatorConfig)
	want string
}

func logSettings() []invalidConfig {
	row := func(name, want string, edit func(*v1alpha1.RunnerLogs)) invalidConfig {
		return invalidConfig{"logs, " + name, func(c *v1alpha1.OperatorConfig) {
			c.Runners.Logs = v1alpha1.RunnerLogs{KeepIn: "store", Store: v1alpha1.LogStore{
				Endpoint: "https://s3.example.com", Region: "eu-1", Bucket: "ci-logs", Prefix: "hyperfleet/", Secret: "log-store",
			}}
			edit(&c.Runners.Logs)
		}, want}
	}

	return []invalidConfig{
		row("in order", "", func(*v1alpha1.RunnerLogs) {}),
		row("without prefix", "", func(l *v1alpha1.RunnerLogs) { l.Store.Prefix = "" }),
		row("nowhere", "", func(l *v1alpha1.RunnerLogs) { *l = v1alpha1.RunnerLogs{KeepIn: "nowhere"} }),
		row("elsewhere", `unknown place "s3": use one of cluster, store, nowhere`, func(l *v1alpha1.RunnerLogs) { l.KeepIn = "s3" }),
		row("in the clear", "runners.logs.store.endpoint: it must be https", func(l *v1alpha1.RunnerLogs) { l.Store.Endpoint = "http://s3.example.com" }),
		row("no endpoint", "runners.logs.store.endpoint: it must be a URL", func(l *v1alpha1.RunnerLogs) { l.Store.Endpoint = "" }),
		row("no region", "runners.logs.store.region", func(l *v1alpha1.RunnerLogs) { l.Store.Region = "" }),
		row("no secret", "runners.logs.store.secret", func(l *v1alpha1.RunnerLogs) { l.Store.Secret = "" }),
		row("a bucket's name", "runners.logs.store.bucket", func(l *v1alpha1.RunnerLogs) { l.Store.Bucket = "a/b" }),
		row("a long prefix", "runners.logs.store.prefix", func(l *v1alpha1.RunnerLogs) { l.Store.Prefix = strings.Repeat("x", 600) }),
	}
}

func devIDSettings(t *testing.T) []invalidConfig {
	t.Helper()

	good, other := tpm.NewDevID(t), tpm.NewDevID(t)
	row := func(name, want string, devID v1alpha1.DevID) invalidConfig {
		return invalidConfig{"DevID, " + name, func(c *v1alpha1.OperatorConfig) { c.Identity.DevID = devID }, want}
	}

	return []invalidConfig{
		row("in order", "", good),
		row("no key", "identity.devID.keyFile", v1alpha1.DevID{CertFile: good.CertFile}),
		row("no certificate", "identity.devID.certFile", v1alpha1.DevID{KeyFile: good.KeyFile}),
		row("another's key", "identity.devID", v1alpha1.DevID{CertFile: good.CertFile, KeyFile: other.KeyFile}),
		row("a key's certificate", "identity.devID", v1alpha1.DevID{CertFile: good.KeyFile, KeyFile: good.KeyFile}),
	}
}

func spireSettings() []invalidConfig {
	row := func(name, want string, edit func(*v1alpha1.SPIRE)) invalidConfig {
		return invalidConfig{"SPIRE, " + name, func(c *v1alpha1.OperatorConfig) {
			c.Identity.SPIRE.Address, c.Identity.SPIRE.MachineAddress = "unix:///run/spire/server.sock", "spire.example.com:8081"
			edit(&c.Identity.SPIRE)
		}, want}
	}

	return []invalidConfig{
		row("by socket", "", func(*v1alpha1.SPIRE) {}),
		row("over TLS", "", func(c *v1alpha1.SPIRE) { c.Address, c.WorkloadAPI = "spire:8081", "unix:///run/spire/agent.sock" }),
		row("over TLS without an agent", "identity.spire: ", func(c *v1alpha1.SPIRE) { c.Address = "spire:8081" }),
		row("machines' address alone", "identity.spire.address", func(c *v1alpha1.SPIRE) { c.Address = "" }),
		row("no address for machines", "identity.spire.machineAddress", func(c *v1alpha1.SPIRE) { c.MachineAddress = "" }),
		row("no trust domain", "trust domain", func(c *v1alpha1.SPIRE) { c.TrustDomain = "" }),
		row("no time", "identity.spire.timeout", func(c *v1alpha1.SPIRE) { c.Timeout = 0 }),
	}
}

func webhookSettings() []invalidConfig {
	const beyond = `webhooks.bindAddress: ":8443" is not a loopback address, so tokens of machines need TLS: ` +
		"set webhooks.certFile and webhooks.keyFile, or webhooks.ownAuthority, or webhooks.plainHTTP if an ingress terminates TLS"

	row := func(name, want string, own bool, edit func(*v1alpha1.OperatorConfig)) invalidConfig {
		return invalidConfig{"webhooks, " + name, func(c *v1alpha1.OperatorConfig) {
			c.Webhooks.OwnAuthority = own
			edit(c)
		}, want}
	}
	given := func(c *v1alpha1.OperatorConfig) { c.Webhooks.CertFile, c.Webhooks.KeyFile = "tls.crt", "tls.key" }

	rows := []invalidConfig{
		row("as they come", "", true, func(*v1alpha1.OperatorConfig) {}),
		row("no certificate", beyond, false, func(*v1alpha1.OperatorConfig) {}),
		row("of another area", "", false, func(c *v1alpha1.OperatorConfig) { c.Controllers = []string{"hosts"} }),
		row("no server", "", false, func(c *v1alpha1.OperatorConfig) { c.Webhooks.BindAddress = "0" }),
		row("plain HTTP enabled", "", false, func(c *v1alpha1.OperatorConfig) { c.Webhooks.PlainHTTP = true }),
		row("a certificate", "", false, given),
		row("half of it", "webhooks.certFile: it is required together", true, func(c *v1alpha1.OperatorConfig) { c.Webhooks.CertFile = "tls.crt" }),
		row("both ways", "webhooks.plainHTTP: it conflicts with webhooks.certFile, which serves TLS", true, func(c *v1alpha1.OperatorConfig) {
			given(c)

			c.Webhooks.PlainHTTP = true
		}),
	}

	for address, loopback := range map[string]bool{
		"127.0.0.1:8443": true, "[::1]:8443": true, "localhost:8443": true, "[::ffff:127.0.0.1]:8443": true,
		"0.0.0.0:8443": false, "[::]:8443": false, "10.0.0.1:8443": false, "127.0.0.1.example.com:8443": false, "": false,
	} {
		want := "is not a loopback address"
		if loopback {
			want = ""
		}

		rows = append(rows, row("at "+address, want, false, func(c *v1alpha1.OperatorConfig) { c.Webhooks.BindAddress = address }))
	}

	return rows
}

// TestSettings checks that validation rejects configurations with which the operator could not start.
func TestSettings(t *testing.T) {
	t.Parallel()

	for _, tc := range slices.Concat(logSettings(), shardSettings(), devIDSettings(t), spireSettings(), webhookSettings()) {
		cfg := v1alpha1.Default()
		tc.edit(&cfg)

		err := operator.NewConfigSpec().Validate(&cfg)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}

		if err != nil {
			continue
		}

		made, err := operator.NewSPIRERegistry(cfg.Identity.SPIRE, "operator", nil)
		if err != nil || (made == nil) != (cfg.Identity.SPIRE.Address == "") {
			t.Errorf("%s: Registry = %v, %v", tc.name, made, err)
		}
	}
}

// TestCallsToSPIREAreCounted checks that the metrics count calls to the SPIRE server by operation.
func TestCallsToSPIREAreCounted(t *testing.T) {
	t.Parallel()

	metrics := prometheus.NewRegistry()

	transports, err := operator.NewTransports(metrics, nil)
	if err != nil {
		t.Fatal(err)
	}

	cfg := v1alpha1.SPIRE{
		Address: "unix:///nowhere/server.sock", TrustDomain: "hyperfleet.io", MachineAddress: "spire:8081", Timeout: time.Second,
	}

	made, err := operator.NewSPIRERegistry(cfg, "operator", transports.ObserveSPIRE)
	if err != nil {
		t.Fatal(err)
	}

	err = errors.Join(made.Check(t.Context()), made.Close())
	if err == nil {
		t.Fatal("a server that is not there answered")
	}

	if got := testutil.CollectAndCount(metrics, "hyperfleet_external_call_duration_seconds"); got != 1 {
		t.Errorf("%d series, want that of GetBundle", got)
	}
}
