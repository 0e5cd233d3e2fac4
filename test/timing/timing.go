// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package timing

import (
	"testing"
	"time"

	"k8s.io/utils/clock"
)

const (
	// timeout is so long that no test fails because the computer is slow.
	timeout  = 2 * time.Minute
	interval = 10 * time.Millisecond
)

// WaitUntil polls a condition until it is true. If it stays false, the test fails. what describes the condition.
func WaitUntil(t testing.TB, what string, condition func() bool) {
	t.Helper()

	for deadline := time.Now().Add(timeout); !condition(); time.Sleep(interval) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out after %s waiting until %s", timeout, what)
		}
	}
}

// InstantClock is a clock whose timers fire at once, so that retries follow each other without a delay.
type InstantClock struct{ clock.RealClock }

// NewTimer returns a timer that fires at once.
func (c InstantClock) NewTimer(time.Duration) clock.Timer { return c.RealClock.NewTimer(0) }
