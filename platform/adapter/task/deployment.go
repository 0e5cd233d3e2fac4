// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// Variables that name the two files.
const (
	EnvDeployment = "HYPERFLEET_ADAPTER_CONFIG"
	EnvTask       = "HYPERFLEET_TASK_CONFIG"
)

// Deployment describes the deployment configuration: its defaults, flags, variables and
// checks. With required there has to be a file.
func Deployment(required bool) *strictyaml.Spec[adapter.Deployment] {
	return &strictyaml.Spec[adapter.Deployment]{
		Default:  defaults(),
		EnvFile:  EnvDeployment,
		Required: required,
		Aliases:  map[string]string{"log.level": "LOG_LEVEL", "log.format": "LOG_FORMAT", "log.output": "LOG_OUTPUT"},
		Help: map[string]string{
			"adapter.name":                    "name of the adapter, in labels and reports",
			"clients.hyperfleet_api.base_url": "the fleet API, without the path",
			"events.resource_type":            "collection to follow, for example clusters",
			"identity_key_file":               "file with the key that objects are stamped with",
			"environment":                     "variables that the task file may read",
		},
		Validate: validate,
	}
}

// OfflineDeployment is Deployment for dry runs, which stamp nothing that is sent: it needs
// no key.
func OfflineDeployment() *strictyaml.Spec[adapter.Deployment] {
	spec := Deployment(true)
	check := spec.Validate
	spec.Validate = func(d *adapter.Deployment) error {
		checked := *d
		checked.IdentityKeyFile = cmp.Or(checked.IdentityKeyFile, "none")

		return check(&checked)
	}

	return spec
}

func defaults() adapter.Deployment {
	return adapter.Deployment{
		Log: adapter.LogOutput{Level: "info", Format: "json", Output: "stdout"},
		Clients: adapter.Clients{
			HyperFleetAPI: adapter.HyperFleetAPI{
				Version: "v1", Timeout: 10 * time.Second, RetryAttempts: 3, RetryBackoff: "exponential", BaseDelay: time.Second,
				MaxDelay: 30 * time.Second,
			},
			Kubernetes: adapter.Kubernetes{QPS: 100, Burst: 200},
		},
		Events: adapter.Events{
			MaxAgeNotReconciled: 10 * time.Second, MaxAgeReconciled: 30 * time.Minute, Parallelism: 8, MaxTries: 10,
		},
		EventTimeout: 2 * time.Minute, HealthAddress: ":8080", MetricsAddress: ":9090",
	}
}

// validate checks the whole; errors name keys.
func validate(d *adapter.Deployment) error {
	var errs []error

	fail := func(key, format string, args ...any) { errs = append(errs, strictyaml.ErrorAt(key, format, args...)) }

	if problems := validation.IsDNS1123Label(d.Adapter.Name); len(problems) > 0 {
		fail("adapter.name", "%q is not a DNS label: %s", d.Adapter.Name, problems[0])
	}

	api := &d.Clients.HyperFleetAPI
	schemes := []string{"http", "https"}
	if parsed, err := url.Parse(api.BaseURL); err != nil || parsed.Host == "" || !slices.Contains(schemes, parsed.Scheme) {
		fail("clients.hyperfleet_api.base_url", "is not a URL such as http://hyperfleet-api:8000")
	}

	if api.RetryAttempts < 1 {
		fail("clients.hyperfleet_api.retry_attempts", "want 1 or more tries")
	}

	for _, word := range []struct {
		key, value string
		words      []string
	}{
		{"clients.hyperfleet_api.retry_backoff", api.RetryBackoff, []string{"exponential", "linear", "constant"}},
		{"log.level", d.Log.Level, []string{"debug", "info", "warn", "error"}},
		{"log.format", d.Log.Format, []string{"json", "text"}},
		{"log.output", d.Log.Output, []string{"stdout", "stderr"}},
	} {
		if !slices.Contains(word.words, word.value) {
			fail(word.key, "%q is none of %s", word.value, strings.Join(word.words, ", "))
		}
	}

	for _, wait := range []struct {
		key   string
		value time.Duration
	}{
		{"clients.hyperfleet_api.timeout", api.Timeout}, {"clients.hyperfleet_api.base_delay", api.BaseDelay},
		{"clients.hyperfleet_api.max_delay", api.MaxDelay}, {"event_timeout", d.EventTimeout},
	} {
		if wait.value <= 0 {
			fail(wait.key, "want more than 0")
		}
	}

	errs = append(errs, required(d)...)
	errs = append(errs, maestro(d.Clients.Maestro)...)

	for i, name := range d.Environment {
		if !variableName.MatchString(name) {
			errs = append(errs, &strictyaml.KeyError{
				Path: strictyaml.Path{"environment", i}, Err: fmt.Errorf("%q is not a variable's name", name),
			})
		}
	}

	return errors.Join(errs...)
}

