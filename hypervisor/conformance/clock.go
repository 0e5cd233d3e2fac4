// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// Speed is how many times faster than real time the clock of the cases runs. A wait of seconds
// then takes a test milliseconds.
const Speed = 50

// tickInterval is the interval at which FastClock advances.
const tickInterval = 2 * time.Millisecond

// Cleaner runs functions when a test ends. testing.TB is one.
type Cleaner interface {
	Helper()
	Cleanup(f func())
}

// FastClock returns a clock that runs speed times faster than real time until the test ends.
func FastClock(tb Cleaner, speed int) *clocktesting.FakeClock {
	tb.Helper()

	clk := clocktesting.NewFakeClock(time.Now())
	done := make(chan struct{})
	ended := make(chan struct{})

	go func() {
		defer close(ended)

		ticker := time.NewTicker(tickInterval)
		defer ticker.Stop()

		last := time.Now()

		for {
			select {
			case <-done:
				return
			case now := <-ticker.C:
				clk.Step(now.Sub(last) * time.Duration(speed))
				last = now
			}
		}
	}()

	tb.Cleanup(func() {
		close(done)
		<-ended
	})

	return clk
}
