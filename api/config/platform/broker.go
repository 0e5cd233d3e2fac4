// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import "time"

// Kinds of brokers.
const (
	// BrokerMemory is inside the process: the demo, and tests.
	BrokerMemory = "memory"
	// BrokerNATS is NATS JetStream.
	BrokerNATS = "nats"
	// BrokerRabbitMQ is RabbitMQ.
	BrokerRabbitMQ = "rabbitmq"
)

// Broker configures the broker, in sentinel's file or in one of its own (broker.yaml,
// BROKER_CONFIG_FILE).
type Broker struct {
	// Type is memory, nats or rabbitmq.
	Type     string         `yaml:"type"`
	NATS     BrokerNATSConf `yaml:"nats"`
	RabbitMQ BrokerRabbit   `yaml:"rabbitmq"`
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

// BrokerNATSConf is how NATS is reached.
type BrokerNATSConf struct {
	// URLFile holds the server's URL, or those of several with commas between, which may have
	// a password or a token in them; or URL, if not. This file and those below are read anew
	// for each connection.
	URL     string `yaml:"url"`
	URLFile string `yaml:"url_file"`
	// CredentialsFile is a NATS .creds file.
	CredentialsFile string `yaml:"credentials_file"`
	// CAFile has the CAs, in PEM, of which one signed the server's certificate. Default:
	// those that the system trusts. Where it is given, nothing goes without TLS.
	CAFile string `yaml:"ca_file"`
	// CertFile and KeyFile, in PEM, are who the client is to a server that asks for it: both
	// or none.
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
	// Stream that holds the events; that of dead letters has -dead-letters behind it. One
	// that is there is used as it is, so that its replicas and limits are for whoever runs
	// NATS to say. Default: hyperfleet.
	Stream string `yaml:"stream"`
	// AckWait is for how long a process that holds an event may be silent before the event
	// is given to another. One that lives is not silent, however long a handler takes.
	// Default: 30s.
	AckWait time.Duration `yaml:"ack_wait"`
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
	// Exchange that events are published to, declared as a durable topic exchange.
	// Default: hyperfleet.
	Exchange string `yaml:"exchange"`
	// PrefetchCount is how many events of each of the eight parts of the keys a subscriber
	// may hold that are not done, those that wait for another try included. Default: 1000.
	PrefetchCount int `yaml:"prefetch_count"`
}