func required(d *adapter.Deployment) []error {
	var errs []error

	needed := []struct{ key, value string }{{"identity_key_file", d.IdentityKeyFile}}

	if d.FromBroker() {
		needed = append(needed, []struct{ key, value string }{
			{"clients.broker.subscription_id", d.Clients.Broker.SubscriptionID}, {"clients.broker.topic", d.Clients.Broker.Topic},
		}...)
	}

	for _, one := range needed {
		if one.value == "" {
			errs = append(errs, strictyaml.ErrorAt(one.key, "is required"))
		}
	}

	return append(errs, events(d)...)
}

var collection = regexp.MustCompile(`^[a-z][a-z0-9]*$`)

// events checks how events are heard of.
func events(d *adapter.Deployment) []error {
	var errs []error

	fail := func(key, format string, args ...any) { errs = append(errs, strictyaml.ErrorAt(key, format, args...)) }
	e := &d.Events

	if !slices.Contains([]string{"", adapter.SourceAPI, adapter.SourceBroker}, e.Source) {
		fail("events.source", "%q: write api or broker", e.Source)
	}

	if d.FromBroker() {
		if len(e.ResourceSelector) > 0 {
			fail("events.resource_selector", "goes with source: api; with a broker, Sentinel has it")
		}

		return errs
	}

	if !collection.MatchString(e.ResourceType) {
		fail("events.resource_type", "name the collection to follow, for example clusters; or clients.broker, for events from a broker")
	}

	const least = 100 * time.Millisecond

	if e.MaxAgeNotReconciled < least {
		fail("events.max_age_not_reconciled", "at least 100ms")
	}

	if e.MaxAgeReconciled < e.MaxAgeNotReconciled {
		fail("events.max_age_reconciled", "not less than max_age_not_reconciled")
	}

	if e.Parallelism < 1 || e.MaxTries < 1 {
		fail("events", "parallelism and max_tries: 1 or more")
	}

	return errs
}

func maestro(m *adapter.Maestro) []error {
	if m == nil {
		return nil
	}

	var errs []error

	if (m.KubeConfigPath == "") == (m.GRPCServerAddress == "") {
		errs = append(errs, strictyaml.ErrorAt("clients.maestro",
			"want one of grpc_server_address, for a Maestro server, and kube_config_path, for a hub"))
	}

	if m.GRPCServerAddress == "" {
		return errs
	}

	if m.SourceID == "" {
		errs = append(errs, strictyaml.ErrorAt("clients.maestro.source_id", "is required"))
	}

	switch m.Auth.Type {
	case "", "none":
	case "tls":
		if m.Auth.TLSConfig == nil || m.Auth.TLSConfig.CAFile == "" {
			errs = append(errs, strictyaml.ErrorAt("clients.maestro.auth.tls_config.ca_file", "is required for auth.type tls"))
		}
	default:
		errs = append(errs, strictyaml.ErrorAt("clients.maestro.auth.type", "%q is none of tls, none", m.Auth.Type))
	}

	return errs
}

var majorMinor = regexp.MustCompile(`^v?(\d+)\.(\d+)(\.|$|-|\+)`)

// CheckFramework compares the version that a task file was written for with the program's:
// major and minor have to be the same. Versions that are none, such as (devel), are not
// compared.
func CheckFramework(wanted, program string) error {
	want, have := majorMinor.FindStringSubmatch(wanted), majorMinor.FindStringSubmatch(program)
	if want == nil || have == nil || (want[1] == have[1] && want[2] == have[2]) {
		return nil
	}

	return fmt.Errorf("adapter.frameworkVersion: the task file is for version %s, and this program is %s: change one of them",
		wanted, program)
}

// Redacted is the deployment configuration as expressions and /config see it: a map by the
// names of the file, without values of headers and passwords in URLs. Durations are texts.
func Redacted(d *adapter.Deployment) map[string]any {
	hidden := *d
	hidden.Clients.HyperFleetAPI.DefaultHeaders = make(map[string]string, len(d.Clients.HyperFleetAPI.DefaultHeaders))

	for name := range d.Clients.HyperFleetAPI.DefaultHeaders {
		hidden.Clients.HyperFleetAPI.DefaultHeaders[name] = log.Redacted
	}

	hidden.Clients.HyperFleetAPI.BaseURL = log.URL(d.Clients.HyperFleetAPI.BaseURL)

	if d.Clients.Maestro != nil {
		maestro := *d.Clients.Maestro
		maestro.HTTPServerAddress = log.URL(maestro.HTTPServerAddress)
		hidden.Clients.Maestro = &maestro
	}

	var text strings.Builder

	out := map[string]any{}

	if err := strictyaml.Write(&text, hidden); err != nil {
		return out
	}

	if err := strictyaml.Decode("config", []byte(text.String()), &out); err != nil {
		return map[string]any{}
	}

	return out
}
