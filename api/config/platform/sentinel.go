// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import "time"

// Sentinel configures `hyperfleet-platform sentinel`. It watches one resource type. Of its replicas,
// only one publishes events.
type Sentinel struct {
	// ResourceType is the collection to watch, for example clusters. Required.
	ResourceType string `yaml:"resource_type"`
	// ResourceSelector holds labels that must all match.
	ResourceSelector []LabelSelector `yaml:"resource_selector"`
	// PollInterval is the interval at which the decision is evaluated for the known resources. Default:
	// 5s. Changes in the change feed are handled at once.
	PollInterval time.Duration `yaml:"poll_interval"`
	// RelistInterval is the interval at which all resources are listed again, in addition to the change
	// feed. Default: 10m. At most one page per second is read.
	RelistInterval time.Duration `yaml:"relist_interval"`
	// PageSize is the number of resources per page, at most 100. Default: 100.
	PageSize int `yaml:"page_size"`
	// MaxAgeNotReconciled and MaxAgeReconciled are the resync periods of the default decision for
	// resources that are not reconciled and for resources that are. Default: 10s and 30m.
	MaxAgeNotReconciled time.Duration `yaml:"max_age_not_reconciled"`
	MaxAgeReconciled    time.Duration `yaml:"max_age_reconciled"`
	// MessageDecision defines when an event is published. Default: if the resource is new or has changed,
	// or if its last update is older than its resync period.
	MessageDecision *Decision `yaml:"message_decision"`
	// MessageData is the data of the event. Strings are CEL expressions over resource and reason, and
	// maps may be nested. Default: id, kind, href, generation, owner_references.
	MessageData map[string]any `yaml:"message_data"`
	// Lease is the name of the lease that the replica that publishes events holds. Default: a name made
	// of the resource type and the selector.
	Lease   string        `yaml:"lease"`
	Clients SentinelPeers `yaml:"clients"`
	// Topic is the topic of the events. Default: the resource type.
	Topic  string `yaml:"topic"`
	Broker Broker `yaml:"broker"`
	// HealthAddress is the address on which /healthz and /readyz are served. Default: :8080.
	HealthAddress string `yaml:"health_address"`
	// MetricsAddress is the address on which /metrics is served. Default: :9090.
	MetricsAddress string `yaml:"metrics_address"`
	Log            Log    `yaml:"log"`
}

// LabelSelector is a label that must match.
type LabelSelector struct {
	Label string `yaml:"label"`
	Value string `yaml:"value"`
}

// Decision is a set of CEL expressions over resource, now and condition(type). Params are evaluated in
// order, and each may use those before it. Result is a bool.
type Decision struct {
	Params []DecisionParam `yaml:"params"`
	Result string          `yaml:"result"`
}

// DecisionParam is a named value.
type DecisionParam struct {
	Name string `yaml:"name"`
	Expr string `yaml:"expr"`
}

// SentinelPeers configures the clients of Sentinel and of sweep.
type SentinelPeers struct {
	HyperFleetAPI APIClient `yaml:"hyperfleet_api"`
}

// APIClient configures the client of the fleet API.
type APIClient struct {
	// BaseURL is the URL without the path, for example http://hyperfleet-api:8000. Required.
	BaseURL string `yaml:"base_url"`
	// Timeout is the timeout of one attempt. Default: 10s.
	Timeout time.Duration `yaml:"timeout"`
	// TokenFile is the path of a file with a bearer token.
	TokenFile string `yaml:"token_file"`
	// CAFile is the path of a CA bundle for https.
	CAFile string `yaml:"ca_file"`
}
