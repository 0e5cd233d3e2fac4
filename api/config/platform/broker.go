// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import "time"

// BrokerRabbitMQ is the type of broker that there is.
const BrokerRabbitMQ = "rabbitmq"

// Broker configures the broker, in sentinel's file or in one of its own (broker.yaml,
// BROKER_CONFIG_FILE).
type Broker struct {
	// Type is rabbitmq.
	Type     string       `yaml:"type"`
	RabbitMQ BrokerRabbit `yaml:"rabbitmq"`
	// Parallelism is how many events a subscriber handles at once. Those of one resource
	// are never handled at once. Default: 8.
	Parallelism int `yaml:"parallelism"`
	// MaxDeliveries is how often an event is tried before it goes to the dead letters.
	// Default: 10.
	MaxDeliveries int `yaml:"max_deliveries"`
	// MinBackoff and MaxBackoff are between two tries. Default: 500ms and 30s.
	MinBackoff time.Duration `yaml:"min_backoff"`
	MaxBackoff time.Duration `yaml:"max_backoff"`
}

// BrokerRabbit is how RabbitMQ is reached.
type BrokerRabbit struct {
	// URLFile holds the server's URL, which may have a password in it; or URL, if not. This
	// file and those below are read anew for each connection.
	URL     string `yaml:"url"`
	URLFile string `yaml:"url_file"`
	// CAFile has the CAs, in PEM, of which one signed the server's certificate. Default:
	// those that the system trusts. It needs a URL of amqps.
	CAFile string `yaml:"ca_file"`
	// CertFile and KeyFile, in PEM, are who the client is to a server that asks for it: both
	// or none. The user is that of the URL all the same, unless the URL has
	// ?auth_mechanism=external.
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
	// Exchange that the events of all topics go to. Default: one for each topic, of its name.
	Exchange string `yaml:"exchange"`
	// ExchangeType is topic, fanout or direct, of an exchange that is not there yet.
	// Default: topic.
	ExchangeType string `yaml:"exchange_type"`
	// RoutingKey that events are published with and queues are bound by. Default: the empty
	// one.
	RoutingKey string `yaml:"routing_key"`
	// Quorum has queues that are not there yet be quorum queues, which outlive the loss of a
	// node, and which upstream's programs do not take over. Default: classic ones.
	Quorum bool `yaml:"quorum"`
	// PrefetchCount is how many events a subscriber may hold that are not done, those that
	// wait for another try included. Default: 1000.
	PrefetchCount int `yaml:"prefetch_count"`
}
