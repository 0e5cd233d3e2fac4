// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"net/url"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

const (
	hintPubSub = "use RabbitMQ, or no broker: an adapter with events.source: api reads the change feed of the API"
	reasonName = "Sentinel needs no name"
)

func newSentinelRules() rules {
	return rules{
		"sentinel.name":   omit(reasonName),
		"debug_config":    omit("`hyperfleet-platform sentinel config validate` prints the configuration", false),
		"tracing_enabled": omit("traces are on if OTEL_EXPORTER_OTLP_ENDPOINT is set", false),

		"log.level":  keep,
		"log.format": keep,
		"log.output": only("the log goes to standard error", "stdout", "stderr"),

		"clients.hyperfleet_api.base_url":             keep,
		"clients.hyperfleet_api.timeout":              keep,
		"clients.hyperfleet_api.version":              only("the API has one version", "v1"),
		"clients.hyperfleet_api.page_size":            rename("page_size"),
		"clients.hyperfleet_api.auth.enabled":         ignore,
		"clients.hyperfleet_api.auth.token_path":      convertToken,
		"clients.hyperfleet_api.auth.token_cache_ttl": omit("the file is read again when it changes"),
		// Only in Helm values: settings of the volume with the token.
		"clients.hyperfleet_api.auth.audience":           ignore,
		"clients.hyperfleet_api.auth.expiration_seconds": ignore,
		"clients.broker.topic":                           rename("topic"),

		"resource_type":                  keep,
		"poll_interval":                  keep,
		"resource_selector":              convertSelector,
		"message_decision.params[].name": ignore,
		"message_decision.params[].expr": ignore,
		"message_decision.result":        ignore,
		"message_data":                   keep,
	}
}

func (c *conversion) convertSentinel() {
	c.convert(newSentinelRules())

	if decision := c.get("message_decision", nil); decision != nil {
		c.set("message_decision", decision)
	}

	if !c.isInChart() {
		c.note(strictyaml.Path{"clients", "broker"}, "the broker is in a file of its own, as before",
			"convert it, too, and set BROKER_CONFIG_FILE to its path")
	}

	if c.get("clients.broker.topic", "") == "" {
		c.note(strictyaml.Path{"clients", "broker", "topic"}, "the topic is the resource type",
			"set topic if your adapters' subscriptions use another one")
	}
}

func convertToken(c *conversion, _ strictyaml.Path, value any) {
	if c.get("clients.hyperfleet_api.auth.enabled", true) == true {
		c.set("clients.hyperfleet_api.token_file", value)
	}
}

func convertSelector(c *conversion, path strictyaml.Path, value any) {
	c.convertFields(path, value, rules{"[].label": ignore, "[].value": ignore})

	if list, ok := value.([]any); !ok || len(list) > 0 {
		c.set("resource_selector", value)
	}
}

func newBrokerRules() rules {
	return rules{
		"broker.type": convertBrokerType,

		"broker.rabbitmq.url":               convertBrokerURL,
		"broker.rabbitmq.exchange":          keep,
		"broker.rabbitmq.exchange_type":     keep,
		"broker.rabbitmq.routing_key":       keep,
		"broker.rabbitmq.prefetch_count":    keep,
		"broker.rabbitmq.prefetch_size":     only("RabbitMQ does not support it", int64(0)),
		"broker.rabbitmq.consumer_tag":      omit("the client names its consumers", ""),
		"broker.rabbitmq.publisher_confirm": omit("every event is confirmed", true),
		"broker.rabbitmq.queue":             omit("the queue is named after the topic and the subscription of the adapter", ""),
		"broker.googlepubsub":               convertPubSub,

		"subscriber.parallelism": rename("broker.parallelism"),
		"publisher":              omit("publishers have no settings"),
		"log_config":             omit("`config validate` prints the configuration", false),
	}
}

// convertBroker converts the configuration of upstream's broker library.
func (c *conversion) convertBroker() { c.convert(newBrokerRules()) }

func convertBrokerType(c *conversion, path strictyaml.Path, value any) {
	if value == platform.BrokerRabbitMQ {
		c.set("broker.type", value)

		return
	}

	c.addProblem(path, fmt.Sprintf("broker %v is not supported", value), hintPubSub)
}

// convertPubSub leaves out the settings of Pub/Sub, which an example may have beside those of RabbitMQ.
func convertPubSub(c *conversion, path strictyaml.Path, _ any) {
	if c.get("broker.type", "") == platform.BrokerRabbitMQ {
		c.note(path, "left out: the broker is RabbitMQ", "")
	}
}

// convertBrokerURL moves a URL with a password into a file of its own.
func convertBrokerURL(c *conversion, path strictyaml.Path, value any) {
	target, err := url.Parse(fmt.Sprint(value))
	if err == nil {
		if _, hasPassword := target.User.Password(); !hasPassword {
			c.set("broker.rabbitmq.url", value)

			return
		}
	}

	c.set("broker.rabbitmq.url_file", "rabbitmq-url")
	c.note(path, "the URL has a password and belongs into a file of its own",
		"write it into the file rabbitmq-url beside the configuration")
}
