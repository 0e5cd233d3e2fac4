// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"runtime"
	"testing"
)

const (
	// iterations is the number of times that a function runs. With maxGrowth, a leak of about 80 bytes per
	// iteration is detected.
	iterations = 10000
	maxGrowth  = 768 << 10
)

// CheckNoLeak calls a function that creates and removes something ten thousand times, and fails the test if
// the heap grows by more than 768 KiB. No other test may run at the same time, so neither the test nor its
// subtests may be parallel.
func CheckNoLeak(t *testing.T, name string, makeAndRemove func(number int)) {
	t.Helper()

	makeAndRemove(0) // the first call may allocate memory that stays in use

	before := UsedBytes()

	for number := range iterations {
		makeAndRemove(number)
	}

	if after := UsedBytes(); after > before+maxGrowth {
		t.Errorf("%s: the heap grew by %d bytes in %d iterations, want at most %d", name, after-before, iterations, maxGrowth)
	}

	runtime.KeepAlive(makeAndRemove)
}

// UsedBytes returns the number of bytes on the heap that are in use after a garbage collection.
func UsedBytes() uint64 {
	var stats runtime.MemStats

	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&stats)

	return stats.HeapAlloc
}
