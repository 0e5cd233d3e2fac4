// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/test/must"
)

const minimal = `adapter: {name: demo}
identity_key_file: /run/key
clients:
  hyperfleet_api: {base_url: "http://api:8000"}
  broker: {subscription_id: demo, topic: clusters}
`

func loadDeployment(t *testing.T, text string, environ ...string) (*adapter.Deployment, error) {
	t.Helper()

	return loadSpec(t, task.NewDeploymentSpec(task.FileRequired), text, environ...)
}

func loadSpec(t *testing.T, spec *strictyaml.Spec[adapter.Deployment], text string, environ ...string) (*adapter.Deployment, error) {
	t.Helper()

	path := filepath.Join(t.TempDir(), "adapter.yaml")
	must.Do(t, os.WriteFile(path, []byte(text), 0o600))

	spec.Environ = func() []string { return append(environ, task.EnvDeployment+"="+path) }

	return spec.Load(nil)
}

func TestDeployment(t *testing.T) {
	t.Parallel()

	got, err := loadDeployment(t, minimal, "HYPERFLEET_CLIENTS_HYPERFLEET_API_TIMEOUT=3s", "LOG_LEVEL=debug")
	must.Do(t, err)

	api := got.Clients.HyperFleetAPI
	if got.Adapter.Name != "demo" || api.Timeout != 3*time.Second || api.RetryAttempts != 3 || api.Version != "v1" ||
		got.Log.Level != "debug" || got.EventTimeout != 2*time.Minute || got.Clients.Kubernetes.Burst != 200 || got.HealthAddress != ":8080" {
		t.Errorf("deployment: %+v", got)
	}
}

func TestInvalidDeployments(t *testing.T) {
	t.Parallel()

	cases := map[string]struct{ file, want string }{
		"nothing":                 {"", "adapter.name: \"\" is not a DNS label"},
		"a name":                  {strings.Replace(minimal, "name: demo", "name: Has.Dots", 1), `adapter.name: "Has.Dots" is not a DNS label`},
		"topic":                   {strings.Replace(minimal, ", topic: clusters", "", 1), "adapter.yaml:5:11: clients.broker.topic: is required"},
		"key":                     {strings.Replace(minimal, "identity_key_file: /run/key", "", 1), "identity_key_file: is required"},
		"url":                     {strings.Replace(minimal, "http://api:8000", "api:8000", 1), "adapter.yaml:4:30: clients.hyperfleet_api.base_url: is not a URL"},
		"backoff":                 {strings.Replace(minimal, `8000"`, `8000", retry_backoff: fast, retry_attempts: 0, timeout: -1s`, 1), `"fast" is not one of exponential, linear, constant`},
		"too many tries":          {strings.Replace(minimal, `8000"`, `8000", retry_attempts: 11`, 1), "want 1 to 10 attempts"},
		"wait":                    {minimal + "event_timeout: 0s", "event_timeout: want more than 0"},
		"variable":                {minimal + "environment: [A, B=C]", `environment[1]: "B=C" is not a valid variable name`},
		"maestro without a hub":   {strings.Replace(minimal, "clients:", "clients:\n  maestro: {source_id: a}", 1), "adapter.yaml:4:12: clients.maestro: set kube_config_path"},
		"a Maestro server":        {strings.Replace(minimal, "clients:", "clients:\n  maestro: {grpc_server_address: 'm:8090', kube_config_path: hub}", 1), "adapter.yaml:4:34: clients.maestro.grpc_server_address: a Maestro server is not supported"},
		"a Maestro server's REST": {strings.Replace(minimal, "clients:", "clients:\n  maestro: {http_server_address: 'http://m:8000'}", 1), "clients.maestro.http_server_address: a Maestro server is not supported"},
		"a password in the URL":   {strings.Replace(minimal, "api:8000", "u:p@api:8000", 1), "clients.hyperfleet_api.base_url: is not a URL such as http://hyperfleet-api:8000; a token belongs into"},
		"unknown":                 {minimal + "debug: true", "debug: unknown field"},
	}

	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if _, err := loadDeployment(t, test.file); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error: %v, want %s", err, test.want)
			}
		})
	}
}

func TestFrameworkVersion(t *testing.T) {
	t.Parallel()

	for _, test := range []struct {
		wanted, program string
		fits            bool
	}{
		{"1.2", "v1.2.3", true},
		{"v1.2.0", "1.2.9-rc1", true},
		{"1.3.0", "v1.2.3", false},
		{"2.2.0", "v1.2.3", false},
		{"", "v1.2.3", true},
		{"1.2", "(devel)", true},
		{"next", "v1.2.3", true},
	} {
		if err := task.CheckFramework(test.wanted, test.program); (err == nil) != test.fits {
			t.Errorf("%s on %s: %v", test.wanted, test.program, err)
		}
	}
}

func TestRedacted(t *testing.T) {
	t.Parallel()

	got, err := loadDeployment(t, strings.Replace(minimal, `"http://api:8000"`, `"http://api:8000", default_headers: {X-Key: s3cret}`, 1))
	must.Do(t, err)

	text, err := json.Marshal(task.Redact(got))
	if err != nil || strings.Contains(string(text), "s3cret") || !strings.Contains(string(text), `"X-Key":"REDACTED"`) {
		t.Errorf("redacted: %s, %v", text, err)
	}

	if got.Clients.HyperFleetAPI.DefaultHeaders["X-Key"] != "s3cret" {
		t.Error("Redact changed the configuration itself")
	}

	if path := (task.Path{Variable: "config", Rest: "clients.broker.topic"}); true {
		if value, _ := path.Lookup(map[string]any{"config": task.Redact(got)}); value != "clusters" {
			t.Errorf("config.%s: %v", path.Rest, value)
		}
	}
}

// TestDryRunsNeedNoKey checks that dry runs need no key, but otherwise a valid configuration.
func TestDryRunsNeedNoKey(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]string{
		strings.Replace(minimal, "identity_key_file: /run/key", "", 1):                   "",
		strings.Replace(minimal, "identity_key_file: /run/key", "log: {level: loud}", 1): "log.level",
	} {
		loaded, err := loadSpec(t, task.NewOfflineDeploymentSpec(), text)
		if want == "" && (err != nil || loaded.IdentityKeyFile != "") || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%+v, %v, want %q", loaded, err, want)
		}
	}
}
