// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import "sync"

// Namespace is the first word of every metric's name.
const Namespace = "hyperfleet"

// Other stands for all values of a label beyond the allowed number.
const Other = "other"

// CallBuckets are for calls to other systems, in seconds.
func CallBuckets() []float64 { return []float64{.005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30, 60} }

// PhaseBuckets are for phases of a machine's life, in seconds.
func PhaseBuckets() []float64 { return []float64{.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800} }

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
