// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/workload"
)

// NewWithClock is New with a clock for tests.
func NewWithClock(config Config, clk clock.Clock) (workload.Provider, error) {
	return open(config, clk)
}

// URLsOf gives where calls go and runners register.
func URLsOf(config *Settings) ([]string, error) {
	out, err := readURLs(config)

	return []string{out.api, out.registrationToken, out.runner}, err
}

// Redact takes the secrets out of a text.
func Redact(config *Settings, text string) string { return newRedactor(config).Text(text) }

// Registrations gives a fresh budget's gate of registrations.
func Registrations(clk clock.PassiveClock) func() error {
	b := newBudget(clk)

	return func() error { return b.register("making a runner") }
}
