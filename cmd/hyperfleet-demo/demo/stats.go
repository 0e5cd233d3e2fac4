// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"math"
	"slices"
	"time"
)

// Latency sums up how long one phase took, in seconds.
type Latency struct {
	// Count of samples. The others are zero without one.
	Count int     `json:"count"`
	P50   float64 `json:"p50"`
	P95   float64 `json:"p95"`
	Max   float64 `json:"max"`
}

// latencyOf sums up samples by the nearest-rank method: a percentile is always a sample
// that was really taken.
func latencyOf(samples []time.Duration) Latency {
	if len(samples) == 0 {
		return Latency{}
	}

	sorted := slices.Clone(samples)
	slices.Sort(sorted)

	return Latency{
		Count: len(sorted),
		P50:   seconds(nearestRank(sorted, 50)),
		P95:   seconds(nearestRank(sorted, 95)),
		Max:   seconds(sorted[len(sorted)-1]),
	}
}

func nearestRank(sorted []time.Duration, percent int) time.Duration {
	rank := (len(sorted)*percent + 99) / 100

	return sorted[max(rank, 1)-1]
}

// seconds rounds to milliseconds, which is finer than anything here is measured.
func seconds(d time.Duration) float64 { return round3(d.Seconds()) }

func round3(v float64) float64 { return math.Round(v*1000) / 1000 }
