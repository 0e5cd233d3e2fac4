// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/platform/client"
)

// Environment variables with the paths of the two files.
const (
	EnvDeployment = "HYPERFLEET_ADAPTER_CONFIG"
	EnvTask       = "HYPERFLEET_TASK_CONFIG"
)

// Values of the parameter fileRequired.
const (
	FileRequired = true
	FileOptional = false
)

// NewDeploymentSpec returns the specification of the deployment configuration: its defaults,
// flags, environment variables and validation. If fileRequired is true, loading fails without a file.
func NewDeploymentSpec(fileRequired bool) *strictyaml.Spec[adapter.Deployment] {
	return &strictyaml.Spec[adapter.Deployment]{
		Default:      defaultDeployment(),
		EnvFile:      EnvDeployment,
		FileRequired: fileRequired,
		Aliases:      map[string]string{"log.level": "LOG_LEVEL", "log.format": "LOG_FORMAT", "log.output": "LOG_OUTPUT"},
		Help: map[string]string{
			"adapter.name":                    "name of the adapter, in labels and reports",
			"clients.hyperfleet_api.base_url": "URL of the fleet API, without the path",
			"events.resource_type":            "collection to follow, for example clusters",
			"identity_key_file":               "file with the HMAC key of the objects' identity annotation",
			"environment":                     "environment variables that the task file can read",
		},
		Validate: validate,
	}
}

// NewOfflineDeploymentSpec returns the specification of the deployment configuration for dry runs.
// It does not require identity_key_file, because a dry run sends no objects.
func NewOfflineDeploymentSpec() *strictyaml.Spec[adapter.Deployment] {
	spec := NewDeploymentSpec(FileRequired)
	check := spec.Validate
	spec.Validate = func(d *adapter.Deployment) error {
		checked := *d
		checked.IdentityKeyFile = cmp.Or(checked.IdentityKeyFile, "none")

		return check(&checked)
	}

	return spec
}

