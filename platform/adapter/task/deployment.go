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
	"k8s.io/apimachinery/pkg/util/version"

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

// checks are what is wrong with keys.
type checks []error

// wantf says what is wrong where something does not hold.
func (c *checks) wantf(holds bool, key, format string, args ...any) {
	if !holds {
		*c = append(*c, strictyaml.ErrorAt(key, format, args...))
	}
}

func (c *checks) oneOf(key, value string, words ...string) {
	c.wantf(slices.Contains(words, value), key, "%q is none of %s", value, strings.Join(words, ", "))
}

func (c *checks) positive(key string, value time.Duration) {
	c.wantf(value > 0, key, "want more than 0")
}

var collection = regexp.MustCompile(`^[a-z][a-z0-9]*$`)

// validate checks the whole; errors name keys.
func validate(d *adapter.Deployment) error {
	var c checks

	api := &d.Clients.HyperFleetAPI
	problems := validation.IsDNS1123Label(d.Adapter.Name)
	base, err := url.Parse(api.BaseURL)

	c.wantf(len(problems) == 0, "adapter.name", "%q is not a DNS label: %s", d.Adapter.Name, strings.Join(problems, "; "))
	c.wantf(err == nil && base.Host != "" && slices.Contains([]string{"http", "https"}, base.Scheme),
		"clients.hyperfleet_api.base_url", "is not a URL such as http://hyperfleet-api:8000")
	c.wantf(api.RetryAttempts >= 1 && api.RetryAttempts <= adapter.MaxAttempts, "clients.hyperfleet_api.retry_attempts",
		"want 1 to %d tries", adapter.MaxAttempts)
	c.oneOf("clients.hyperfleet_api.retry_backoff", api.RetryBackoff, "exponential", "linear", "constant")
	c.oneOf("log.level", d.Log.Level, "debug", "info", "warn", "error")
	c.oneOf("log.format", d.Log.Format, "json", "text")
	c.oneOf("log.output", d.Log.Output, "stdout", "stderr")
	c.positive("clients.hyperfleet_api.timeout", api.Timeout)
	c.positive("clients.hyperfleet_api.base_delay", api.BaseDelay)
	c.positive("clients.hyperfleet_api.max_delay", api.MaxDelay)
	c.positive("event_timeout", d.EventTimeout)
	c.wantf(d.IdentityKeyFile != "", "identity_key_file", "is required")
	c.events(d)

	if m := d.Clients.Maestro; m != nil {
		c.wantf((m.KubeConfigPath == "") != (m.GRPCServerAddress == ""), "clients.maestro",
			"want one of grpc_server_address, for a Maestro server, and kube_config_path, for a hub")
	}

	for i, name := range d.Environment {
		if !variableName.MatchString(name) {
			c = append(c, &strictyaml.KeyError{
				Path: strictyaml.Path{"environment", i}, Err: fmt.Errorf("%q is not a variable's name", name),
			})
		}
	}

	return errors.Join(c...)
}

// events checks how events are heard of.
func (c *checks) events(d *adapter.Deployment) {
	e := &d.Events

	c.wantf(slices.Contains([]string{"", adapter.SourceAPI, adapter.SourceBroker}, e.Source),
		"events.source", "%q: write api or broker", e.Source)

	if d.FromBroker() {
		c.wantf(d.Clients.Broker.SubscriptionID != "", "clients.broker.subscription_id", "is required")
		c.wantf(d.Clients.Broker.Topic != "", "clients.broker.topic", "is required")
		c.wantf(len(e.ResourceSelector) == 0, "events.resource_selector", "goes with source: api; with a broker, Sentinel has it")

		return
	}

	c.wantf(collection.MatchString(e.ResourceType), "events.resource_type",
		"name the collection to follow, for example clusters; or clients.broker, for events from a broker")
	c.wantf(e.MaxAgeNotReconciled >= 100*time.Millisecond, "events.max_age_not_reconciled", "at least 100ms")
	c.wantf(e.MaxAgeReconciled >= e.MaxAgeNotReconciled, "events.max_age_reconciled", "not less than max_age_not_reconciled")
	c.wantf(e.Parallelism >= 1 && e.MaxTries >= 1, "events", "parallelism and max_tries: 1 or more")
}

// CheckFramework compares the version that a task file was written for with the program's:
// major and minor have to be the same. Versions that are none, such as (devel), are not
// compared.
func CheckFramework(wanted, program string) error {
	want, errWant := version.ParseGeneric(wanted)
	have, errHave := version.ParseGeneric(program)

	if errWant == nil && errHave == nil && (want.Major() != have.Major() || want.Minor() != have.Minor()) {
		return fmt.Errorf("adapter.frameworkVersion: the task file is for version %s, and this program is %s: change one of them",
			wanted, program)
	}

	return nil
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

	if err := strictyaml.Write(&text, hidden); err != nil || strictyaml.Decode("config", []byte(text.String()), &out) != nil {
		return map[string]any{}
	}

	return out
}
