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
	"github.com/hyperfleet/hyperfleet/test/otlp"
	"github.com/hyperfleet/hyperfleet/test/spelling"
	"github.com/hyperfleet/hyperfleet/test/tpm"
)

// envProgram makes this test program the operator's.
const envProgram = "HYPERFLEETTEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(envProgram) != "" {
		main()
	}

	os.Exit(m.Run())
}

// The operator says where it sends its spans before it looks for its API server.
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

		for _, said := range want {
			if !strings.Contains(string(out), said) {
				t.Errorf("%s: it does not say %q:\n%s", enabled, said, out)
			}
		}
	}
}

func TestFlagsAreSpelledAsPeopleDo(t *testing.T) {
	t.Parallel()

	root := command()
	spelling.Flags(t, root)

	cmd, _, err := root.Find([]string{"operator"})
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

// All areas run unless some are chosen, each under its own name in the Lease.
func TestAllAreasRunByDefault(t *testing.T) {
	t.Parallel()

	cfg := v1alpha1.Default()
	if want := []string{"runners", "networking", "hosts", "bridge"}; !slices.Equal(cfg.Controllers, want) {
		t.Errorf("%v, want %v", cfg.Controllers, want)
	}

	if err := operator.Spec().Validate(&cfg); err != nil {
		t.Errorf("the default configuration: %v", err)
	}

	cfg.Controllers = []string{"runners", "dns"}
	if err := operator.Spec().Validate(&cfg); err == nil || !strings.Contains(err.Error(), `there is no area "dns": choose of [runners networking hosts bridge]`) {
		t.Errorf("an area that there is not: %v", err)
	}

	if got := operator.LeaseName([]string{"runners", "networking", "runners"}); got != "hyperfleet-networking-runners" {
		t.Errorf("the Lease is %s", got)
	}
}

func TestLogSettings(t *testing.T) {
	t.Parallel()

	good := v1alpha1.RunnerLogs{KeepIn: "store", Store: v1alpha1.LogStore{
		Endpoint: "https://s3.example.com", Region: "eu-1", Bucket: "ci-logs", Prefix: "hyperfleet/", Secret: "log-store",
	}}

	for name, tc := range map[string]struct {
		edit func(*v1alpha1.RunnerLogs)
		want string
	}{
		"in order":        {func(*v1alpha1.RunnerLogs) {}, ""},
		"without prefix":  {func(l *v1alpha1.RunnerLogs) { l.Store.Prefix = "" }, ""},
		"nowhere":         {func(l *v1alpha1.RunnerLogs) { *l = v1alpha1.RunnerLogs{KeepIn: "nowhere"} }, ""},
		"elsewhere":       {func(l *v1alpha1.RunnerLogs) { l.KeepIn = "s3" }, `there is no place "s3": choose of [cluster store nowhere]`},
		"in the clear":    {func(l *v1alpha1.RunnerLogs) { l.Store.Endpoint = "http://s3.example.com" }, "runners.logs.store.endpoint: it must be https"},
		"no endpoint":     {func(l *v1alpha1.RunnerLogs) { l.Store.Endpoint = "" }, "runners.logs.store.endpoint: it must be a URL"},
		"no region":       {func(l *v1alpha1.RunnerLogs) { l.Store.Region = "" }, "runners.logs.store.region"},
		"no secret":       {func(l *v1alpha1.RunnerLogs) { l.Store.Secret = "" }, "runners.logs.store.secret"},
		"a bucket's name": {func(l *v1alpha1.RunnerLogs) { l.Store.Bucket = "a/b" }, "runners.logs.store.bucket"},
		"a long prefix":   {func(l *v1alpha1.RunnerLogs) { l.Store.Prefix = strings.Repeat("x", 600) }, "runners.logs.store.prefix"},
	} {
		cfg := v1alpha1.Default()
		cfg.Runners.Logs = good
		tc.edit(&cfg.Runners.Logs)

		err := operator.Spec().Validate(&cfg)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

func TestDevIDSettings(t *testing.T) {
	t.Parallel()

	good, other := tpm.DevID(t), tpm.DevID(t)

	for name, tc := range map[string]struct {
		cfg  v1alpha1.DevID
		want string
	}{
		"none":                {v1alpha1.DevID{}, ""},
		"in order":            {good, ""},
		"no key":              {v1alpha1.DevID{CertFile: good.CertFile}, "identity.devID.keyFile"},
		"no certificate":      {v1alpha1.DevID{KeyFile: good.KeyFile}, "identity.devID.certFile"},
		"another's key":       {v1alpha1.DevID{CertFile: good.CertFile, KeyFile: other.KeyFile}, "identity.devID"},
		"a key's certificate": {v1alpha1.DevID{CertFile: good.KeyFile, KeyFile: good.KeyFile}, "identity.devID"},
	} {
		cfg := v1alpha1.Default()
		cfg.Identity.DevID = tc.cfg

		err := operator.Spec().Validate(&cfg)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

func TestSPIRESettings(t *testing.T) {
	t.Parallel()

	socket := func(cfg *v1alpha1.SPIRE) {
		cfg.Address, cfg.MachineAddress = "unix:///run/spire/server.sock", "spire.example.com:8081"
	}

	cases := map[string]struct {
		change func(*v1alpha1.SPIRE)
		words  string
	}{
		"none":      {func(*v1alpha1.SPIRE) {}, ""},
		"by socket": {socket, ""},
		"over TLS": {func(cfg *v1alpha1.SPIRE) {
			socket(cfg)
			cfg.Address, cfg.WorkloadAPI = "spire:8081", "unix:///run/spire/agent.sock"
		}, ""},
		"over TLS without an agent": {func(cfg *v1alpha1.SPIRE) {
			socket(cfg)
			cfg.Address = "spire:8081"
		}, "identity.spire: "},
		"machines' address alone": {func(cfg *v1alpha1.SPIRE) { cfg.MachineAddress = "spire:8081" }, "identity.spire.address"},
		"no address for machines": {func(cfg *v1alpha1.SPIRE) {
			socket(cfg)
			cfg.MachineAddress = ""
		}, "identity.spire.machineAddress"},
		"no trust domain": {func(cfg *v1alpha1.SPIRE) {
			socket(cfg)
			cfg.TrustDomain = ""
		}, "trust domain"},
		"no time": {func(cfg *v1alpha1.SPIRE) {
			socket(cfg)
			cfg.Timeout = 0
		}, "identity.spire.timeout"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			cfg := v1alpha1.Default()
			tc.change(&cfg.Identity.SPIRE)

			err := operator.Spec().Validate(&cfg)
			if (err == nil) != (tc.words == "") || (err != nil && !strings.Contains(err.Error(), tc.words)) {
				t.Errorf("Validate = %v, want %q", err, tc.words)
			}

			if err != nil {
				return
			}

			made, err := operator.Registry(cfg.Identity.SPIRE, "operator", nil)
			if err != nil || (made == nil) != (cfg.Identity.SPIRE.Address == "") {
				t.Errorf("Registry = %v, %v", made, err)
			}
		})
	}
}

// Calls to the SPIRE server are counted, by the name of the call.
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

	made, err := operator.Registry(cfg, "operator", transports.Identity)
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
