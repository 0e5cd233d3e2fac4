// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"
	"sync"
)

// Namespace is the first word of every metric's name.
const Namespace = "hyperfleet"

// Other stands for all values of a label beyond the allowed number.
const Other = "other"

// MaxPools bounds the pools, with their namespaces, that a metric tells apart.
const MaxPools = 500

// CallBuckets are for calls to other systems, in seconds.
func CallBuckets() []float64 { return []float64{.005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30, 60} }

// PhaseBuckets are for phases of a machine's life, in seconds.
func PhaseBuckets() []float64 { return []float64{.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800} }

// PoolBuckets are for what is kept for each pool, in seconds, from a machine that was warm to
// a day.
func PoolBuckets() []float64 {
	return []float64{1, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 14400, 86400}
}

// Bounded lets a limited number of values of one label through, those seen first, and
// makes Other of the rest. It may be used from any goroutine.
type Bounded struct {
	limit int

	mu   sync.Mutex
	seen map[string]struct{}
}

// NewBounded allows limit values.
func NewBounded(limit int) *Bounded {
	return &Bounded{limit: limit, seen: make(map[string]struct{}, limit)}
}

// Values is Value of labels that belong together, such as namespace and name: they come through
// together, or each of them is Other.
func (b *Bounded) Values(values ...string) []string {
	if b.Value(strings.Join(values, "\x00")) != Other {
		return values
	}

	out := make([]string, len(values))
	for i := range out {
		out[i] = Other
	}

	return out
}

// Value returns the value, or Other.
func (b *Bounded) Value(value string) string {
	b.mu.Lock()
	defer b.mu.Unlock()

	if _, ok := b.seen[value]; ok {
		return value
	}

	if len(b.seen) >= b.limit {
		return Other
	}

	b.seen[value] = struct{}{}

	return value
}
