// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package budgets_test

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"syscall"
	"testing"
	"time"
)

// These are the limits for one text.
const (
	maxBytes = 16 << 20
	maxTime  = slower * time.Second
)

// resourceUse is the memory and CPU time that a function used.
type resourceUse struct {
	bytes uint64
	cpu   time.Duration
}

// measure runs a function. The total of its allocations is an upper limit of the memory that it held. Only if this
// exceeds the limit, measure runs it again, and samples the memory while garbage is collected constantly.
func measure(t *testing.T, read func() error) (resourceUse, error) {
	t.Helper()

	var before, after runtime.MemStats

	runtime.ReadMemStats(&before)

	begun := processTime(t)
	err := read()
	out := resourceUse{cpu: processTime(t) - begun}

	runtime.ReadMemStats(&after)

	out.bytes = after.TotalAlloc - before.TotalAlloc
	if after.StackInuse > before.StackInuse {
		out.bytes += after.StackInuse - before.StackInuse
	}

	if out.bytes > maxBytes {
		out.bytes = measurePeak(read)
	}

	return out, err
}

// processTime returns the CPU time of all threads, which does not depend on the load of the machine.
func processTime(t *testing.T) time.Duration {
	t.Helper()

	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}

	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// measurePeak returns by how much heap and stacks grow while a function runs.
func measurePeak(read func() error) uint64 {
	defer debug.SetGCPercent(debug.SetGCPercent(10))

	runtime.GC()

	var (
		base    = readInUse()
		highest = base
		done    = make(chan struct{})
		stopped = make(chan struct{})
	)

	go func() {
		defer close(stopped)

		for {
			select {
			case <-done:
				return
			default:
				highest = max(highest, readInUse())

				runtime.Gosched()
			}
		}
	}()

	_ = read()

	close(done)
	<-stopped

	return highest - base
}

// readInUse returns the memory of heap and stacks.
func readInUse() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(samples)

	return samples[0].Value.Uint64() + samples[1].Value.Uint64()
}

// TestMeasure checks that measure counts memory that is held for a short time, and not garbage.
func TestMeasure(t *testing.T) { //nolint:paralleltest // it measures allocations
	var keep []byte

	held, _ := measure(t, func() error {
		keep = make([]byte, 2*maxBytes)
		runtime.GC()

		keep = nil

		return nil
	})
	if held.bytes < 2*maxBytes {
		t.Errorf("held memory: %d bytes, want more than the limit", held.bytes)
	}

	// A busy machine collects garbage late, so that some of it is counted.
	const pieces, pieceBytes = 1000, 64 << 10

	garbage, _ := measure(t, func() error {
		for range pieces {
			keep = make([]byte, pieceBytes)
		}

		return nil
	})
	if most := uint64(pieces * pieceBytes / 2); garbage.bytes > most {
		t.Errorf("garbage: %d bytes, want at most %d", garbage.bytes, most)
	}

	const work = 100 * time.Millisecond

	worked, _ := measure(t, func() error {
		for begun := processTime(t); processTime(t)-begun < work; {
			continue
		}

		return nil
	})
	if worked.cpu < work {
		t.Errorf("CPU time: %s, want at least 100ms", worked.cpu)
	}

	_ = keep
}
