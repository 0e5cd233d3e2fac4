// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package guest_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/guest"
	"github.com/hyperfleet/hyperfleet/kit/property"
)

// logMeter counts the bytes of a log, and measures the largest heap while it is written.
type logMeter struct {
	size, next, heap uint64
	warnings         int
}

func (m *logMeter) Write(line []byte) (int, error) {
	m.size += uint64(len(line))

	if bytes.Contains(line, []byte("no longer logged here")) {
		m.warnings++
	}

	if m.size >= m.next {
		m.measure()
	}

	return len(line), nil
}

func (m *logMeter) measure() {
	var stats runtime.MemStats

	runtime.ReadMemStats(&stats)

	m.heap = max(m.heap, stats.HeapAlloc)
	m.next = m.size + 1<<20
}

// TestLargeLog checks that a job that prints 160 MiB succeeds, that the service keeps only the end of it, and that its own
// log, which goes to the machine's disk and console, is limited and says so.
func TestLargeLog(t *testing.T) { runLargeLog(t, 160<<20) } //nolint:paralleltest // it measures the heap

// TestSoakLargeLog is TestLargeLog with 2 GiB, of which a half is one line.
func TestSoakLargeLog(t *testing.T) { //nolint:paralleltest // it measures the heap
	property.Soak(t)
	runLargeLog(t, 2<<30)
}

func runLargeLog(t *testing.T, size int) {
	t.Helper()

	const maxHeap, maxLogged = 64 << 20, 96 << 20

	line := strings.Repeat("0123456789 ", 200)
	m := newGenericMachine(t, fmt.Sprintf("yes '%s' | head -c %d; head -c %d /dev/zero | tr '\\0' x; echo; echo the end",
		line, size/2, size/2))
	meter := &logMeter{}
	options := m.options()
	options.Log = slog.New(slog.NewJSONHandler(meter, nil))

	meter.measure()

	before := meter.heap
	m.writeConfig(t)

	got := guest.New(options).Run(t.Context())

	meter.measure()

	if got.Phase != api.PhaseFinished || got.Result == "" || !strings.HasSuffix(got.Log, "the end\n") || len(got.Log) > api.MaxLog {
		t.Errorf("the machine ended with %s %s %s, and a log of %d bytes", got.Phase, got.Reason, got.Message, len(got.Log))
	}

	if meter.heap > before+maxHeap {
		t.Errorf("the heap grew from %d to %d MiB", before>>20, meter.heap>>20)
	}

	if meter.size > maxLogged || meter.warnings != 1 {
		t.Errorf("the service logged %d MiB, and said %d times that it logs no more", meter.size>>20, meter.warnings)
	}

	t.Logf("%d MiB: the heap grew by %d KiB, the service logged %d MiB", size>>20, (meter.heap-before)>>10, meter.size>>20)
}
