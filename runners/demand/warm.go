// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"slices"
	"time"
)

const (
	// WarmWindow is the period before now in which the arrivals of jobs are counted.
	WarmWindow = 10 * time.Minute
	// DefaultStartup is the assumed time from the creation of a machine until its runner is online,
	// as long as no machine has been measured.
	DefaultStartup = time.Minute
)

// CountWarmIdle returns how many idle machines to keep in addition to the machines for jobs. It is the
// highest number of jobs that arrived, within WarmWindow, in the time that a machine takes to
// start, but at least idle and at most maxIdle. If maxIdle is nil, it returns idle. arrivals
// are the times at which the operator received the pool's jobs, in any order.
//
// mayFallAt is when the number may fall because of the time alone; zero means never.
func CountWarmIdle(
	idle int, maxIdle *int, arrivals []time.Time, startup time.Duration, now time.Time,
) (count int, mayFallAt time.Time) {
	if maxIdle == nil || *maxIdle <= idle {
		return idle, time.Time{}
	}

	if startup <= 0 {
		startup = DefaultStartup
	}

	recent := slices.DeleteFunc(slices.Clone(arrivals), func(timestamp time.Time) bool {
		return timestamp.After(now) || !timestamp.After(now.Add(-WarmWindow))
	})
	slices.SortFunc(recent, time.Time.Compare)

	count = min(max(countBusiest(recent, startup), idle), *maxIdle)
	if count == idle {
		return idle, time.Time{}
	}

	return count, recent[0].Add(WarmWindow)
}

// countBusiest returns the largest number of the sorted times that lie within one span.
func countBusiest(times []time.Time, span time.Duration) int {
	highest, first := 0, 0

	for last, timestamp := range times {
		for timestamp.Sub(times[first]) >= span {
			first++
		}

		highest = max(highest, last-first+1)
	}

	return highest
}
