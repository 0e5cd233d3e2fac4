// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/workload"
)

// NewWithClock is New with a clock for tests.
func NewWithClock(config Config, clk clock.Clock) (workload.Provider, error) {
	return newProvider(config, clk)
}

// Redact takes the secrets out of a text.
func Redact(token, text string) string { return newRedactor(token).Text(text) }

// Describe and ReadDescription write and read a runner's description.
func Describe(name string, tags []string) string { return describe(name, tags) }

// ReadDescription reads a runner's description.
func ReadDescription(text string) (string, []string) { return readDescription(text) }
