// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"runtime"
	"testing"
)

const (
	// many is how often something is made and removed: what leaks 200 bytes each time is seen.
	many = 10000
	most = 2 << 20
)

// Ends makes and removes something ten thousand times, and fails where it is not gone from the
// heap then. Nothing else may run meanwhile: the test is not parallel, nor are those of t.Run.
func Ends(t *testing.T, what string, makeAndRemove func(number int)) {
	t.Helper()

	makeAndRemove(0) // what is made once and stays

	before := Alive()

	for number := range many {
		makeAndRemove(number)
	}

	if after := Alive(); after > before+most {
		t.Errorf("%s: the heap grew by %d bytes over %d that are gone", what, after-before, many)
	}

	runtime.KeepAlive(makeAndRemove)
}

// Alive is how many bytes of the heap are in use.
func Alive() uint64 {
	var stats runtime.MemStats

	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&stats)

	return stats.HeapAlloc
}
