// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"
)

// readGCPercent returns the garbage collection target percentage of this process.
func readGCPercent() int {
	current := debug.SetGCPercent(1)
	debug.SetGCPercent(current)

	return current
}

// TestMemoryIsSavedAtStart checks that garbage is collected more often only until half a minute after the operator has become
// the leader, unless a person has set GOGC.
func TestMemoryIsSavedAtStart(t *testing.T) { //nolint:paralleltest // it changes the garbage collection of the process
	for name, tc := range map[string]struct {
		env  string
		want int
	}{
		"by default": {"", startGCPercent}, "with GOGC": {"130", 130},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("GOGC", tc.env)
			defer debug.SetGCPercent(debug.SetGCPercent(130))

			synctest.Test(t, func(t *testing.T) {
				run := saveMemoryAtStart()

				time.Sleep(time.Hour) // another process is the leader

				go func() { _ = run(t.Context()) }()

				time.Sleep(startPeriod - time.Second)

				if got := readGCPercent(); got != tc.want {
					t.Errorf("GOGC is %d at the start, want %d", got, tc.want)
				}

				time.Sleep(time.Second)
				synctest.Wait()

				if got := readGCPercent(); got != 130 {
					t.Errorf("GOGC is %d after the start, want 130", got)
				}
			})
		})
	}
}
