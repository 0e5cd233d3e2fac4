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

// What one text may take.
const (
	mostBytes = 16 << 20
	mostTime  = slower * time.Second
)

// taken is what a reader took.
type taken struct {
	bytes uint64
	cpu   time.Duration
}

// measure runs a reader. What it allocates in all is what it may have held at most; only where
// that is too much, it runs once more and is watched while garbage is collected all the time.
func measure(t *testing.T, read func() error) (taken, error) {
	t.Helper()

	var before, after runtime.MemStats

	runtime.ReadMemStats(&before)

	begun := processTime(t)
	err := read()
	out := taken{cpu: processTime(t) - begun}

	runtime.ReadMemStats(&after)

	out.bytes = after.TotalAlloc - before.TotalAlloc
	if after.StackInuse > before.StackInuse {
		out.bytes += after.StackInuse - before.StackInuse
	}

	if out.bytes > mostBytes {
		out.bytes = peak(read)
	}

	return out, err
}

// processTime is what all threads have worked, which a busy machine does not add to.
func processTime(t *testing.T) time.Duration {
	t.Helper()

	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}

	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// peak is how far heap and stacks grow while a reader runs.
func peak(read func() error) uint64 {
	defer debug.SetGCPercent(debug.SetGCPercent(10))

	runtime.GC()

	var (
		base    = inUse()
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
				highest = max(highest, inUse())

				runtime.Gosched()
			}
		}
	}()

	_ = read()

	close(done)
	<-stopped

	return highest - base
}

func inUse() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(samples)

	return samples[0].Value.Uint64() + samples[1].Value.Uint64()
}

// The measures see what is held for a moment, and not what is garbage.
func TestMeasure(t *testing.T) { //nolint:paralleltest // it counts what is allocated
	var keep []byte

	held, _ := measure(t, func() error {
		keep = make([]byte, 2*mostBytes)
		runtime.GC()

		keep = nil

		return nil
	})
	if held.bytes < 2*mostBytes {
		t.Errorf("held: %d bytes", held.bytes)
	}

	garbage, _ := measure(t, func() error {
		for range 1000 {
			keep = make([]byte, 64<<10)
		}

		return nil
	})
	if garbage.bytes > mostBytes {
		t.Errorf("garbage: %d bytes", garbage.bytes)
	}

	const work = 100 * time.Millisecond

	worked, _ := measure(t, func() error {
		for begun := processTime(t); processTime(t)-begun < work; {
			continue
		}

		return nil
	})
	if worked.cpu < work {
		t.Errorf("worked: %s", worked.cpu)
	}

	_ = keep
}
