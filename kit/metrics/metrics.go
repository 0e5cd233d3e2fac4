// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"
	"sync"
)

// Namespace is the prefix of every metric's name.
const Namespace = "hyperfleet"

// Other replaces all values of a label beyond the limit.
const Other = "other"

// MaxPools is the maximum number of pools, with their namespaces, that a metric distinguishes.
const MaxPools = 500

// CallBuckets returns the buckets for calls to external systems, in seconds.
func CallBuckets() []float64 { return []float64{.005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30, 60} }

// PhaseBuckets returns the buckets for phases of a machine's lifecycle, in seconds.
func PhaseBuckets() []float64 { return []float64{.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800} }

// PoolBuckets returns the buckets for durations that are measured per pool, in seconds: from 1
// second, for a machine that was kept warm, to one day.
func PoolBuckets() []float64 {
	return []float64{1, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 14400, 86400}
}

// LabelLimiter limits the number of distinct values of one label. It keeps the first values that it
// receives and replaces all others by Other. It is safe for concurrent use.
type LabelLimiter struct {
	limit int

	mu     sync.Mutex
	values map[string]struct{}
}

// NewLabelLimiter returns a LabelLimiter that keeps at most limit values.
func NewLabelLimiter(limit int) *LabelLimiter {
	return &LabelLimiter{limit: limit, values: make(map[string]struct{}, limit)}
}

// LimitAll limits combinations of labels that belong together, such as namespace and name. It
// returns the values unchanged, or Other for each of them.
func (b *LabelLimiter) LimitAll(values ...string) []string {
	if b.Limit(strings.Join(values, "\x00")) != Other {
		return values
	}

	out := make([]string, len(values))
	for i := range out {
		out[i] = Other
	}

	return out
}

// Limit returns the value, or Other if the limit is reached.
func (b *LabelLimiter) Limit(value string) string {
	b.mu.Lock()
	defer b.mu.Unlock()

	if _, ok := b.values[value]; ok {
		return value
	}

	if len(b.values) >= b.limit {
		return Other
	}

	b.values[value] = struct{}{}

	return value
}
