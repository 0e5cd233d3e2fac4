// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/workload"
)

// NewWithClock is like New, with a clock for tests.
func NewWithClock(config Config, clk clock.Clock) (workload.Provider, error) {
	return newProvider(config, clk)
}

// StackKey returns the key of the stack that Open creates.
func StackKey(config workload.Config) string { return deriveStackKey(config) }

// Redact removes the secrets from a text.
func Redact(token, text string) string { return newRedactor(token).Redact(text) }

// CountPending returns the number of requests that wait for a reservation and for a token.
func CountPending(workloadProvider workload.Provider) [2]int {
	p, ok := workloadProvider.(*provider)
	if !ok {
		return [2]int{}
	}

	return [2]int{p.reservations.countPending(), p.tokens.countPending()}
}

func (b *batcher[T]) countPending() int {
	b.mu.Lock()
	defer b.mu.Unlock()

	return len(b.pending)
}
