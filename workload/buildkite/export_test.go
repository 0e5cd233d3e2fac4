// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/workload"
)

// NewWithClock is New with a clock for tests.
func NewWithClock(config Config, clk clock.Clock) (workload.Provider, error) {
	return newProvider(config, clk)
}

// StackKey gives the key of the stack that Open makes.
func StackKey(config workload.Config) string { return stackKey(config) }

// Redact takes the secrets out of a text.
func Redact(token, text string) string { return newRedactor(token).Text(text) }

// Waiting is how many wait for their reservation, and how many for their token.
func Waiting(of workload.Provider) [2]int {
	p, is := of.(*provider)
	if !is {
		return [2]int{}
	}

	return [2]int{p.reservations.count(), p.tokens.count()}
}

func (b *batcher[T]) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()

	return len(b.waiting)
}
