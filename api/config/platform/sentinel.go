// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import "time"

// Sentinel configures `hyperfleet-platform sentinel`: one kind of resource, watched by any number
// of replicas of which one sends events.
type Sentinel struct {
	// ResourceType is the collection it watches, for example clusters. Required.
	ResourceType string `yaml:"resource_type"`
	// ResourceSelector are labels that all have to match.
	ResourceSelector []LabelSelector `yaml:"resource_selector"`
	// PollInterval is the pace of decisions on what it knows. Default: 5s. The change
	// feed needs none.
	PollInterval time.Duration `yaml:"poll_interval"`
	// RelistInterval is how often everything is listed again, beside the change feed.
	// Default: 10m. Pages are read at most once a second.
	RelistInterval time.Duration `yaml:"relist_interval"`
	// PageSize of lists, at most 100. Default: 100.
	PageSize int `yaml:"page_size"`
	// MaxAgeNotReconciled and MaxAgeReconciled are the cadences of the default decision.
	// Default: 10s and 30m.
	MaxAgeNotReconciled time.Duration `yaml:"max_age_not_reconciled"`
	MaxAgeReconciled    time.Duration `yaml:"max_age_reconciled"`
	// MessageDecision says when an event is sent; default: new, changed, or older than
	// the cadence.
	MessageDecision *Decision `yaml:"message_decision"`
	// MessageData is the event's data: strings are CEL over resource and reason, maps
	// nest. Default: id, kind, href, generation, owner_references.
	MessageData map[string]any `yaml:"message_data"`
	// Lease is the name under which replicas agree who sends. Default: made of
	// resource type and selector.
	Lease   string        `yaml:"lease"`
	Clients SentinelPeers `yaml:"clients"`
	// Topic the events go to. Default: the resource type.
	Topic  string `yaml:"topic"`
	Broker Broker `yaml:"broker"`
	// HealthAddress serves /healthz and /readyz. Default: :8080.
	HealthAddress string `yaml:"health_address"`
	// MetricsAddress serves /metrics. Default: :9090.
	MetricsAddress string `yaml:"metrics_address"`
	Log            Log    `yaml:"log"`
}

// LabelSelector is one label that has to match.
type LabelSelector struct {
	Label string `yaml:"label"`
	Value string `yaml:"value"`
}

// Decision is CEL over resource, now and condition(type). Params are evaluated in order,
// each may use those before it; result is a bool.
type Decision struct {
	Params []DecisionParam `yaml:"params"`
	Result string          `yaml:"result"`
}

// DecisionParam is a named value.
type DecisionParam struct {
	Name string `yaml:"name"`
	Expr string `yaml:"expr"`
}

// SentinelPeers are those it speaks to.
type SentinelPeers struct {
	HyperFleetAPI APIClient `yaml:"hyperfleet_api"`
}

// APIClient is how the fleet API is reached.
type APIClient struct {
	// BaseURL without the path, for example http://hyperfleet-api:8000. Required.
	BaseURL string `yaml:"base_url"`
	// Timeout of one try. Default: 10s.
	Timeout time.Duration `yaml:"timeout"`
	// TokenFile holds a bearer token.
	TokenFile string `yaml:"token_file"`
	// CAFile for https.
	CAFile string `yaml:"ca_file"`
}