func defaultDeployment() adapter.Deployment {
	return adapter.Deployment{
		Log: adapter.LogOutput{Level: "info", Format: "json", Output: "stdout"},
		Clients: adapter.Clients{
			HyperFleetAPI: adapter.HyperFleetAPI{
				Version: "v1", Timeout: client.DefaultTimeout, RetryAttempts: 3, RetryBackoff: "exponential", BaseDelay: time.Second,
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

var collectionPattern = regexp.MustCompile(`^[a-z][a-z0-9]*$`)

// validate checks the whole configuration. Each of its errors names a key.
func validate(d *adapter.Deployment) error {
	var e strictyaml.KeyErrors

	requireOneOf := func(key, value string, words ...string) {
		e.Requiref(slices.Contains(words, value), key, "%q is not one of %s", value, strings.Join(words, ", "))
	}
	requirePositive := func(key string, value time.Duration) { e.Requiref(value > 0, key, "want more than 0") }

	api := &d.Clients.HyperFleetAPI
	problems := validation.IsDNS1123Label(d.Adapter.Name)
	_, isBaseURL := client.ParseBaseURL(api.BaseURL)

	e.Requiref(len(problems) == 0, "adapter.name", "%q is not a DNS label: %s", d.Adapter.Name, strings.Join(problems, "; "))
	e.Requiref(isBaseURL, "clients.hyperfleet_api.base_url",
		"is not a URL such as http://hyperfleet-api:8000; a token belongs into the file auth.token_path")
	e.Requiref(api.RetryAttempts >= 1 && api.RetryAttempts <= adapter.MaxAttempts, "clients.hyperfleet_api.retry_attempts",
		"want 1 to %d attempts", adapter.MaxAttempts)
	requireOneOf("clients.hyperfleet_api.retry_backoff", api.RetryBackoff, "exponential", "linear", "constant")
	requireOneOf("log.level", d.Log.Level, "debug", "info", "warn", "error")
	requireOneOf("log.format", d.Log.Format, "json", "text")
	requireOneOf("log.output", d.Log.Output, "stdout", "stderr")
	requirePositive("clients.hyperfleet_api.timeout", api.Timeout)
	requirePositive("clients.hyperfleet_api.base_delay", api.BaseDelay)
	requirePositive("clients.hyperfleet_api.max_delay", api.MaxDelay)
	requirePositive("event_timeout", d.EventTimeout)
	e.Requiref(d.IdentityKeyFile != "", "identity_key_file", "is required")
	checkEvents(&e, d)

	if m := d.Clients.Maestro; m != nil {
		const unsupported = "a Maestro server is not supported: remove the key, and set kube_config_path to use the " +
			"Open Cluster Management hub"

		e.Requiref(m.GRPCServerAddress == "", "clients.maestro.grpc_server_address", unsupported)
		e.Requiref(m.HTTPServerAddress == "", "clients.maestro.http_server_address", unsupported)
		e.Requiref(m.KubeConfigPath != "" || m.GRPCServerAddress+m.HTTPServerAddress != "", "clients.maestro",
			"set kube_config_path, the kubeconfig of the Open Cluster Management hub")
	}

	for i, name := range d.Environment {
		if !variableName.MatchString(name) {
			e.Add(fmt.Errorf("%q is not a valid variable name", name), "environment", i)
		}
	}

	return e.Err()
}

func checkEvents(e *strictyaml.KeyErrors, d *adapter.Deployment) {
	events := &d.Events

	e.Requiref(slices.Contains([]string{"", adapter.SourceAPI, adapter.SourceBroker}, events.Source),
		"events.source", "%q is not api or broker", events.Source)

	if d.FromBroker() {
		e.Requiref(d.Clients.Broker.SubscriptionID != "", "clients.broker.subscription_id", "is required")
		e.Requiref(d.Clients.Broker.Topic != "", "clients.broker.topic", "is required")
		e.Requiref(len(events.ResourceSelector) == 0, "events.resource_selector",
			"needs source: api; with a broker, set it in Sentinel")
		e.Requiref(events.Variant == "", "events.variant", "needs source: api; with a broker, give each variant a Sentinel and a topic")

		return
	}

	e.Requiref(collectionPattern.MatchString(events.ResourceType), "events.resource_type",
		"set the collection to follow, for example clusters, or set clients.broker to receive events from a broker")
	e.Requiref(events.Variant == "" || collectionPattern.MatchString(events.Variant) && len(events.ResourceSelector) > 0,
		"events.variant", "write lower-case letters and digits, and set resource_selector, which selects the resources of the variant")
	e.Requiref(events.MaxAgeNotReconciled >= 100*time.Millisecond, "events.max_age_not_reconciled", "want at least 100ms")
	e.Requiref(events.MaxAgeReconciled >= events.MaxAgeNotReconciled, "events.max_age_reconciled",
		"want at least max_age_not_reconciled")
	e.Requiref(events.Parallelism >= 1 && events.MaxTries >= 1, "events", "want 1 or more for parallelism and max_tries")
}

// CheckFramework returns an error if the version that a task file needs and the version of the
// program differ in major or minor. It ignores versions that can't be parsed, such as (devel).
func CheckFramework(wanted, program string) error {
	want, errWant := version.ParseGeneric(wanted)
	have, errHave := version.ParseGeneric(program)

	if errWant == nil && errHave == nil && (want.Major() != have.Major() || want.Minor() != have.Minor()) {
		return fmt.Errorf("adapter.frameworkVersion: the task file needs version %s, but this program has version %s; "+
			"update one of them", wanted, program)
	}

	return nil
}

// Redact returns the deployment configuration as expressions and /config show it: a map with the
// keys of the file, without the values of headers and without passwords in URLs. Durations are strings.
func Redact(d *adapter.Deployment) map[string]any {
	hidden := *d
	hidden.Clients.HyperFleetAPI.DefaultHeaders = make(map[string]string, len(d.Clients.HyperFleetAPI.DefaultHeaders))

	for name := range d.Clients.HyperFleetAPI.DefaultHeaders {
		hidden.Clients.HyperFleetAPI.DefaultHeaders[name] = log.Redacted
	}

	hidden.Clients.HyperFleetAPI.BaseURL = log.RedactURL(d.Clients.HyperFleetAPI.BaseURL)

	if d.Clients.Maestro != nil {
		maestro := *d.Clients.Maestro
		maestro.HTTPServerAddress = log.RedactURL(maestro.HTTPServerAddress)
		hidden.Clients.Maestro = &maestro
	}

	var text strings.Builder

	out := map[string]any{}

	if err := strictyaml.Write(&text, hidden); err != nil || strictyaml.Decode("config", []byte(text.String()), &out) != nil {
		return map[string]any{}
	}

	return out
}
