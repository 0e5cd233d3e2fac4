// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"slices"
	"time"
)

const (
	// WarmWindow is how far back the rate at which jobs come is looked at.
	WarmWindow = 10 * time.Minute
	// DefaultStartup is how long a machine takes from being made to its runner being
	// online, as long as none has been seen.
	DefaultStartup = time.Minute
)

// WarmIdle gives how many idle machines to keep ready beyond those that jobs ask for: as
// many as jobs came, at the busiest of the last WarmWindow, within the time that one
// machine takes to start, but at least idle and at most maxIdle. Without maxIdle it is
// idle. arrivals are the moments at which the pool's jobs were heard of, in any order.
//
// The second result is when the number may fall by time alone; zero means never.
func WarmIdle(idle int, maxIdle *int, arrivals []time.Time, startup time.Duration, now time.Time) (int, time.Time) {
	if maxIdle == nil || *maxIdle <= idle {
		return idle, time.Time{}
	}

	if startup <= 0 {
		startup = DefaultStartup
	}

	recent := slices.DeleteFunc(slices.Clone(arrivals), func(at time.Time) bool {
		return at.After(now) || !at.After(now.Add(-WarmWindow))
	})
	slices.SortFunc(recent, time.Time.Compare)

	wanted := min(max(busiest(recent, startup), idle), *maxIdle)
	if wanted == idle {
		return idle, time.Time{}
	}

	return wanted, recent[0].Add(WarmWindow)
}

// busiest gives the most moments, of those sorted, that lie within one span.
func busiest(moments []time.Time, span time.Duration) int {
	most, first := 0, 0

	for last, at := range moments {
		for at.Sub(moments[first]) >= span {
			first++
		}

		most = max(most, last-first+1)
	}

	return most
}

// Median gives the middle of the durations, or DefaultStartup if there are none.
func Median(durations []time.Duration) time.Duration {
	if len(durations) == 0 {
		return DefaultStartup
	}

	sorted := slices.Sorted(slices.Values(durations))

	return sorted[len(sorted)/2] //nolint:mnd // the middle
}
