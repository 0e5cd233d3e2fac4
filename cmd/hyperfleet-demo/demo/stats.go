// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"math"
	"slices"
	"time"
)

// Latency has statistics of the duration of one phase, in seconds.
type Latency struct {
	// Count is the number of samples. If it is zero, the other fields are zero too.
	Count int     `json:"count"`
	P50   float64 `json:"p50"`
	P95   float64 `json:"p95"`
	Max   float64 `json:"max"`
}

// summarizeLatency computes the percentiles by the nearest-rank method, so that each percentile is one of
// the samples.
func summarizeLatency(samples []time.Duration) Latency {
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

// seconds returns d in seconds, rounded to milliseconds. The demo measures less precisely than that.
func seconds(d time.Duration) float64 { return round3(d.Seconds()) }

func round3(v float64) float64 { return math.Round(v*1000) / 1000 }
