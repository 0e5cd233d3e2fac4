// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/workload"
)

// NewWithClock is like New, with a clock for tests.
func NewWithClock(config Config, clk clock.Clock) (workload.Provider, error) {
	return openProvider(config, clk)
}

// ResolveURLs returns where calls go and where runners register.
func ResolveURLs(config *Settings) ([]string, error) {
	out, err := resolveURLs(config)

	return []string{out.api, out.registrationToken, out.runner}, err
}

// Redact removes the secrets from a text.
func Redact(config *Settings, text string) string { return newRedactor(config).Redact(text) }

// NewRegistrationGate returns the registration check of a new budget.
func NewRegistrationGate(clk clock.PassiveClock) func() error {
	b := newBudget(clk)

	return func() error { return b.allowRegistration("create a runner") }
}
