// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import "time"

// Types of brokers.
const (
	// BrokerRabbitMQ is the only supported type.
	BrokerRabbitMQ = "rabbitmq"
	// BrokerPubSub is Google Pub/Sub, the other type of upstream. It is not supported.
	BrokerPubSub = "googlepubsub"
)

// Broker configures the broker, in the file of sentinel or in its own file (broker.yaml,
// BROKER_CONFIG_FILE).
type Broker struct {
	// Type is the type of the broker: rabbitmq.
	Type     string       `yaml:"type"`
	RabbitMQ BrokerRabbit `yaml:"rabbitmq"`
	// Parallelism is the maximum number of events that a subscriber handles concurrently. Events of one
	// resource are never handled concurrently. Default: 8.
	Parallelism int `yaml:"parallelism"`
	// MaxDeliveries is the maximum number of attempts to handle an event before it becomes a dead letter.
	// Default: 10.
	MaxDeliveries int `yaml:"max_deliveries"`
	// MinBackoff and MaxBackoff are the minimum and maximum delay between two attempts. Default: 500ms
	// and 30s.
	MinBackoff time.Duration `yaml:"min_backoff"`
	MaxBackoff time.Duration `yaml:"max_backoff"`
}

// DefaultBroker returns the defaults of the settings of a broker.
func DefaultBroker() Broker {
	return Broker{
		Parallelism: 8, MaxDeliveries: 10, MinBackoff: 500 * time.Millisecond, MaxBackoff: 30 * time.Second,
		RabbitMQ: BrokerRabbit{ExchangeType: "topic", PrefetchCount: 1000},
	}
}

// BrokerRabbit configures the connection to RabbitMQ.
type BrokerRabbit struct {
	// URL is the server's URL if the URL contains no password. Otherwise URLFile is the path of a file
	// with the URL. Set one of them. URLFile and the files below are read again for each connection.
	URL     string `yaml:"url"`
	URLFile string `yaml:"url_file"`
	// CAFile is the path of a CA bundle in PEM that verifies the server's certificate. It requires a URL
	// with amqps. Default: the system's certificate authorities.
	CAFile string `yaml:"ca_file"`
	// CertFile and KeyFile are the paths of the client certificate and private key in PEM. Set both or
	// none. The user is still the user in the URL, unless the URL has ?auth_mechanism=external.
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
	// Exchange is the exchange for the events of all topics. Default: one exchange for each topic, with
	// the topic's name.
	Exchange string `yaml:"exchange"`
	// ExchangeType is the type of an exchange that does not exist yet: topic, fanout or direct. Default:
	// topic.
	ExchangeType string `yaml:"exchange_type"`
	// RoutingKey is the routing key with which events are published and queues are bound. Default: the
	// empty string.
	RoutingKey string `yaml:"routing_key"`
	// PrefetchCount is the maximum number of unacknowledged events of a subscriber, including events that
	// wait for a retry. Default: 1000.
	PrefetchCount int `yaml:"prefetch_count"`
}
