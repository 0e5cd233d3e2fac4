// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"cmp"
	"errors"
	"os"

	"github.com/spf13/pflag"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// EnvFile is the environment variable with the path of a file that has only the configuration of the broker. Several
// programs can share this file.
const EnvFile = "BROKER_CONFIG_FILE"

// defaultFile is read if it exists and no other file is given.
const defaultFile = "broker.yaml"

// file is the content of the file. It has the key broker, as Sentinel's file has it.
type file struct {
	Broker platform.Broker `yaml:"broker"`
}

// FindFile returns the path of the configuration: the given one, or else that in EnvFile, or else broker.yaml if it exists.
func FindFile(path string) string {
	path = cmp.Or(path, os.Getenv(EnvFile))
	if path != "" {
		return path
	}

	if _, err := os.Stat(defaultFile); err != nil {
		return ""
	}

	return defaultFile
}

// Load loads the configuration from the file that FindFile returns, and from environment variables.
func Load(path string) (platform.Broker, error) {
	spec := strictyaml.Spec[file]{
		Default:  file{Broker: platform.DefaultBroker()},
		Aliases:  map[string]string{"broker.type": "BROKER_TYPE", "broker.rabbitmq.url": "BROKER_RABBITMQ_URL"},
		Validate: func(c *file) error { return CheckType(c.Broker) },
	}

	flags := pflag.NewFlagSet("broker", pflag.ContinueOnError)
	if err := errors.Join(spec.AddFlags(flags), flags.Set("config", FindFile(path))); err != nil {
		return platform.Broker{}, err
	}

	config, err := spec.Load(flags)
	if err != nil {
		return platform.Broker{}, err
	}

	return config.Broker, nil
}

// CheckType returns an error if the type of the broker is not supported.
func CheckType(conf platform.Broker) error {
	switch conf.Type {
	case platform.BrokerRabbitMQ:
		return nil
	case platform.BrokerPubSub:
		return strictyaml.ErrorAt("broker.type", "Google Pub/Sub is not supported, because it does not keep the order of events: "+
			"set rabbitmq, or use no broker: an adapter with events.source: api reads the change feed of the API")
	default:
		return strictyaml.ErrorAt("broker.type",
			"%q: set rabbitmq, or set events.source: api in adapters if you have no broker", conf.Type)
	}
}
