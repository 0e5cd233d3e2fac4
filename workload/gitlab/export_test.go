// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/workload"
)

// NewWithClock is like New, with a clock for tests.
func NewWithClock(config Config, clk clock.Clock) (workload.Provider, error) {
	return newProvider(config, clk)
}

// Redact removes the secrets from a text.
func Redact(token, text string) string { return newRedactor(token).Redact(text) }

// Describe formats a runner's description.
func Describe(name string, tags []string) string { return formatDescription(name, tags) }

// ReadDescription parses a runner's description.
func ReadDescription(text string) (string, []string) { return parseDescription(text) }
