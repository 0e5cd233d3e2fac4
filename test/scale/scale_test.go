// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// TestSimulatedJobs simulates jobs, and checks that each completes on a machine of its own and that nothing is left. It logs how busy the operator
// and the API server are. SCALE_JOBS is the number of jobs in an hour, SCALE_MINUTES is how long jobs are queued,
// SCALE_POOLS is the number of pools, each in a namespace of its own, and SCALE_KEPT is the number of completed jobs that
// each namespace already has.
func TestSimulatedJobs(t *testing.T) {
	load := Load{
		JobsPerHour: readNumber(t, "SCALE_JOBS", 600), Minutes: readNumber(t, "SCALE_MINUTES", 3),
		Pools: readNumber(t, "SCALE_POOLS", 2), Kept: readNumber(t, "SCALE_KEPT", 20), JobTime: 2 * time.Minute,
	}

	synctest.Test(t, func(t *testing.T) {
		result := Simulate(t, load)
		t.Logf("%+v\n%s", load, result)

		if result.Completed != result.Jobs || result.Machines != result.Jobs || result.Left > 0 || result.Refused > 0 {
			t.Errorf("%d of %d jobs completed, %d machines were started, %d machines and claims are left, %d requests were refused",
				result.Completed, result.Jobs, result.Machines, result.Left, result.Refused)
		}
	})
}

func readNumber(t *testing.T, name string, fallback int) int {
	t.Helper()

	text := os.Getenv(name)
	if text == "" {
		return fallback
	}

	out, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}

	return out
}
